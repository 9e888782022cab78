"""How links end: drained, replaced, silent, or refused for their protocol."""

import asyncio

import pytest

from bridge.opencode.link.link import Refused, proof
from tests.sidecar.peers import TOKEN, Recorder, nonce, peer, serving, works


async def test_draining_acknowledges_what_was_taken_before_it_says_bye() -> None:
    handler = Recorder()
    handler.gate.clear()
    async with serving(handler) as server, peer(server) as shim:
        await shim.shake()
        await shim.hooks(1, 5)
        await handler.batches.get()
        draining = asyncio.create_task(server.drain(reason="upgrade"))
        await asyncio.sleep(0)
        handler.gate.set()
        assert await shim.hear() == {"type": "ack", "seq": 5}
        assert await shim.hear() == {"type": "bye", "reason": "upgrade"}
        await shim.socket.close()
        await draining


async def test_hooks_that_cross_the_bye_are_handled_though_not_acknowledged() -> None:
    handler = Recorder()
    async with serving(handler) as server, peer(server) as shim:
        await shim.shake()
        draining = asyncio.create_task(server.drain())
        assert await shim.hear() == {"type": "bye", "reason": "draining"}
        await shim.hooks(1, 3)
        link, first, got = await handler.batches.get()
        assert (first, len(got)) == (1, 3)
        await shim.socket.close()
        await draining
        assert link.reason == "draining" and handler.ended.qsize() == 1


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


async def test_a_refused_peer_is_counted_and_told_in_words() -> None:
    handler = Recorder()
    async with serving(handler) as server, peer(server) as shim:
        mine = nonce()
        await shim.say(type="hello", role="shim", protocol=7, nonce=mine)
        challenge = await shim.hear()
        right = proof(TOKEN, "shim", server.port, mine, challenge["nonce"])
        await shim.say(type="identify", proof=right, pid=7, shim_version="0.7.0")
        bye = await shim.hear()
        assert bye["reason"] == "unsupported" and "0.7.0" in bye["detail"]
        assert await shim.code() == 1008
        assert handler.refusals == [Refused("shim", "0.7.0", 7, 7)]
        assert server.counters.refused_protocol == 1 and server.counters.protocol_errors == 0
