"""The client's own WebSocket, against the websockets package as the server, and against bytes that no server sends."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha1

import pytest
from websockets.asyncio.server import Request, Response, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from sidecar.link.socket import ClientSocket, Ended, NotWebSocket, Refused, SocketError
from streams.identity import system_identity

HANG = 20.0
NONCE = system_identity().nonce
MAX = 4 << 20
SIZES = (0, 1, 3, 125, 126, 127, 65535, 65536, 3_000_001)


@asynccontextmanager
async def server(handler: Callable[[ServerConnection], Awaitable[None]]) -> AsyncIterator[int]:
    async with asyncio.timeout(HANG), serve(handler, "127.0.0.1", 0, compression=None, max_size=MAX) as serving:
        yield next(iter(serving.sockets)).getsockname()[1]


@asynccontextmanager
async def raw(said: bytes) -> AsyncIterator[int]:
    """A peer that opens as RFC 6455 says, then says ``said`` and waits."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        key = next(line.split(b": ")[1] for line in asked.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key"))
        accept = b64encode(sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUPGRADE: websocket\r\nSEC-WEBSOCKET-ACCEPT:" + accept + b"\r\n\r\n"
        )
        writer.write(said)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        over.set()

    over = asyncio.Event()
    async with asyncio.timeout(HANG), await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1]
        await over.wait()


@asynccontextmanager
async def connected(port: int, max_size: int = MAX) -> AsyncIterator[ClientSocket]:
    socket = await ClientSocket.connect("127.0.0.1", port, nonce=NONCE, max_size=max_size)
    try:
        yield socket
    finally:
        await socket.close(HANG)


async def test_messages_of_every_length_cross_both_ways() -> None:
    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            assert isinstance(message, str)
            await connection.send(message)

    async with server(echo) as port, connected(port) as socket:
        for size in SIZES:
            text = ("aä€😀"[size % 4] * size).encode()[:size].decode(errors="ignore")
            await socket.send(text)
            assert await socket.receive() == text.encode()


async def test_fragments_are_joined_and_pings_answered_between_them() -> None:
    async def talk(connection: ServerConnection) -> None:
        async def pieces() -> AsyncIterator[str]:
            yield "one "
            await (await connection.ping())  # until the pong is here
            yield "two"

        await connection.send(pieces())
        await connection.recv()

    async with server(talk) as port, connected(port) as socket:
        assert await socket.receive() == b"one two"
        await socket.send("seen")


async def test_closing_is_a_handshake_and_may_be_repeated() -> None:
    codes: asyncio.Queue[int | None] = asyncio.Queue()

    async def wait(connection: ServerConnection) -> None:
        await connection.wait_closed()
        codes.put_nowait(connection.close_code)

    async with server(wait) as port:
        socket = await ClientSocket.connect("127.0.0.1", port, nonce=NONCE, max_size=MAX)
        await socket.close(HANG)
        await socket.close(HANG)
        assert await codes.get() == 1000
        with pytest.raises(Ended):
            await socket.send("late")


async def test_a_peer_that_closes_gets_its_answer() -> None:
    codes: asyncio.Queue[int | None] = asyncio.Queue()

    async def leave(connection: ServerConnection) -> None:
        await connection.close(4001, "enough")
        codes.put_nowait(connection.close_code)

    async with server(leave) as port, connected(port) as socket:
        with pytest.raises(Ended):
            await socket.receive()
        assert await codes.get() == 4001


async def test_a_peer_that_does_not_answer_the_closing_handshake_is_dropped() -> None:
    async with raw(b"") as port:
        socket = await ClientSocket.connect("127.0.0.1", port, nonce=NONCE, max_size=MAX)
        await socket.close(0.01)
        with pytest.raises(Ended):
            await socket.send("late")


async def test_a_message_over_the_limit_ends_the_connection() -> None:
    async def flood(connection: ServerConnection) -> None:
        with pytest.raises(ConnectionClosed):
            await connection.send("x" * 100)
            await connection.recv()

    async with server(flood) as port, connected(port, max_size=100) as socket:
        assert len(await socket.receive()) == 100
    async with server(flood) as port, connected(port, max_size=99) as socket:
        with pytest.raises(Ended):
            await socket.receive()


@pytest.mark.parametrize(
    "said",
    [
        b"\xc1\x01a",  # a reserved bit
        b"\x81\x81\0\0\0\0a",  # masked
        b"\x83\x01a",  # an unknown opcode
        b"\x80\x01a",  # the end of a message that never began
        b"\x01\x01a\x81\x01b",  # a message within another
        b"\x09\x01a",  # a control frame in pieces
        b"\x89\x7e\x00\x7e" + b"a" * 126,  # a long control frame
        b"\x01\x64" + b"a" * 100 + b"\x80\x01b",  # pieces that are too long together
        b"\x81\x7f" + b"\xff" * 8,
    ],
)
async def test_frames_that_break_the_protocol_end_the_connection(said: bytes) -> None:
    async with raw(said) as port, connected(port, max_size=100) as socket:
        with pytest.raises(Ended):
            await socket.receive()
        with pytest.raises(Ended):
            await socket.send("more")


async def test_another_status_is_refused() -> None:
    def refuse(connection: ServerConnection, request: Request) -> Response:
        return connection.respond(403, "")

    async def never(connection: ServerConnection) -> None:
        raise AssertionError

    async with serve(never, "127.0.0.1", 0, process_request=refuse) as serving:
        port = next(iter(serving.sockets)).getsockname()[1]
        with pytest.raises(Refused) as refused:
            await ClientSocket.connect("127.0.0.1", port, nonce=NONCE, max_size=MAX)
    assert refused.value.status == 403


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 what\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: bm8=\r\n\r\n",
        b"x" * 100_000,
    ],
)
async def test_what_does_not_open_a_websocket_is_none(said: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async with asyncio.timeout(HANG), await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        with pytest.raises(NotWebSocket) as failed:
            await ClientSocket.connect("127.0.0.1", listening.sockets[0].getsockname()[1], nonce=NONCE, max_size=MAX)
    assert isinstance(failed.value, SocketError)
