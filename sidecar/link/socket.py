"""The client's WebSocket: what RFC 6455 requires of a client, without extensions.

The server uses the websockets package. A client does not import that package, because the import takes as long as a
short command. The other end is on this machine, so proxies, redirects and TLS do not occur.

::

    SocketError
    ├── Refused        HTTP answered, but not with a WebSocket; ``status`` is the HTTP status
    ├── NotWebSocket   the answer is not HTTP, or breaks the opening handshake
    └── Ended          the connection ended, or the peer broke the protocol
"""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha1
from typing import Final, Self

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""Fixed in RFC 6455 §1.3."""

_FINAL: Final = 0x80
_MASKED: Final = 0x80
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_NORMAL: Final = (1000).to_bytes(2)
"""The status code in the client's closing frame, which means that the work is done."""


class SocketError(Exception):
    """Root of this module's errors."""


class Refused(SocketError):
    """The peer answered with an HTTP status other than 101."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class NotWebSocket(SocketError):
    """The peer's answer to the opening handshake is not the answer of a WebSocket server."""


class Ended(SocketError):
    """The connection ended, so nothing can be sent or received."""


class ClientSocket:
    """An open WebSocket. One task receives at a time; any number may send."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, nonce: Callable[[], str], max_size: int
    ) -> None:
        self._reader, self._writer, self._max_size = reader, writer, max_size
        self._nonce = nonce
        self._closing = False

    @classmethod
    async def connect(cls, host: str, port: int, *, nonce: Callable[[], str], max_size: int) -> Self:
        """Connect and run the opening handshake. A message of more than ``max_size`` bytes ends the connection.

        ``nonce`` gives fresh random hex digits, for the handshake and the masks.

        Raises:
            OSError: nothing is listening.
            Refused, NotWebSocket: see these classes.
        """
        reader, writer = await asyncio.open_connection(host, port)
        socket = cls(reader, writer, nonce, max_size)
        try:
            await socket._shake_hands(f"{host}:{port}")
        except BaseException:
            socket.abort()
            raise
        return socket

    async def _shake_hands(self, where: str) -> None:
        key = b64encode(bytes.fromhex(self._nonce()[:32]))
        self._writer.write(
            f"GET / HTTP/1.1\r\nHost: {where}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key.decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        try:
            answer = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            raise NotWebSocket from None
        status, *headers = answer.split(b"\r\n")
        protocol, _, code = status.partition(b" ")
        if not protocol.startswith(b"HTTP/1.") or not code[:3].isdigit():
            raise NotWebSocket
        if code[:3] != b"101":
            raise Refused(int(code[:3]))
        # SHA-1 is not used for security here. The protocol requires it, to show that the peer speaks WebSocket.
        wanted = b64encode(sha1(key + _GUID, usedforsecurity=False).digest())
        fields = ((name.lower(), value.strip()) for name, _, value in (each.partition(b":") for each in headers))
        if dict(fields).get(b"sec-websocket-accept") != wanted:
            raise NotWebSocket

    async def send(self, text: str) -> None:
        """Send one message. Waits while the peer reads slowly.

        Raises:
            Ended: the connection ended.
        """
        if self._closing:
            raise Ended
        await self._write(_TEXT, text.encode())

    async def receive(self) -> bytes:
        """The next message. After a cancellation, only ``close`` and ``abort`` may be called.

        Raises:
            Ended: the connection ended.
        """
        message = bytearray()
        expected: tuple[int, ...] = (_TEXT, _BINARY)
        while True:
            opcode, final, data = await self._frame(self._max_size - len(message))
            if opcode == _PING:
                if not self._closing:
                    await self._write(_PONG, data)
            elif opcode == _CLOSE:
                await self._say_close(data[:2])
                self.abort()
                raise Ended
            elif opcode in expected:
                message += data
                if final:
                    return bytes(message)
                expected = (_CONTINUATION,)
            elif opcode != _PONG:
                raise self._broken()

    async def _frame(self, room: int) -> tuple[int, bool, bytes]:
        try:
            first, second = await self._reader.readexactly(2)
            opcode, final = first & 0x0F, bool(first & _FINAL)
            size = second & 0x7F
            is_control = opcode >= _CLOSE
            # Refuse masked frames and reserved bits, because a server masks nothing and no extension was negotiated.
            if first & 0x70 or second & _MASKED or (is_control and (size > 125 or not final)):
                raise self._broken()
            if size >= 126:
                size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8))
            if size > room and not is_control:
                raise self._broken()
            return opcode, final, await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            self.abort()
            raise Ended from None

    async def close(self, seconds: float) -> None:
        """Close the connection. The peer has ``seconds`` to answer the closing handshake. No task may be receiving.
        Idempotent."""
        if not self._writer.is_closing():
            with contextlib.suppress(Ended, TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._say_close(_NORMAL)
                    while True:
                        await self.receive()
        self.abort()

    def abort(self) -> None:
        """Drop the connection at once. Idempotent."""
        self._closing = True
        self._writer.transport.abort()

    async def _say_close(self, code: bytes) -> None:
        if not self._closing:
            self._closing = True
            await self._write(_CLOSE, code)

    async def _write(self, opcode: int, data: bytes) -> None:
        size = len(data)
        if size < 126:
            head = bytes((_FINAL | opcode, _MASKED | size))
        elif size < 1 << 16:
            head = bytes((_FINAL | opcode, _MASKED | 126)) + size.to_bytes(2)
        else:
            head = bytes((_FINAL | opcode, _MASKED | 127)) + size.to_bytes(8)
        mask = bytes.fromhex(self._nonce()[:8])
        self._writer.write(head + mask + _xor(data, mask))
        try:
            await self._writer.drain()
        except OSError:
            self.abort()
            raise Ended from None

    def _broken(self) -> Ended:
        self.abort()
        return Ended()


def _xor(data: bytes, mask: bytes) -> bytes:
    """``data`` masked as RFC 6455 §5.3 requires. The XOR of two large integers takes a fiftieth of the time of a
    loop."""
    size = len(data)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data) ^ int.from_bytes(repeated)).to_bytes(size)
