"""One websocket and its link: the sidecar's end of a single connection.

Only this file, ``server.py`` and ``client.py`` use the websockets package; errors of that package never leave these
files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from bridge.opencode.link.frames import ByeReason
from bridge.opencode.link.link import SidecarLink
from bridge.opencode.link.protocol import Closed, Event, State

MAX_PENDING_FRAMES: Final = 1024
"""Maximum number of frames that may wait for a peer; a slower reader is disconnected."""

WRITE_SECONDS: Final = 30.0
"""How long one frame may wait for a peer to read it."""

LEAVE_SECONDS: Final = 1.0
"""How many seconds a shim may take to read the bye and close; until then, the sidecar accepts the shim's hooks."""

_CLOSE_CODES: Final[dict[str, int]] = {"protocol": 1002, "draining": 1012, "upgrade": 1012}
_POLICY: Final = 1008


@dataclass(slots=True)
class Counters:
    """Counts of connections, refusals and errors since the start."""

    shims_opened: int = 0
    controls_opened: int = 0
    refused_origin: int = 0
    refused_host: int = 0
    refused_busy: int = 0
    refused_protocol: int = 0
    unproved_closed: int = 0
    failed_proofs: int = 0
    handshake_timeouts: int = 0
    protocol_errors: int = 0
    window_overruns: int = 0
    oversized_frames: int = 0
    slow_readers: int = 0
    replaced: int = 0
    repaired_values: int = 0
    handler_errors: int = 0


class Connection:
    """A connection and its link: reads events and writes what the link wants to send.

    The server makes one for the handshake, and then one of the peer's role, which goes on where that one stopped.
    """

    def __init__(self, socket: ServerConnection, link: SidecarLink, counters: Counters) -> None:
        self.socket, self.link, self.counters = socket, link, counters
        self.reason: str | None = None
        self._wake, self._sent = asyncio.Event(), asyncio.Event()
        self._code = 1000
        self._gone = False

    def wake(self) -> None:
        """Wake the writer. Frames and acks queued within one loop tick go out together."""
        self._wake.set()

    async def read(self) -> tuple[list[Event], int] | None:
        """The events of the next message and the message's size in bytes; ``None`` if the connection is gone."""
        try:
            message = await self.socket.recv(decode=False)
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == 1009:
                self.counters.oversized_frames += 1
            self._gone = True
            self.wake()
            return None
        return self.link.receive(message), len(message)

    async def flush(self) -> bool:
        try:
            for text in self.link.data_to_send():
                async with asyncio.timeout(WRITE_SECONDS):
                    await self.socket.send(text)
        except ConnectionClosed:
            return False
        except TimeoutError:
            self.counters.slow_readers += 1
            self.abort()
            return False
        return True

    async def write(self) -> None:
        """Keep sending everything that the link queues. When the link closes, close the connection."""
        try:
            while await self.flush() and self.link.state is not State.CLOSED and not self._gone:
                self._sent.set()
                await self._wake.wait()
                self._wake.clear()
        finally:
            self._gone = True
            self._sent.set()
        await self.socket.close(self._code)

    async def until_fewer(self, frames: int) -> None:
        while self.link.pending >= frames and not self._gone:
            self._sent.clear()
            await self._sent.wait()

    def bye(self, reason: ByeReason, code: int | None = None) -> None:
        """Say bye and close; returns at once."""
        self._part(reason, code, self.link.bye)

    def leave(self, reason: ByeReason) -> None:
        """Say bye and return at once. The connection ends when the peer closes it, or after ``LEAVE_SECONDS``."""
        if self._part(reason, None, self.link.leave):
            asyncio.get_running_loop().call_later(LEAVE_SECONDS, self.bye, reason)

    def _part(self, reason: ByeReason, code: int | None, say: Callable[[ByeReason], None]) -> bool:
        self.wake()
        if self.link.state is State.CLOSED:
            return False
        self.reason = reason
        self._code = code or _CLOSE_CODES.get(reason, _POLICY)
        say(reason)
        return True

    def noted(self, event: Closed) -> None:
        """Take note of the link's end: keep the reason, count errors, and wake the writer."""
        self.reason = self.reason or event.reason
        if not event.by_peer:
            self._code = _CLOSE_CODES.get(event.reason, _POLICY)
            if event.reason == "window":
                self.counters.window_overruns += 1
            elif event.reason not in ("auth", "unsupported"):
                self.counters.protocol_errors += 1
        self.wake()

    def abort(self) -> None:
        self.socket.transport.abort()

    def crowded(self) -> bool:
        """True if the peer read too slowly and was disconnected."""
        if self.link.pending < MAX_PENDING_FRAMES:
            return False
        self.counters.slow_readers += 1
        self.abort()
        return True
