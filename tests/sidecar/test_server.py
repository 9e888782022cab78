"""The listening end over real sockets, with peers that behave and peers that do not.

Most tests use raw websockets or raw TCP, so that a fault in our own client cannot hide one here.
"""

import asyncio
import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from sidecar.link.server import CallError
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
