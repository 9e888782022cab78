"""``GET /metrics`` on a loopback port of its own, for requests with the right bearer token.

The bearer token is derived from the home's token. Links do not accept it, and the home's token cannot be computed from
it. Import this file only to serve the metrics, or to say how, because it loads the HTTP server.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from sidecar.web.serving import listen, own_hosts, serving

log = logging.getLogger("sidecar.care.scraping")

PATH: Final = "/metrics"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
POLICY: Final = "form-action 'none'"

_PURPOSE: Final = b"durable-stream metrics 1"


def bearer_of(token: str) -> str:
    """The bearer token for ``GET /metrics``: HMAC-SHA256 of its purpose, keyed with the home's token."""
    return hmac.new(token.encode(), _PURPOSE, hashlib.sha256).hexdigest()


def is_allowed(authorization: Sequence[str], bearer: str) -> bool:
    """Whether a request has exactly one ``Authorization`` header, with this bearer token. Takes constant time."""
    given = authorization[0] if len(authorization) == 1 else ""
    scheme, _, value = given.partition(" ")
    # Compare bytes, because ``compare_digest`` refuses text that is not ASCII.
    is_right = hmac.compare_digest(value.strip().encode("utf-8", "replace"), bearer.encode())
    return is_right and scheme.lower() == "bearer"


class Scraping:
    """A component: the server of ``[metrics]``. ``text`` returns the metrics; ``token`` is the home's."""

    def __init__(self, port: int, token: str, text: Callable[[], bytes]) -> None:
        self.port, self._bearer, self._text = port, bearer_of(token), text
        self._hosts: Collection[str] = ()
        self._refused, self._problem = 0, ""

    async def start(self, stack: AsyncExitStack) -> None:
        """See ``Component``. If the port is in use, everything else works."""
        try:
            listener = listen("127.0.0.1", self.port)
        except OSError as error:
            self._problem = f"127.0.0.1 port {self.port} cannot be used ({error.strerror or error})"
            log.error("the metrics are not served: %s [port-taken]", self._problem)
            return
        self.port = listener.getsockname()[1]
        self._hosts = own_hosts(self.port)
        await stack.enter_async_context(serving(self, listener, POLICY))

    def owes(self) -> bool:
        """Always false, because whoever scrapes comes again."""
        return False

    def status(self) -> dict[str, Any]:
        """``port``, ``refused`` (requests since the start), and ``problem``, which is empty while it listens."""
        return {"port": self.port, "refused": self._refused, "problem": self._problem}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer(Request(scope))
        self._refused += answer.status_code in (401, 403)
        await answer(scope, receive, send)

    def _answer(self, request: Request) -> Response:
        headers = request.headers
        if "origin" in headers:  # any Origin, even "null", means a browser
            return PlainTextResponse("Browsers are not allowed here.\n", 403)
        if headers.get("host", "").lower() not in self._hosts:  # DNS rebinding
            return PlainTextResponse("Unexpected Host.\n", 403)
        if not is_allowed(headers.getlist("authorization"), self._bearer):
            return PlainTextResponse("Unauthorized.\n", 401, {"WWW-Authenticate": "Bearer"})
        if request.url.path != PATH:
            return PlainTextResponse(f"There is only {PATH}.\n", 404)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("Only GET.\n", 405, {"Allow": "GET, HEAD"})
        return Response(self._text(), media_type=CONTENT_TYPE)
