"""Both ends of the link over real sockets, with peers that behave and peers that do not."""

from __future__ import annotations

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
from websockets.exceptions import ConnectionClosed

from bridge.opencode.link.frames import HookItem, ShimIdentity
from sidecar.home import Home, SidecarInfo
from sidecar.link.client import (
    ControlClient,
    ImpostorError,
    LinkUnavailable,
    ShimClient,
)
from sidecar.link.server import CallError
from tests.sidecar.peers import HANG, TOKEN, Address, Recorder, nonce, peer, serving, works


async def test_acks_come_only_after_finish_and_are_cumulative() -> None:
    handler = Recorder(auto=False)
    async with serving(handler) as server, peer(server) as shim:
        await shim.shake()
        await shim.hooks(1, 3)
        link, first, items = await handler.batches.get()
        assert (first, len(items)) == (1, 3)
        link.finish([2])
        # A call's answer shows that everything before it was delivered, so no ack was sent.
        asking = asyncio.create_task(link.call("session.get", {}))
        call = await shim.hear()
        assert call["type"] == "call"
        link.finish([1])
        link.finish([3])
        assert await shim.hear() == {"type": "ack", "seq": 3}
        await shim.say(type="result", id=call["id"], value=1)
        assert await asking == 1


async def test_a_reconnecting_instance_is_told_what_is_durable_even_if_finished_late() -> None:
    handler = Recorder(auto=False)
    async with serving(handler) as server:
        async with peer(server) as shim:
            await shim.shake()
            await shim.hooks(1, 4)
            link, _, _ = await handler.batches.get()
            link.finish([1, 2])
            assert await shim.hear() == {"type": "ack", "seq": 2}
        await handler.ended.get()
        link.finish([3])
        async with peer(server) as shim:
            assert (await shim.shake())["acked_seq"] == 3
            await shim.hooks(3, 2)
            _, first, items = await handler.batches.get()
            assert (first, len(items)) == (4, 1)
        async with peer(server) as shim:
            assert (await shim.shake(instance="99" * 8))["acked_seq"] == 0


# --- calls ---
async def test_calls_fail_with_the_shims_error_a_timeout_or_the_links_end() -> None:
    handler = Recorder()
    async with serving(handler) as server, peer(server) as shim:
        await shim.shake()
        link = await handler.links.get()
        asking = asyncio.create_task(link.call("a", {}))
        call = await shim.hear()
        await shim.say(type="result", id=call["id"], error={"code": "opencode", "message": "gone", "status": 404})
        with pytest.raises(CallError) as failed:
            await asking
        assert (failed.value.code, failed.value.message, failed.value.status) == ("opencode", "gone", 404)

        with pytest.raises(CallError) as late:
            await link.call("b", {}, timeout=0.05)
        assert late.value.code == "timeout"
        unanswered = await shim.hear()
        await shim.say(type="result", id=unanswered["id"], value="too late")  # and nothing happens

        asking = asyncio.create_task(link.call("c", {}))
        assert (await shim.hear())["method"] == "c"
        await shim.socket.close()
        with pytest.raises(CallError) as ended:
            await asking
        assert ended.value.code == "closed"
        with pytest.raises(CallError):
            await link.call("d", {})


# --- the command line ---
async def test_requests_are_answered_and_errors_told() -> None:
    async with serving() as server, peer(server) as cli:
        assert (await cli.shake("control"))["type"] == "welcome"
        asked = {"echo": {"x": [1]}, "refuse": {}, "fail": {}, "strange": {}, "none": {}}
        for number, (method, args) in enumerate(asked.items()):
            await cli.say(type="request", id=number, method=method, args=args)
        answers = {answer["id"]: answer for answer in [await cli.hear() for _ in asked]}
        assert answers[0] == {"type": "result", "id": 0, "value": {"x": [1]}}
        assert answers[1]["error"] == {"code": "busy", "message": "not now"}
        assert answers[2]["error"]["code"] == "unexpected"
        assert "sk-secret" not in json.dumps(answers)
        assert answers[3]["error"]["code"] == "bad-answer"
        assert answers[4]["error"]["code"] == "unknown-request"


# --- the end ---
async def test_drain_says_bye_to_all_and_waits_for_handlers() -> None:
    handler = Recorder()
    async with serving(handler, handshake_seconds=300) as server, peer(server) as shim, peer(server) as cli:
        silent = await asyncio.open_connection("127.0.0.1", server.port)
        await shim.shake()
        await cli.shake("control")
        await server.drain()
        for other in (shim, cli):
            assert await other.hear() == {"type": "bye", "reason": "draining"}
            assert await other.code() == 1012
        assert handler.ended.qsize() == 1
        assert await silent[0].read() == b""
        silent[1].close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", server.port)
        await server.drain()


@pytest.mark.parametrize("where", ["opened", "hooks"])
async def test_a_failing_handler_costs_one_link_and_no_ack(where: str, caplog: pytest.LogCaptureFixture) -> None:
    handler = Recorder()

    async def fail(*_: Any) -> None:
        raise RuntimeError("sk-secret-1")

    if where == "opened":
        handler.on_open = fail
    else:
        handler.on_hooks = fail
    async with serving(handler) as server:
        async with peer(server) as shim:
            with pytest.raises(ConnectionClosed):
                await shim.shake()
                await shim.hooks(1)
                while (await shim.hear())["type"] != "ack":
                    continue
                raise AssertionError("acknowledged")
            assert await shim.code() == 1011
        handler.on_open = handler.on_hooks = None
        assert server.counters.handler_errors == 1
        await works(server)
    assert "sk-secret" not in caplog.text


# --- garbage ---
async def test_a_second_link_of_an_instance_ends_the_first_and_no_other() -> None:
    handler = Recorder()
    async with serving(handler) as server, peer(server) as first, peer(server) as other, peer(server) as second:
        await first.shake()
        await other.shake(instance="ee" * 8)
        await first.hooks(1, 2)
        assert await first.hear() == {"type": "ack", "seq": 2}
        assert (await second.shake())["acked_seq"] == 2
        assert await first.hear() == {"type": "bye", "reason": "replaced"}
        assert await first.code() == 1008
        await second.hooks(3)
        assert await second.hear() == {"type": "ack", "seq": 3}
        await other.hooks(1)
        assert await other.hear() == {"type": "ack", "seq": 1}
        assert (await handler.ended.get()).reason == "replaced" and server.counters.replaced == 1


async def test_a_peer_that_gives_no_sign_of_life_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.link.server.PING_SECONDS", 0.05)
    handler = Recorder()
    async with serving(handler) as server, peer(server) as shim:
        await shim.shake()
        # As a stopped process: the socket stays open, and nothing is answered.
        shim.socket.transport.pause_reading()
        assert (await handler.ended.get()).reason is None
        await works(server)


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
