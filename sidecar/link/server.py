"""The listening side of the link: accepts websockets, and calls a ``Handler``.

Only this file and ``connection.py`` import the websockets package, whose errors never leave these two files. The
protocol itself is ``bridge/opencode/link/link.py``; this file handles sockets, tasks, limits and time.

No action of a peer may stop the server or another link. Connections are limited. Before the proof, the limits are on
the number of connections, their time and the size of their frames. After the proof, the limits are on the size of
frames, the bytes that wait for the handler, and the frames that wait for the peer. Proved and unproved connections have
separate limits, so unproved connections never take the place of authenticated ones.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from socket import AF_INET
from typing import Final

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response as HttpResponse
from websockets.protocol import State as HttpState

from bridge.opencode.link.frames import MAX_FRAME_BYTES, ByeReason, ShimIdentity
from bridge.opencode.link.link import SidecarLink
from bridge.opencode.link.protocol import (
    CallError,
    Closed,
    Identified,
    Refused,
    RequestError,
)
from bridge.opencode.link.window import DEFAULT_WINDOW
from sidecar.link import local
from sidecar.link.connection import Connection, Counters
from sidecar.link.links import INTERNAL_ERROR, AckMemory, ControlConnection, Handler, ShimConnection
from sidecar.processes import pid_here, space_of

__all__ = ["CallError", "Counters", "Handler", "LinkServer", "RequestError", "ShimConnection"]

log = logging.getLogger("sidecar.link")

MAX_UNPROVED_BYTES: Final = 64 * 1024
"""Maximum size of a frame from an unauthenticated peer."""

PING_SECONDS: Final = 10.0
"""How often a silent peer is pinged, and how long the answer may take. So a suspended process is noticed within twice
this time. The system reports a dead process at once."""

SETTLE_SECONDS: Final = 0.5
"""How long draining waits for accepted items to be acknowledged before it says bye."""

CLOSE_SECONDS: Final = 2.0
"""How long a peer may take to answer a closing handshake."""

FAILED_PROOFS: Final = 10
FAILED_PROOF_SECONDS: Final = 60.0
"""After this many wrong proofs in this many seconds, further wrong proofs get no answer.

Correct proofs are never slowed down, so a failing peer cannot lock anybody out.
"""

FLOOD_LOG_SECONDS: Final = 60.0
"""How often the log mentions unproved connections that were closed to make room."""

WAITING_CONNECTIONS: Final = 1024
"""How many connections the system may queue before the sidecar accepts them. Further connections wait in the system,
where the sidecar does not see them."""

_TRY_LATER: Final = 1013


class LinkServer:
    """Listens on loopback for shims, and on the socket of the directory ``home`` for the command line.

    ``nonce`` returns 64 fresh hex characters per call. ``boot`` identifies this run of the sidecar. A ``port`` of 0
    takes any free port.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        token: str,
        nonce: Callable[[], str],
        boot: str,
        version: str,
        port: int = 0,
        home: Path | None = None,
        window: int = DEFAULT_WINDOW,
        max_connections: int = 256,
        handshake_seconds: float = 5.0,
    ) -> None:
        self.counters = Counters()
        self.port, self._home = port, home
        self._handler = handler
        self._token, self._nonce, self._boot, self._version = token, nonce, boot, version
        self._window, self._max_connections, self._handshake_seconds = window, max_connections, handshake_seconds
        self._servers: list[Server] = []
        self._unproved: dict[ServerConnection, None] = {}  # a dict, because it keeps the order of arrival
        self._flood_told = -math.inf
        self._connections: set[Connection] = set()  # only authenticated connections
        self._links: list[ShimConnection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._memory = AckMemory()
        self._failures: deque[float] = deque(maxlen=FAILED_PROOFS)
        self._draining = False

    @property
    def links(self) -> tuple[ShimConnection, ...]:
        """The welcomed shims, in the order in which they connected."""
        return tuple(self._links)

    @property
    def connections(self) -> int:
        """The number of proved connections, of shims and command lines together."""
        return len(self._connections)

    async def start(self) -> int:
        """Listen; return the port.

        Raises:
            OSError: the port is taken.
        """
        logger = logging.getLogger("sidecar.link.websockets")
        logger.setLevel(logging.ERROR)  # the library's DEBUG lines contain frames, which contain the user's text
        serving = partial(
            serve,
            self._connection,
            backlog=WAITING_CONNECTIONS,
            compression=None,
            process_request=self._admit,
            server_header=None,
            open_timeout=self._handshake_seconds,
            close_timeout=CLOSE_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=PING_SECONDS,
            max_size=MAX_UNPROVED_BYTES,
            max_queue=4,
            write_limit=256 * 1024,
            logger=logger,
            create_connection=_bounded(self),
        )
        self._servers.append(await serving(host="127.0.0.1", port=self.port))
        self.port = next(iter(self._servers[0].sockets)).getsockname()[1]
        if self._home is not None:
            try:
                self._servers.append(await serving(sock=local.listening(self._home)))
            except OSError as error:
                log.warning("the command line cannot answer for a person, because %s/sock fails: %s", self._home, error)
        return self.port

    async def drain(self, grace_seconds: float = 10.0, *, reason: ByeReason = "draining") -> None:
        """Stop listening, acknowledge what is finished, say bye to every link, and wait for their handlers.

        Work that a handler has not finished after ``grace_seconds`` is cancelled;
        the shims keep what was not acknowledged. ``reason`` is ``draining``, or
        ``upgrade`` to make room for a newer sidecar. Idempotent.
        """
        self._draining = True
        servers, self._servers = self._servers, []
        if not servers:
            return
        for server in servers:
            server.close(close_connections=False)
        if self._home is not None:
            local.remove(self._home)
        await self._settle(min(SETTLE_SECONDS, grace_seconds))
        for connection in self._connections:
            connection.leave(reason)
        for socket in list(self._unproved):
            socket.transport.abort()  # a peer that has not proved itself gets no close handshake
        tasks = set(self._tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        for server in servers:
            await server.wait_closed()

    async def _settle(self, seconds: float) -> None:
        """Send the acks of what was accepted, so that the exit of the sidecar causes no resending."""
        if self._links:
            waiting = [asyncio.create_task(link.settled()) for link in self._links]
            _, late = await asyncio.wait(waiting, timeout=seconds)
            for task in late:
                task.cancel()

    # --- accepting connections ---

    def _admit(self, socket: ServerConnection, request: HttpRequest) -> HttpResponse | None:
        if socket.protocol.close_expected():
            # An invalid frame came with the request. The library has ended the connection, but still tries to answer.
            socket.protocol.state = HttpState.CLOSING
            return None
        headers = request.headers
        if headers.get_all("Origin"):  # any Origin, even "null", means a browser
            self.counters.refused_origin += 1
            return socket.respond(HTTPStatus.FORBIDDEN, "Browsers are not allowed to connect.\n")
        hosts = [host.lower() for host in headers.get_all("Host")]
        is_local = socket.transport.get_extra_info("socket").family != AF_INET
        if not is_local and (len(hosts) != 1 or hosts[0] not in {f"{name}:{self.port}" for name in _HOSTS}):
            self.counters.refused_host += 1  # another host name points to this address (DNS rebinding)
            return socket.respond(HTTPStatus.FORBIDDEN, "Unexpected Host.\n")
        if len(self._connections) >= self._max_connections or self._draining:
            self.counters.refused_busy += 1
            return socket.respond(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections.\n")
        return None

    def _arrived(self, socket: ServerConnection) -> None:
        self._unproved[socket] = None
        if len(self._unproved) <= self._max_connections:
            return
        oldest = next(iter(self._unproved))
        del self._unproved[oldest]
        oldest.transport.abort()
        self.counters.unproved_closed += 1
        now = asyncio.get_running_loop().time()
        if now - self._flood_told >= FLOOD_LOG_SECONDS:
            self._flood_told = now
            log.warning(
                "more than %d connections are waiting to authenticate; closing the oldest (%d closed since the start)",
                self._max_connections,
                self.counters.unproved_closed,
            )

    async def _connection(self, socket: ServerConnection) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = SidecarLink(
            token=self._token,
            port=self.port,
            nonce=self._nonce(),
            boot=self._boot,
            version=self._version,
            window=self._window,
        )
        first = Connection(socket, link, self.counters)
        made: Connection = first
        try:
            identified = await self._handshake(first)
            if identified is None:
                return
            here = await _pid_here(identified.shim) if identified.shim is not None else 0
            self._unproved.pop(socket, None)
            if len(self._connections) >= self._max_connections or self._draining:
                self.counters.refused_busy += 1
                await socket.close(_TRY_LATER)
                return
            _allow(socket, MAX_FRAME_BYTES)
            if identified.shim is None:
                self.counters.controls_opened += 1
                local.PEER.set(local.pid_of(socket.transport.get_extra_info("socket")))
                self._connections.add(made := ControlConnection(first, self._handler_failed))
                await made.serve(self._handler)
            else:
                self.counters.shims_opened += 1
                shim = ShimConnection(first, identified.shim, here, self._memory, self._handler_failed)
                self._connections.add(made := shim)
                await self._serve_shim(shim)
        except ConnectionClosed:
            log.debug("a connection closed early")
        finally:
            self._connections.discard(made)
            self._tasks.discard(task)

    async def _handshake(self, connection: Connection) -> Identified | None:
        try:
            async with asyncio.timeout(self._handshake_seconds):
                while (got := await connection.read()) is not None:
                    for event in got[0]:
                        if isinstance(event, Identified):
                            return event
                        if isinstance(event, Refused):
                            self._refused(event)
                        if isinstance(event, Closed):
                            connection.noted(event)
                            if event.reason == "auth" and self._proof_failed():
                                await connection.socket.wait_closed()
                            await connection.write()
                            return None
                    if not await connection.flush():
                        return None
        except TimeoutError:
            self.counters.handshake_timeouts += 1
            connection.abort()
        return None

    def _refused(self, peer: Refused) -> None:
        self.counters.refused_protocol += 1
        try:
            self._handler.refused(peer)
        except Exception as error:  # noqa: BLE001 - whatever the handler did, other links continue
            self._handler_failed("refused", error)

    def _proof_failed(self) -> bool:
        """Count a wrong proof; true if there were so many recently that this one gets no answer."""
        self.counters.failed_proofs += 1
        now = asyncio.get_running_loop().time()
        often = len(self._failures) == FAILED_PROOFS and now - self._failures[0] < FAILED_PROOF_SECONDS
        self._failures.append(now)
        return often

    # --- shims ---

    async def _serve_shim(self, link: ShimConnection) -> None:
        for other in self.links:
            if other.key == link.key and other.is_open:
                # The shim must have given up its old link, because it has connected again.
                self.counters.replaced += 1
                other.bye("replaced")
        try:
            await self._handler.opened(link)
        except Exception as error:  # noqa: BLE001 - whatever the handler did, other links continue
            self._handler_failed("opened", error)
            link.end()
            await link.socket.close(INTERNAL_ERROR)
            return
        self._links.append(link)
        try:
            await link.serve(self._handler)
        except Exception as error:  # noqa: BLE001 - as above (Handler.lossy is called by the reader)
            self._handler_failed("lossy", error)
            await link.socket.close(INTERNAL_ERROR)
        finally:
            self._links.remove(link)
            try:
                await self._handler.closed(link)
            except Exception as error:  # noqa: BLE001 - as above
                self._handler_failed("closed", error)

    def _handler_failed(self, where: str, error: Exception) -> None:
        self.counters.handler_errors += 1
        # Log only the error's type, because its text may contain payload, which must not reach sidecar.log.
        log.error("the handler's %s failed with %s; closing that link", where, type(error).__name__)


_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")


def _bounded(owner: LinkServer) -> type[ServerConnection]:
    """Returns a connection class whose connections are counted from their first byte.

    ``process_request`` would count too late, because it sees only peers that have sent a whole request.
    """

    class Bounded(ServerConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            owner._arrived(self)

        def connection_lost(self, exc: Exception | None) -> None:
            owner._unproved.pop(self, None)
            super().connection_lost(exc)

    return Bounded


def _allow(socket: ServerConnection, size: int) -> None:
    """Increase a proved peer's frame limit, for which the library has no function."""
    socket.protocol.max_message_size = size


async def _pid_here(identity: ShimIdentity) -> int:
    """The pid of a plugin's process in the sidecar's pid namespace; its own pid if that cannot be found."""
    if identity.pid_space in ("", space_of("pid")):
        return identity.pid
    return await asyncio.to_thread(pid_here, identity.pid, identity.pid_space) or identity.pid
