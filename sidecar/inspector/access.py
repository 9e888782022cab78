"""Who may ask the page's server for something recorded: whoever has its link, in a browser on this machine.

The link's secret stands behind the ``#``, which no browser sends. The page keeps it for its own address, with the port,
and sends it as a header; a cookie would go to every server on this machine. Other pages in the same browser, other
names for this machine (DNS rebinding) and other users are refused before anything is read.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sidecar.web.serving import own_hosts

_NO_LINK: Final = "Open the link that `durable-stream inspect` printed. While it is open, other tabs need no link.\n"


class Access:
    """ASGI middleware around the whole page.

    ``nonce`` returns 64 random hex characters. ``port`` is the port on which the page is served.
    """

    def __init__(self, app: ASGIApp, nonce: Callable[[], str], port: int) -> None:
        self._app, self._port = app, port
        self._secret = nonce()
        self._hosts = own_hosts(port)

    def link(self, path: str = "/") -> str:
        """The link that opens ``path``."""
        return f"http://127.0.0.1:{self._port}{quote(path)}#{self._secret}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        if scope["type"] != "http":
            return

        answer = self._judge(Request(scope))
        await (answer or self._app)(scope, receive, send)

    def _judge(self, request: Request) -> Response | None:
        """The answer to a request that does not reach the page; ``None`` for one that does."""
        headers = request.headers
        host = headers.get("host", "")
        if host not in self._hosts:
            return PlainTextResponse("This page answers only to 127.0.0.1.\n", 421)
        origin = headers.get("origin")
        is_reading = request.method in ("GET", "HEAD")
        is_own = is_reading if origin is None else origin == f"http://{host}"
        is_page = not request.url.path.startswith("/api/")  # the same for everybody, without anything recorded
        is_led = is_page and is_reading and headers.get("sec-fetch-mode") == "navigate"
        if not is_own or not (is_led or headers.get("sec-fetch-site", "none") in ("none", "same-origin")):
            return PlainTextResponse("Another page must not ask this one.\n", 403)
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if not is_page and not hmac.compare_digest(given.encode("utf-8", "replace"), self._secret.encode()):
            return PlainTextResponse(_NO_LINK, 401)
        return None
