"""The opt-in listener behind the links of ``answer_link.py``. The listener serves nothing without a signed link.

The listener speaks minimal HTTP/1.1: one request for each connection, with a short head and a short form. The listener
logs no paths, because anybody who knows a path can answer, and no texts, because texts are private to the user.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from http import HTTPStatus
from typing import Final, NamedTuple

from bridge.opencode.link.link import RequestError
from sidecar.background.people import answer_link
from sidecar.background.people.checkpoints import CLOSED, Checkpoint
from sidecar.notify_config import NotifyConfig

log = logging.getLogger("sidecar.background")

MAX_HEAD: Final = 16 * 1024
MAX_FORM: Final = 64 * 1024
MAX_CONNECTIONS: Final = 32
"""How many connections may be open. One more closes the oldest, so that silent ones shut nobody out."""
SECONDS: Final = 10.0
"""How long a browser may take to send its request."""

_STATUS: Final = {"already-answered": 409, "unfit-answer": 400, "no-checkpoint": 410, "cut-text": 403}
_NOTHING: Final = "There is nothing here."
_GONE: Final = "This link is no longer valid. `durable-stream checkpoints` lists the questions still waiting."
_DONE: Final = "Your answer has arrived. You can close this page."

_HEADERS: Final = (
    "Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'\r\nConnection: close\r\n"
)


class _Refused(Exception):
    """A request that no browser sends, and the HTTP status with which it is answered."""


class _Request(NamedTuple):
    method: str
    path: str
    body: bytes


class AnswerPage:
    """A component. ``find`` returns an open or closed checkpoint; ``answer`` answers it as a person.

    ``token`` is called once, at the start.
    """

    def __init__(
        self,
        config: NotifyConfig,
        token: Callable[[], str],
        now_ms: Callable[[], int],
        find: Callable[[str], Checkpoint | None],
        answer: Callable[[str, list[str]], Awaitable[object]],
    ) -> None:
        self.host, self.port, self._url = config.answer_host, config.answer_port, config.answer_url
        self._token, self._now_ms, self._find, self._answer = token, now_ms, find, answer
        self._key: bytes | None = None
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter | None] = {}
        """The open connections, oldest first; ``None`` in place of the writer once the request has arrived."""
        self.fault = ""
        """Why there is no answer page; empty while there is one."""

    async def start(self, stack: AsyncExitStack) -> None:
        """See ``Component``. Does nothing without a port. If the port is in use, everything except the links works."""
        if not self.port:
            return
        try:
            server = await asyncio.start_server(self._connected, self.host, self.port, limit=MAX_HEAD, backlog=16)
        except OSError as error:
            self.fault = f"{self.host} port {self.port} cannot be used ({error.strerror or error})"
            log.error("messages have no answer link: %s", self.fault)
            return
        self.port, self._key = server.sockets[0].getsockname()[1], answer_link.key_of(self._token())
        stack.push_async_callback(self._stop, server)
        log.info("checkpoints can be answered through a link at %s port %s", self.host, self.port)

    @property
    def is_on(self) -> bool:
        """Whether links work."""
        return self._key is not None

    def link(self, checkpoint: str) -> str | None:
        """A link that answers a checkpoint; ``None`` if the checkpoint is no longer waiting, or there is no page."""
        known = self._find(checkpoint)
        if self._key is None or known is None or known.state in CLOSED:
            return None
        name = f"[{self.host}]" if ":" in self.host else self.host
        base = self._url.rstrip("/") or f"http://{name}:{self.port}"
        return base + answer_link.path_of(self._key, known, self._now_ms())

    async def _stop(self, server: asyncio.Server) -> None:
        server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= MAX_CONNECTIONS:
            silent = next(((task, each) for task, each in self._serving.items() if each is not None), None)
            if silent is None:
                writer.close()
                return
            del self._serving[silent[0]]
            silent[1].transport.abort()
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving[task] = writer
        task.add_done_callback(lambda ended: self._serving.pop(ended, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                async with asyncio.timeout(SECONDS):
                    request = await _read(reader)
                task = asyncio.current_task()
                if task in self._serving:
                    self._serving[task] = None
            except _Refused as refused:
                status, page = refused.args[0], answer_link.text_page(_NOTHING)
            else:
                status, page = await self._respond(request)
                page = "" if request.method == "HEAD" else page
            content = page.encode("utf-8", "replace")
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{_HEADERS}Content-Length: {len(content)}\r\n\r\n"
            writer.write(head.encode() + content)
            async with asyncio.timeout(SECONDS):
                await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            writer.transport.abort()  # the client disconnected, was too slow, or sent no HTTP request
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _respond(self, request: _Request) -> tuple[int, str]:
        link = answer_link.parse(request.path)
        state = answer_link.check(self._key, link, self._now_ms()) if link is not None and self._key else "wrong"
        if link is None or state == "wrong":
            return 404, answer_link.text_page(_NOTHING)
        known = self._find(link.checkpoint)
        if state == "expired" or known is None:
            return 410, answer_link.text_page(_GONE)
        if request.method != "POST" or known.state in CLOSED:
            return 409 if request.method == "POST" else 200, answer_link.form_page(known)
        try:
            given = answer_link.answers(known, request.body)
            if not given:
                return 400, answer_link.form_page(known, "Give an answer.")
            await self._answer(known.id, given)
        except ValueError:
            return 400, answer_link.form_page(known, "The form could not be read.")
        except RequestError as error:
            now = self._find(link.checkpoint) or known
            return _STATUS.get(error.code, 503), answer_link.form_page(now, str(error))
        return 200, answer_link.text_page(_DONE)


async def _read(reader: asyncio.StreamReader) -> _Request:
    """Read one request. Raises ``_Refused``, or the stream's own error if the request breaks off or is too long."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    first = re.fullmatch(r"(GET|HEAD|POST) (/[!-~]*) HTTP/1\.[01]", lines[0])
    if first is None:
        raise _Refused(405)
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or (name.lower() in headers and name.lower() in ("content-length", "transfer-encoding")):
            raise _Refused(400)
        headers[name.lower()] = value.strip()
    if first[1] != "POST":
        return _Request(first[1], first[2], b"")
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or re.fullmatch(r"[0-9]{1,7}", length) is None:
        raise _Refused(411)
    if int(length) > MAX_FORM:
        raise _Refused(413)
    return _Request(first[1], first[2], await reader.readexactly(int(length)))
