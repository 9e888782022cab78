"""The listening end over real sockets, with peers that behave and peers that do not.

Most tests use raw websockets or raw TCP, so that a fault in our own client cannot hide one here.
"""

import asyncio
import json
import random
from contextlib import suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from bridge.opencode.link.frames import HookItem
from sidecar.link.links import MAX_QUEUED_BYTES
from sidecar.link.server import CallError, ShimConnection
from tests.sidecar.peers import Recorder, peer, serving, works


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


async def test_opened_decides_what_the_welcome_says() -> None:
    handler = Recorder()

    async def on_open(link: ShimConnection) -> None:
        link.acked_seq = 41
        link.push_context({"compaction": "x"})

    handler.on_open = on_open
    async with serving(handler) as server, peer(server) as shim:
        welcome = await shim.shake()
        assert (welcome["acked_seq"], welcome["context"]) == (41, {"compaction": "x"})
        (await handler.links.get()).push_context({"later": True})
        assert await shim.hear() == {"type": "context", "context": {"later": True}}


async def test_what_a_killed_shim_handed_over_is_still_handled() -> None:
    handler = Recorder(auto=False)
    handler.gate.clear()
    async with serving(handler) as server:
        async with peer(server) as shim:
            await shim.shake()
            for seq in range(1, 6):
                await shim.hooks(seq)
            await handler.batches.get()
            # The pong shows that the server has read all five.
            await (await shim.socket.ping())
            shim.socket.transport.abort()
        while server.links[0].is_open:
            await asyncio.sleep(0)  # until the server knows: a condition inside it, without an event
        handler.gate.set()
        await handler.ended.get()
        assert handler.batches.qsize() == 4


async def test_a_handler_that_is_behind_slows_the_shim_down() -> None:
    handler = Recorder()
    handler.gate.clear()
    async with serving(handler) as server, peer(server, write_limit=1024) as shim:
        await shim.shake()
        size = 1024 * 1024
        sent = 0

        async def flood() -> None:
            nonlocal sent
            for seq in range(1, 101):
                await shim.hooks(seq, text="x" * size)
                sent += 1

        flooding = asyncio.create_task(flood())
        link, _, _ = await handler.batches.get()
        while link._queued_bytes <= MAX_QUEUED_BYTES:
            await asyncio.sleep(0)  # a condition inside the server, which has no event to wait for
        async with peer(server) as cli:  # gives the server ample turns to read on, if it would
            await cli.shake("control")
            for number in range(100):
                await cli.say(type="request", id=number, method="echo", args={})
                await cli.hear()
        assert sent < 100
        assert link._queued_bytes < MAX_QUEUED_BYTES + 2 * size
        handler.gate.set()
        await flooding
        seq = 0
        while seq < 100:
            seq = (await shim.hear())["seq"]


async def test_lossy_items_reach_the_handler() -> None:
    handler = Recorder()
    async with serving(handler) as server, peer(server) as shim:
        await shim.shake()
        await shim.say(type="lossy", items=[{"hook": "event", "t": 5, "input": "delta"}])
        assert await handler.lossy_items.get() == [HookItem("event", 5, "delta", None)]


async def test_a_tool_is_unknown() -> None:
    async with serving() as server, peer(server) as shim:
        await shim.shake()
        await shim.say(type="tool", id=3, name="agent_spawn", args={}, context={})
        answer = await shim.hear()
        assert (answer["id"], answer["error"]["code"]) == (3, "unknown_tool")


async def test_the_window_is_enforced() -> None:
    handler = Recorder(auto=False)
    async with serving(handler, window=4) as server:
        async with peer(server) as shim:
            await shim.shake()
            await shim.hooks(1, 9)
            assert await shim.hear() == {"type": "bye", "reason": "window"}
            assert await shim.code() == 1008
        assert server.counters.window_overruns == 1


# --- calls ---


async def test_a_handler_may_call_the_link_whose_hooks_it_handles() -> None:
    handler = Recorder()
    answers: list[Any] = []

    async def on_hooks(link: ShimConnection, first_seq: int, items: list[HookItem]) -> None:
        if first_seq == 1:
            answers.append(await link.call("session.get", {"path": {"id": first_seq}}))

    handler.on_hooks = on_hooks
    async with serving(handler) as server, peer(server) as shim:
        await shim.shake()
        await shim.hooks(1)
        call = await shim.hear()
        assert (call["method"], call["args"]) == ("session.get", {"path": {"id": 1}})
        await shim.hooks(2)  # more hooks before the answer must not block it
        await shim.say(type="result", id=call["id"], value={"title": "t"})
        assert (await shim.hear())["type"] == "ack"
        assert answers == [{"title": "t"}]


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


async def test_a_peer_that_never_reads_is_dropped_and_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.link.connection.MAX_PENDING_FRAMES", 8)
    handler = Recorder()
    async with serving(handler) as server:
        async with peer(server, max_queue=1) as shim:
            await shim.shake()
            link = await handler.links.get()
            shim.socket.transport.pause_reading()
            while link.is_open and not server.counters.slow_readers:
                link.push_context({"x": "y" * 1_000_000})
                await asyncio.sleep(0)
            assert await handler.ended.get() is link
            shim.socket.transport.abort()
        assert server.counters.slow_readers == 1
        await works(server)


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


async def test_a_slow_request_does_not_hold_up_another() -> None:
    handler = Recorder()
    handler.gate.clear()
    async with serving(handler) as server, peer(server) as cli:
        await cli.shake("control")
        await cli.say(type="request", id="slow", method="wait", args={})
        await cli.say(type="request", id="quick", method="echo", args={})
        assert (await cli.hear())["id"] == "quick"
        handler.gate.set()
        assert (await cli.hear())["value"] == "waited"


async def test_control_may_not_send_hooks() -> None:
    async with serving() as server, peer(server) as cli:
        await cli.shake("control")
        await cli.hooks(1)
        assert await cli.hear() == {"type": "bye", "reason": "protocol"}
        assert await cli.code() == 1002


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


async def test_drain_does_not_wait_for_ever() -> None:
    handler = Recorder()
    handler.gate.clear()
    async with serving(handler) as server, peer(server) as shim:
        await shim.shake()
        await shim.hooks(1)
        await handler.batches.get()
        await server.drain(grace_seconds=0.05)
        assert handler.ended.qsize() == 1


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

GARBAGE: list[str | bytes] = [
    "",
    "{",
    "[]",
    "null",
    b"\xff\xfe",
    b'{"type":"\xff"}',
    '{"type":7}',
    '{"type":"hooks"}',
    '{"type":"later"}',
    '{"type":"ack","seq":1}',
    '{"type":"hello","role":"shim"}',
    '{"type":"hooks","first_seq":1,"items":[{"hook":[],"t":{}}]}',
    '{"type":"result","id":{},"value":1}',
    "[" * 60_000,
    '{"a":' * 10_000,
    "[" * 30_000 + "]" * 30_000,
    '"' + '\\"' * 30_000,
]


@pytest.mark.parametrize("proved", [False, True])
async def test_garbage_closes_its_link_and_no_other(proved: bool) -> None:
    async with serving() as server, peer(server) as good:
        await good.shake(instance="11" * 8)
        for seq, message in enumerate(GARBAGE, 1):
            async with peer(server) as bad:
                if proved:
                    await bad.shake()
                await bad.socket.send(message)
                assert await bad.hear() == {"type": "bye", "reason": "protocol"}
                assert await bad.code() == 1002
            await good.hooks(seq)
            assert await good.hear() == {"type": "ack", "seq": seq}
        assert server.counters.protocol_errors == len(GARBAGE)


async def test_bytes_that_are_no_websocket_harm_nobody() -> None:
    rng = random.Random(7)
    async with serving(handshake_seconds=0.3) as server:
        for prefix in (b"", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(prefix + rng.randbytes(2000) + b"\r\n\r\n")
            with suppress(ConnectionResetError):
                await reader.read()
            writer.close()
        for number in range(40):
            async with peer(server) as bad:
                await bad.shake()
                # Straight to the socket: reserved bits, unmasked frames, 64-bit lengths, endless fragments.
                bad.socket.transport.write(rng.randbytes(rng.randrange(2, 400)))
                bad.socket.transport.write(bytes([number * 6 % 256, 0x7F]) + b"\xff" * 8)
                bad.socket.transport.write_eof()
                await bad.code()
        await works(server)
        assert server.counters.handler_errors == 0
