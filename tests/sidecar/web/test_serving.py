"""The HTTP server of every page: what it says with each answer, and peers that send or read too slowly."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from sidecar.web import serving as module
from sidecar.web.serving import HEADERS, MOST_CONNECTIONS, body_of, listen, serving

HEAD = b"Host: x\r\n\r\n"
Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def hello(request: Request) -> Response:
    body = await body_of(request)
    return PlainTextResponse(b"hello" if body is not None else b"too large")


async def fails(request: Request) -> Response:
    raise KeyError("sk-secret-1")


async def endless(request: Request) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"begun"
        try:
            while request.url.query:
                yield b"a" * 65536
                await asyncio.sleep(0)
            await asyncio.Event().wait()
        finally:
            request.app.state.ended.set()

    return StreamingResponse(chunks())


@asynccontextmanager
async def running(ended: asyncio.Event | None = None) -> AsyncIterator[int]:
    routes = [
        Route("/", hello, methods=["GET", "POST"]),
        Route("/fails", fails),
        Route("/endless", endless),
    ]
    app = Starlette(routes=routes)
    app.state.ended = ended or asyncio.Event()
    listener = listen("127.0.0.1", 0)
    async with serving(app, listener, "style-src 'self'"):
        yield listener.getsockname()[1]


async def say(port: int, raw: bytes) -> Peer:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    return reader, writer


async def ended(peer: Peer) -> None:
    """Wait until the server has closed the connection."""
    try:
        async with asyncio.timeout(20):
            while await peer[0].read(65536):
                pass
    except ConnectionError:
        return
    finally:
        peer[1].close()


@pytest.mark.parametrize("path", [b"/", b"/fails", b"/nothing"])
async def test_every_answer_has_the_headers(path: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with running() as port:
        reader, writer = await say(port, b"GET " + path + b" HTTP/1.1\r\nConnection: close\r\n" + HEAD)
        answer = (await reader.read()).decode()
        writer.close()
    for name, value in HEADERS.items():
        assert f"\r\n{name}: {value}\r\n" in answer
    assert "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'\r\n" in answer
    assert "secret" not in answer + caplog.text


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"GET / HT",
        b"POST / HTTP/1.1\r\nContent-Length: 9\r\n" + HEAD + b"a",
        b"GET / HTTP/1.1\r\n" + HEAD,
        b"GET / HTTP/1.1\r\n" + HEAD + b"GET / HT",
    ],
)
async def test_a_peer_that_sends_too_slowly_is_cut_off(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PEER_SECONDS", 0.1)
    async with running() as port:
        await ended(await say(port, raw))


async def test_a_peer_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PEER_SECONDS", 0.1)
    over = asyncio.Event()
    async with running(over) as port:
        _, writer = await say(port, b"GET /endless?full HTTP/1.1\r\n" + HEAD)
        await asyncio.wait_for(over.wait(), 20)
        writer.transport.abort()


async def test_only_those_that_wait_make_room_and_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as port:
        followed = await say(port, b"GET /endless HTTP/1.1\r\n" + HEAD)
        await followed[0].readuntil(b"begun")
        silent = [await say(port, b"") for _ in range(MOST_CONNECTIONS)]
        reader, writer = await say(port, b"GET / HTTP/1.1\r\nConnection: close\r\n" + HEAD)
        assert (await reader.read()).endswith(b"hello")
        writer.close()
        await ended(silent[0])
        assert not followed[0].at_eof() and not silent[-1][0].at_eof()
        for _, each in (followed, *silent):
            each.close()


async def test_the_end_closes_every_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as port:
        peers = [await say(port, b"GET /endless HTTP/1.1\r\n" + HEAD), await say(port, b"")]
        await peers[0][0].readuntil(b"begun")
    for peer in peers:
        await ended(peer)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
    # An answer is sent in two parts. Where the second waits until the first was acknowledged, that takes 40 ms.
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
