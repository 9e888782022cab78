"""The HTTP server behind every page: an ASGI application on one address, with the same headers and limits for all.

Only this file imports uvicorn, and uses it as a parser: uvicorn's own server takes the process's signals. Import this
file only to serve a page, because loading it takes a while.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

log = logging.getLogger("sidecar.web")

MOST_CONNECTIONS: Final = 64
"""How many connections may be open. One more closes the oldest that waits for its peer, so that silent ones shut nobody
out."""

PEER_SECONDS: Final = 10.0
"""How long a peer may take to send a whole request, and to take what was sent."""

MOST_HEAD: Final = 16 * 1024
MOST_BODY: Final = 64 * 1024
"""The most bytes of a request before its body, and of its body."""

END_SECONDS: Final = 1.0
"""How long requests may go on after the last connection was closed."""

HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def listen(host: str, port: int) -> socket.socket:
    """A listening socket for ``serving``; a ``port`` of 0 takes any free port.

    Raises:
        OSError: the address is not of this machine, or the port is in use.
    """
    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    # Its connections inherit this; asyncio does not set it for them. Without it, the body of an answer would wait until
    # the peer has acknowledged the head, for up to 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def own_hosts(port: int) -> frozenset[str]:
    """The values of ``Host`` that name a port of the loopback interface, and no other name that leads there."""
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))


@asynccontextmanager
async def serving(app: ASGIApp, listener: socket.socket, policy: str) -> AsyncIterator[None]:
    """Serve ``app``; at the end, close every connection.

    ``policy`` is what its pages may load and send, in the words of a content-security-policy; all else is forbidden.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its warnings are about what strangers send
    state = _State()
    rules = f"default-src 'none'; {policy}; frame-ancestors 'none'; base-uri 'none'"
    headers = {**HEADERS, "content-security-policy": rules}
    config = Config(
        _Guarded(app, [(name.encode(), value.encode()) for name, value in headers.items()]),
        http=_Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MOST_HEAD,
    )
    config.load()
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(config, state, {}), sock=listener)
    try:
        yield
    finally:
        server.close()
        for connection in state.connections:
            connection.transport.abort()
        if state.tasks:
            _, late = await asyncio.wait(state.tasks, timeout=END_SECONDS)
            for task in late:
                task.cancel()


async def body_of(request: Request) -> bytes | None:
    """A request's body; ``None`` if it is longer than ``MOST_BODY``."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY:
            return None
    return body


class _Guarded:
    """Adds the headers, and logs errors without their text, which may be private."""

    def __init__(self, app: ASGIApp, headers: list[tuple[bytes, bytes]]) -> None:
        self._app, self._headers = app, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers]
            await send(message)

        try:
            await self._app(scope, receive, send_guarded)
        except Exception as error:  # noqa: BLE001 - the next request is served
            log.error("a page could not be served: %s", type(error).__name__)


class _State(ServerState):
    """All connections of one server."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[_Connection, asyncio.TimerHandle] = {}
        """The connections that wait for their peers, oldest first, and what closes them."""


class _Connection(H11Protocol):
    """A connection that waits for its peer only so long, and not at all if another one needs its place.

    It waits for its peer unless the server works on a whole request and the peer takes what is sent.
    """

    server_state: _State

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()
        if len(self.connections) > MOST_CONNECTIONS:
            next(iter(self.server_state.waiting))._give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._wait_no_more()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look()

    def _look(self) -> None:
        is_working = self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        if is_working and not self.flow.write_paused:
            self._wait_no_more()
        elif self not in self.server_state.waiting:
            self.server_state.waiting[self] = self.loop.call_later(PEER_SECONDS, self._give_up)

    def _wait_no_more(self) -> None:
        if (timer := self.server_state.waiting.pop(self, None)) is not None:
            timer.cancel()

    def _give_up(self) -> None:
        self._wait_no_more()
        self.transport.abort()
