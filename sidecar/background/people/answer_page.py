"""The opt-in listener behind the links of ``answer_link.py``. The listener serves nothing without a signed link.

Any name of this machine is answered to, because a tunnel may give its own; the signature decides. The listener logs no
paths, because anybody who knows a path can answer, and no texts, because texts are private to the user.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from bridge.opencode.link.protocol import RequestError
from sidecar.background.messages.message import Message
from sidecar.background.people import answer_link
from sidecar.notify_config import NotifyConfig
from streams.errors import CodedError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

log = logging.getLogger("sidecar.background")

_STATUS: Final = {"already-answered": 409, "unfit-answer": 400, "no-checkpoint": 410, "cut-text": 403}
_NOTHING: Final = "There is nothing here."
_GONE: Final = "This link is no longer valid. `durable-stream checkpoints` lists the questions still waiting."
_DONE: Final = "Your answer has arrived. You can close this page."

POLICY: Final = "style-src 'unsafe-inline'; form-action 'self'"


class AnswerPage:
    """A component. ``find`` returns an open or closed checkpoint; ``answer`` answers it as a person.

    ``token`` is called once, at the start.
    """

    def __init__(
        self,
        config: NotifyConfig,
        token: Callable[[], str],
        now_ms: Callable[[], int],
        find: Callable[[str], Message | None],
        answer: Callable[[str, list[str]], Awaitable[object]],
    ) -> None:
        self.host, self.port, self._url = config.answer_host, config.answer_port, config.answer_url
        self._token, self._now_ms, self._find, self._answer = token, now_ms, find, answer
        self._key: bytes | None = None
        self.fault = ""
        """Why there is no answer page; empty while there is one."""

    async def start(self, stack: AsyncExitStack) -> None:
        """See ``Component``. Does nothing without a port. If the port is in use, everything except the links works."""
        if not self.port:
            return
        from sidecar.web.serving import listen, serving

        try:
            listener = listen(self.host, self.port)
        except OSError as error:
            self.fault = f"{self.host} port {self.port} cannot be used ({error.strerror or error})"
            log.error("messages have no answer link: %s [port-taken]", self.fault)
            return
        self.port, self._key = listener.getsockname()[1], answer_link.key_of(self._token())
        await stack.enter_async_context(serving(self._app(), listener, POLICY))
        log.info("checkpoints can be answered through a link at %s port %s", self.host, self.port)

    def status(self) -> dict[str, Any] | None:
        """``port``, and ``problem``, which is empty while it listens; ``None`` without a port."""
        return {"port": self.port, "problem": self.fault} if self.port else None

    @property
    def is_on(self) -> bool:
        return self._key is not None

    def link(self, checkpoint: str) -> str | None:
        """A link that answers a checkpoint; ``None`` if the checkpoint is no longer waiting, or there is no page."""
        known = self._find(checkpoint)
        if self._key is None or known is None or not known.is_open:
            return None
        name = f"[{self.host}]" if ":" in self.host else self.host
        base = self._url.rstrip("/") or f"http://{name}:{self.port}"
        return base + answer_link.path_of(self._key, known, self._now_ms())

    def _app(self) -> Starlette:
        from starlette.applications import Starlette
        from starlette.responses import HTMLResponse
        from starlette.routing import Route

        from sidecar.web.serving import body_of

        async def page(request: Request) -> HTMLResponse:
            body = await body_of(request)
            if body is None:
                return HTMLResponse(answer_link.text_page(_NOTHING), 413)
            status, text = await self._respond(request.method, request.scope["path"], body)
            return HTMLResponse(text.encode("utf-8", "replace"), status)

        return Starlette(routes=[Route("/{path:path}", page, methods=["GET", "POST"])])

    async def _respond(self, method: str, path: str, body: bytes) -> tuple[int, str]:
        link = answer_link.parse(path)
        state = answer_link.check(self._key, link, self._now_ms()) if link is not None and self._key else "wrong"
        if link is None or state == "wrong":
            return 404, answer_link.text_page(_NOTHING)
        known = self._find(link.checkpoint)
        if state == "expired" or known is None:
            return 410, answer_link.text_page(_GONE)
        if method != "POST" or not known.is_open:
            return 409 if method == "POST" else 200, answer_link.form_page(known)
        try:
            given = answer_link.answers(known, body)
            if not given:
                return 400, answer_link.form_page(known, "Give an answer.")
            await self._answer(known.id, given)
        except ValueError:
            return 400, answer_link.form_page(known, "The form could not be read.")
        except (RequestError, CodedError) as error:
            now = self._find(link.checkpoint) or known
            return _STATUS.get(error.code, 503), answer_link.form_page(now, str(error))
        return 200, answer_link.text_page(_DONE)
