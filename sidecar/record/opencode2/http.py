"""A small HTTP client for a service on loopback: JSON answers, and streams of ``data:`` lines.

Each request has its own connection, which on loopback costs less than managing a shared connection.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import orjson

from sidecar.record.opencode2.registration import Registration, check_listener

ANSWER_SECONDS: Final = 30.0
"""How long the service may take to begin or to continue an answer."""

WHOLE_SECONDS: Final = 120.0
"""How long a whole answer may take, however steadily it arrives."""

SILENCE_SECONDS: Final = 45.0
"""How long an event stream may be silent. The service sends a comment every 15 s."""

MAX_BYTES: Final = 256 * 1024 * 1024
"""Maximum size, in bytes, of an answer and of a line of a stream."""

_HEAD_BYTES: Final = 64 * 1024


class ServiceGone(Exception):
    """The service did not answer, or its answer was unreadable; it has probably stopped or is stopping."""


class ServiceError(Exception):
    """The service refused a request with the HTTP status ``status``."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class ServiceClient:
    """Sends requests to one service. Cancelling a request closes its connection."""

    def __init__(self, registration: Registration) -> None:
        self._service = registration
        self.process = registration.id
        token = b64encode(f"opencode:{registration.password}".encode()).decode()
        host = f"[{registration.host}]" if ":" in registration.host else registration.host
        self._head = (
            f"Host: {host}:{registration.port}\r\nAuthorization: Basic {token}\r\n"
            "Accept: application/json, text/event-stream\r\nConnection: close\r\n\r\n"
        )

    async def get(self, path: str) -> Any:
        """The decoded answer to a ``GET``; ``None`` if the answer is empty.

        Raises:
            ServiceError: the status is not 200.
            ServiceGone: the answer is incomplete or did not arrive.
        """
        return await self._answer("GET", path)

    async def _answer(self, method: str, path: str, sent: bytes = b"") -> Any:
        async with self._open(path, method, sent) as body:
            content = bytearray()
            try:
                async with asyncio.timeout(WHOLE_SECONDS):
                    async for piece in _limited(body, ANSWER_SECONDS):
                        content += piece
                        if len(content) > MAX_BYTES:
                            raise ServiceGone("the answer is too large")
            except TimeoutError:
                raise ServiceGone("slow") from None
        if not content:
            return None
        try:
            return orjson.loads(content)
        except ValueError:
            raise ServiceGone("the answer is not JSON") from None

    async def send(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded answer to a request with a JSON body or no body; ``None`` if the answer is empty. Raises the same
        errors as ``get``.
        """
        return await self._answer(method, path, b"" if body is None else orjson.dumps(body))

    async def stream(self, path: str, silence: float = ANSWER_SECONDS) -> AsyncGenerator[Any, None]:
        """The decoded ``data:`` lines of an answer, until it ends. Lines that are not JSON are left out.

        Raises:
            ServiceError: the status is not 200.
            ServiceGone: the connection broke, or nothing arrived for ``silence`` seconds.
        """
        async with self._open(path) as body:
            begun: list[bytes] = []  # the pieces of a line whose end has not arrived
            size = 0
            async for piece in _limited(body, silence):
                *ended, rest = piece.split(b"\n")
                for end in ended:
                    line = b"".join((*begun, end))
                    begun, size = [], 0
                    if line.startswith(b"data:"):
                        with suppress(ValueError):
                            yield orjson.loads(line.removeprefix(b"data:"))
                begun.append(rest)
                size += len(rest)
                if size > MAX_BYTES:
                    raise ServiceGone("a line is too long")

    @asynccontextmanager
    async def _open(self, path: str, method: str = "GET", sent: bytes = b"") -> AsyncIterator[AsyncIterator[bytes]]:
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await asyncio.to_thread(check_listener, self._service.port)
                reader, writer = await asyncio.open_connection(
                    self._service.host, self._service.port, limit=_HEAD_BYTES
                )
                about = f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n" if method != "GET" else ""
                writer.write(f"{method} {path} HTTP/1.1\r\n{about}{self._head}".encode() + sent)
                await writer.drain()
                status, headers = await _read_head(reader)
            if status not in (200, 201, 204):
                raise ServiceError(status)
            yield _body(reader, headers)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise ServiceGone(type(error).__name__) from None
        finally:
            if writer is not None:
                writer.transport.abort()  # abort instead of close, because nothing is left to send


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    version, status, *_ = first.split(" ", 2)
    if not version.startswith("HTTP/1."):
        raise ValueError("not HTTP")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(status), headers


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while True:
            line = await reader.readline()
            if not line:
                raise ServiceGone("the connection ended")
            size = int(line.split(b";")[0], 16)
            if size == 0:
                return
            if size > MAX_BYTES:
                raise ServiceGone("a chunk is too large")
            yield await reader.readexactly(size)
            await reader.readexactly(2)
    left = int(headers["content-length"]) if "content-length" in headers else None
    while left is None or left > 0:
        piece = await reader.read(_HEAD_BYTES if left is None else min(_HEAD_BYTES, left))
        if not piece:
            if left:
                raise ValueError("cut off")
            return
        left = None if left is None else left - len(piece)
        yield piece


async def _limited(pieces: AsyncIterator[bytes], seconds: float) -> AsyncIterator[bytes]:
    """Yield the pieces, as long as each piece arrives within ``seconds``."""
    while True:
        try:
            async with asyncio.timeout(seconds):
                piece = await anext(pieces, None)
        except TimeoutError:
            raise ServiceGone("silent") from None
        if piece is None:
            return
        yield piece
