"""Who may open the page: whoever got a link from the command line, in a browser on this machine.

A link works once and becomes a cookie. Other pages in the same browser, other names for this machine (DNS rebinding)
and other users are refused before anything is read.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sidecar.web.serving import own_hosts

LOGIN: Final = "/login/"

_USED: Final = "This link was used before, or is wrong. Run `durable-stream inspect` again for a new one.\n"
_NO_LOGIN: Final = (
    "Open the link that `durable-stream inspect` printed. It works once; run the command for a new one.\n"
)


class Access:
    """ASGI middleware around the whole page.

    ``nonce`` returns 64 random hex characters. ``port`` is the port on which the page is served.
    """

    def __init__(self, app: ASGIApp, nonce: Callable[[], str], port: int) -> None:
        self._app, self._nonce, self._port = app, nonce, port
        self._links: set[str] = set()
        self._session = nonce()
        self.cookie = f"durable-stream-{port}"
        self._hosts = own_hosts(port)

    def new_link(self, path: str = "/") -> str:
        """A link that logs one browser in, once, and leads to ``path``."""
        secret = self._nonce()
        self._links.add(secret)
        return f"http://127.0.0.1:{self._port}{LOGIN}{secret}?to={path}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        if scope["type"] != "http":
            return

        answer = self._judge(Request(scope))
        await (answer or self._app)(scope, receive, send)

    def _judge(self, request: Request) -> Response | None:
        """The answer to a request that does not reach the page; ``None`` for one that does."""
        host = request.headers.get("host", "")
        if host not in self._hosts:
            return PlainTextResponse("This page answers only to 127.0.0.1.\n", 421)
        origin = request.headers.get("origin")
        is_own = origin is None or origin == f"http://{host}"
        site = request.headers.get("sec-fetch-site", "none")
        if (
            not is_own
            or site not in ("none", "same-origin")
            or (origin is None and request.method not in ("GET", "HEAD"))
        ):
            return PlainTextResponse("Another page must not ask this one.\n", 403)
        if request.url.path.startswith(LOGIN):
            return self._log_in(request)
        if not self._knows(request):
            return PlainTextResponse(_NO_LOGIN, 401)
        return None

    def _log_in(self, request: Request) -> Response:
        given = request.url.path.removeprefix(LOGIN)
        known = next(
            (each for each in self._links if hmac.compare_digest(each, given.encode("ascii", "replace").decode())), None
        )
        if known is None:
            # A link that is opened twice in the browser that it logged in leads there again.
            return self._led(request) if self._knows(request) else PlainTextResponse(_USED, 401)
        self._links.discard(known)
        answer = self._led(request)
        answer.set_cookie(self.cookie, self._session, path="/", httponly=True, samesite="strict")
        return answer

    @staticmethod
    def _led(request: Request) -> Response:
        to = request.query_params.get("to", "/")
        return RedirectResponse(to if to.startswith("/") and not to.startswith(("//", "/\\")) else "/", 303)

    def _knows(self, request: Request) -> bool:
        try:
            morsel = SimpleCookie(request.headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        given = morsel.value if morsel is not None else ""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._session.encode())
