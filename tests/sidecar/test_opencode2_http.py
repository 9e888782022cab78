"""The client of an OpenCode 2 service: an answer ends in a bounded time."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.record.opencode2 import http
from sidecar.record.opencode2.http import ServiceClient, ServiceGone
from sidecar.record.opencode2.registration import Registration


async def test_an_answer_that_drips_for_ever_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WHOLE_SECONDS", 1.0)

    ended = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            writer.transport.abort()
        ended.set()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = ServiceClient(Registration("id", "", "127.0.0.1", port, 1, "secret", 0))
        async with asyncio.timeout(10):
            with pytest.raises(ServiceGone):
                await client.get("/x")
            await ended.wait()
