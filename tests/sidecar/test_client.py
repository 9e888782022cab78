"""The calling end, against the real server and against impostors."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from bridge.opencode.link.frames import HookItem, ShimIdentity
from sidecar.home import Home, SidecarInfo
from sidecar.link.client import (
    ControlClient,
    ImpostorError,
    LinkUnavailable,
    ShimClient,
)
from tests.sidecar.peers import HANG, TOKEN, Address, Recorder, nonce, serving

SHIM = ShimIdentity("0.1", "ab" * 16, "cd" * 8, 42, "prj", "/dir", "/tree", "1.18", 0)


@asynccontextmanager
async def shim(address: Address, **options: Any) -> AsyncIterator[ShimClient]:
    async with await ShimClient.connect(address, identity=SHIM, nonce=nonce, **options) as client:
        yield client


@asynccontextmanager
async def control(address: Home) -> AsyncIterator[ControlClient]:
    async with await ControlClient.connect(address, version="0.1", nonce=nonce) as client:
        yield client


def items(count: int) -> list[HookItem]:
    return [HookItem("event", number, {"n": number}) for number in range(count)]


def sent(handler: Recorder) -> list[tuple[int, HookItem]]:
    """All items that arrived, with their numbers."""
    batches = [handler.batches.get_nowait() for _ in range(handler.batches.qsize())]
    return [pair for _, first, items in batches for pair in enumerate(items, first)]


async def test_everything_sent_arrives_in_order_through_a_small_window() -> None:
    handler = Recorder()
    async with serving(handler, window=7) as server, shim(Address(server.port, TOKEN)) as client:
        assert await client.send(items(100)) == 100
        assert await client.send(items(3)) == 103
        await client.drained()
        assert client.acked == 103
    assert sent(handler) == list(enumerate([*items(100), *items(3)], 1))


async def test_a_second_link_of_the_same_instance_sends_only_what_is_not_durable() -> None:
    handler = Recorder()
    async with serving(handler) as server:
        address = Address(server.port, TOKEN)
        async with shim(address) as client:
            await client.send(items(5))
            await client.drained()
        async with shim(address) as client:
            assert client.acked == 5
            assert await client.send(items(5), first_seq=1) == 5
            assert client._link.last_sent == 0  # nothing went out
            assert await client.send(items(8), first_seq=1) == 8
            await client.drained()
    assert [seq for seq, _ in sent(handler)] == list(range(1, 9))


# --- what is not a sidecar ---


@asynccontextmanager
async def pretending(
    answer: Callable[[dict[str, Any]], str | bytes | None],
) -> AsyncIterator[tuple[int, list[str | bytes]]]:
    """A websocket server that gives scripted answers and keeps everything it received."""
    heard: list[str | bytes] = []

    async def talk(connection: ServerConnection) -> None:
        async for message in connection:
            heard.append(message)
            said = answer(json.loads(message))
            if said is not None:
                await connection.send(said)

    async with asyncio.timeout(HANG):
        async with serve(talk, "127.0.0.1", 0) as server:
            yield next(iter(server.sockets)).getsockname()[1], heard


async def test_an_impostor_hears_hello_and_nothing_else() -> None:
    def challenge(frame: dict[str, Any]) -> str:
        wrong = {"type": "challenge", "protocol": 1, "nonce": "b" * 64, "proof": "c" * 64, "sidecar_version": "9"}
        return json.dumps(wrong)

    async with pretending(challenge) as (port, heard):
        for connecting in (
            ShimClient.connect(Address(port, TOKEN), identity=SHIM, nonce=nonce),
            ControlClient.connect(Address(port, TOKEN), version="0.1", nonce=nonce),
        ):
            with pytest.raises(ImpostorError) as found:
                await connecting
            assert found.value.hint
    assert [json.loads(message)["type"] for message in heard] == ["hello", "hello"]
    assert "/dir" not in str(heard)


@pytest.mark.parametrize(
    "said",
    [
        "garbage",
        b"\xff",
        '{"type":"welcome"}',
        '{"type":"bye","reason":"upgrade"}',
        '{"type":"bye","reason":"draining"}',
    ],
)
async def test_a_broken_handshake_is_unavailable(said: str | bytes) -> None:
    async with pretending(lambda _: said) as (port, _):
        with pytest.raises(LinkUnavailable) as found:
            await ControlClient.connect(Address(port, TOKEN), version="0.1", nonce=nonce)
        assert found.value.reason
        assert found.value.hint


async def test_a_free_port_is_unavailable_with_a_hint() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with asyncio.timeout(HANG):
        with pytest.raises(LinkUnavailable, match="durable-stream serve"):
            await ControlClient.connect(Address(port, TOKEN), version="0.1", nonce=nonce)


async def test_a_home_gives_the_address(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    home.ensure_token(lambda: TOKEN)
    async with serving() as server:
        with pytest.raises(LinkUnavailable, match="no sidecar is running"):
            await ControlClient.connect(home, version="0.1", nonce=nonce)
        with home.lock():
            home.write_info(SidecarInfo(os.getpid(), server.port, "boot", "0.1", 1, 0))
            async with control(home) as client:
                assert await client.request("echo", {"a": 1}) == {"a": 1}
