"""Commands for agents of other homes: the mirror sends each once, and no rebuild sends it again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import COMMANDS, EVENTS, L0_COMMANDS, L0_EVENTS
from bridge.nats.l0.payloads import Wakeup
from bridge.nats.mirror.messages import UNSENT
from sidecar.mirror.follower import DAY_MS, MirrorTask
from streams.event import StreamEvent
from streams.hashing import canonical
from streams.store import StreamStore
from streams.trace import is_one_trace, parse_traceparent
from tests.bridge.opencode.playing import play
from tests.memory import MemoryStore
from tests.mirrors import LOG_ID, NOW_MS, check_equal, drained, mirroring, queued, read_independently
from tests.nats_servers import RealServer, forgets_ids, until
from tests.sidecar.agents.agents import Counter, Other, Watcher
from tests.sidecar.agents.kinds import Work
from tests.sidecar.agents.support import command, records, running, settled, state
from tests.sidecar.mirror.test_commands import PARENT, Client, consuming, empty
from tools.l0_messages import decode


@pytest.fixture
def client(server: RealServer) -> Client:
    return Client(server)


@asynccontextmanager
async def forgetful_mirror(
    store: StreamStore, server: RealServer, sessions: Sessions, **more: Any
) -> AsyncIterator[MirrorTask]:
    """A mirror that has drained; then the work queues know no message id any more."""
    async with mirroring(store, server, **more) as mirror:
        await drained(mirror)
        await forgets_ids(await sessions.get(), COMMANDS, L0_COMMANDS)
        yield mirror


async def told(store: StreamStore, count: int) -> list[StreamEvent]:
    """Let an agent send ``count`` commands to one elsewhere, and one to an agent of its own home."""
    async with running(store, Counter, Other) as runtime:
        for n in range(count):
            await runtime.command("counter", command(f"k{n}", "tell", to="far"))
        await runtime.command("counter", command("near", "tell", to="other"))
        await until(lambda: state(runtime, "other")["total"], "the agent beside it")
    found = [record.event for record in await records(store, "agent/counter")]
    return [event for event in found if event.metadata.get("route") == "bus"]


class Teller(Watcher):
    """Tells an agent of another home about failed steps."""

    name = "teller"

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        return [{**each, "to": "far"} for each in super().receive(event) if "to" in each]


async def test_a_command_that_follows_from_a_captured_step_goes_to_the_project_of_its_session(
    server: RealServer, sessions: Sessions
) -> None:
    store, captured = MemoryStore(), play("tool_throws_read").events()
    (project,) = {event.payload["project"] for event in captured if "project" in event.payload}
    async with running(store, Teller) as runtime:
        await store.append(captured)
        await settled(runtime, store)
    async with mirroring(store, server) as mirror:
        await drained(mirror)
        sent, rung = await queued(sessions), await queued(sessions, L0_COMMANDS)
    assert {message.subject for message in sent} == {f"cmd.{project}._.far.add"}
    assert {message.subject for message in rung} == {f"cg.v1.{project}.public.cmd.agent.far.wakeup"}


class Far(Counter):
    """An agent of another home."""

    name = "far"


async def test_a_command_for_another_home_is_a_command_on_the_wire_and_a_wakeup_announces_it(
    server: RealServer, sessions: Sessions
) -> None:
    store = MemoryStore()
    events = await told(store, 2)
    async with mirroring(store, server) as mirror:
        await drained(mirror)
        sent, rung = await queued(sessions), await queued(sessions, L0_COMMANDS)
    assert [message.body for message in sent] == [canonical(event.fields()) for event in events]
    for message, event in zip(sent, events, strict=True):
        assert message.subject == "cmd._._.far.add"
        assert message.headers["Nats-Msg-Id"] == f"{event.id}:cmd"
        assert message.headers["CG-Recursion-Depth"] == "1"
        assert message.headers["CG-Sender"] == "counter" and message.headers["CG-Msg-Type"] == "add"
        assert message.headers["traceparent"] == event.traceparent
        assert message.headers["DS-Log"] == LOG_ID
    for message, event in zip(rung, events, strict=True):
        subject, payload = decode(message.subject, message.body)
        assert message.subject == "cg.v1._.public.cmd.agent.far.wakeup" and subject.target == "far"
        assert payload == Wakeup(agent_id="far", inbox_id=event.id, reason="add")
        assert message.headers["Nats-Msg-Id"] == f"{event.id}:wakeup"
        assert message.headers["CG-Msg-Type"] == "agent.wakeup" and message.headers["CG-Sender"] == "counter"
        assert message.headers["CG-Recursion-Depth"] == "1"
        assert message.headers["traceparent"] == event.traceparent
    await check_equal(store, server)


async def test_another_home_takes_it_once_and_the_trace_goes_on(server: RealServer, sessions: Sessions) -> None:
    store, there = MemoryStore(), MemoryStore()
    (event,) = await told(store, 1)
    async with running(there, Far) as runtime, consuming(runtime, sessions):
        async with mirroring(store, server) as mirror:
            await drained(mirror)
        await until(lambda: state(runtime, "far")["total"], "it arrives")
        await empty(sessions)
    arrived = next(r.event for r in await records(there, "agent/far") if r.event.metadata["role"] == "input")
    assert arrived.payload == event.payload and arrived.metadata["depth"] == 1
    assert (arrived.causation_id, arrived.correlation_id) == (event.id, event.correlation_id)
    assert arrived.traceparent == event.traceparent and parse_traceparent(event.traceparent or "")
    assert (arrived.actor, arrived.source.agent) == ("counter", "counter")
    assert arrived.metadata["key"] == f"{LOG_ID}:{event.idempotency_key}"


async def test_neither_a_restart_nor_a_rebuild_nor_a_wiped_mirror_sends_it_again(
    server: RealServer, sessions: Sessions
) -> None:
    store, there = MemoryStore(), MemoryStore()
    await told(store, 3)
    session = await sessions.get()
    async with (
        running(there, Far) as runtime,
        consuming(runtime, sessions),
        forgetful_mirror(store, server, sessions),
    ):
        await until(lambda: state(runtime, "far")["total"], "they arrive")
        await empty(sessions)
    # Nobody takes a command from here on, so that one sent again would stay.
    async with mirroring(store, server) as mirror:
        await drained(mirror)
        mirror.rebuild()
        await until(lambda: mirror.counts["republished"] == 1, "the rebuild")
        await drained(mirror)
    assert await queued(sessions) == []
    rung = (await keeping.facts(session, L0_COMMANDS)).last_sequence
    await keeping.purge(session, EVENTS, subject="evt.>")
    async with mirroring(store, server) as mirror:
        await drained(mirror)
        assert mirror.counts["published"]
    assert await queued(sessions) == []
    assert (await keeping.facts(session, L0_COMMANDS)).last_sequence == rung
    await check_equal(store, server)


async def test_without_any_hint_the_stream_says_what_was_sent(
    server: RealServer, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    await told(store, 1)
    async with forgetful_mirror(store, server, sessions):
        assert len(await queued(sessions)) == 1

    async def nothing(*args: Any) -> Any:
        return None

    async def beginning(*args: Any) -> int:
        return -1

    monkeypatch.setattr(store, "snapshot", nothing)
    monkeypatch.setattr(store, "cursor", beginning)
    async with mirroring(store, server) as mirror:
        mirror.rebuild()
        await until(lambda: mirror.counts["republished"] == 1, "the rebuild")
        await drained(mirror)
    assert len(await queued(sessions)) == 1


async def test_an_old_command_is_not_sent_any_more_and_counted(server: RealServer, sessions: Sessions) -> None:
    store = MemoryStore()
    await told(store, 2)
    mirror = MirrorTask(store, LOG_ID, sessions, lambda: NOW_MS + DAY_MS)
    mirror.start()
    try:
        status = await drained(mirror)
    finally:
        await mirror.close()
    assert status["notes"][f"{UNSENT}:old"] == 2
    assert await queued(sessions) == await queued(sessions, L0_COMMANDS) == []


async def test_a_refused_chain_is_a_failed_task(server: RealServer, sessions: Sessions) -> None:
    store = MemoryStore()
    async with running(store, Counter, max_depth=1) as runtime:
        await runtime.command("counter", command("deep", "tell", to="far"))
    async with mirroring(store, server) as mirror:
        await drained(mirror)
    (task,) = await read_independently(server, "cg.*.*.*.evt.*.*.task", L0_EVENTS)
    assert task.subject == "cg.v1._.public.evt.agent.counter.task"
    assert b'"error_code":"recursion_depth_exceeded"' in task.body and b'"status":"failed"' in task.body
    assert task.headers["CG-Recursion-Depth"] == "1"
    assert await queued(sessions) == []


GIVEN = {
    "traceparent": PARENT,
    "tracestate": "a=1,b=2",
    "CG-User-ID": "ada",
    "CG-Channel-ID": "u_ada",
    "CG-Context-ID": "box-7",
}


class Busy(Counter):
    """Asks for an effect, and tells its result to an agent of another home."""

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        if event["type"] == "effect.completed":
            return [{"to": "far", "type": "add", "payload": {"by": 1}}, {"type": "counter.told"}]
        return [{"effect": "work"}]


async def test_every_hop_keeps_project_trace_state_and_identity(
    server: RealServer, sessions: Sessions, client: Client
) -> None:
    store, there = MemoryStore(), MemoryStore()
    async with running(store, Busy, kinds={"work": Work()}) as runtime, consuming(runtime, sessions):
        await client.send("cmd.shop.main.counter.go", {}, {**GIVEN, "CG-Recursion-Depth": "3"})
        await empty(sessions)
        await settled(runtime, store)
    async with running(there, Far) as runtime, consuming(runtime, sessions):
        async with mirroring(store, server) as mirror:
            await drained(mirror)
            await check_equal(store, server)
        await until(lambda: state(runtime, "far")["total"], "it arrives")
        await empty(sessions)
        await settled(runtime, there)
    kept = {name: value for name, value in GIVEN.items() if name != "traceparent"}
    arrived = [r.event for r in await records(there, "agent/far") if r.event.type != "agent.installed"]
    assert [event.metadata["depth"] for event in arrived] == [5, 6]
    for event in [*arrived, *(r.event for r in await records(store, "agent/counter/effects"))]:
        assert kept.items() <= event.metadata.items() and is_one_trace(event.traceparent, PARENT), event.type
        assert (event.metadata["project"], event.metadata["workspace"]) == ("shop", "main")
    assert arrived[0].metadata["subject"] == "cmd.shop.main.far.add"
    mirrored = await read_independently(server, "evt.shop.*.agent%2Fcounter.>", EVENTS)
    types = ["go", "effect.requested", "agent.received", "add", "counter.told"]
    assert [message.headers["CG-Msg-Type"] for message in mirrored] == types
    spans = [message.headers["traceparent"] for message in mirrored]
    assert len(set(spans)) == 5
    for message in mirrored:
        assert kept.items() <= message.headers.items() and is_one_trace(message.headers["traceparent"], PARENT)


async def test_a_chain_ends_in_its_own_project(server: RealServer, sessions: Sessions, client: Client) -> None:
    store = MemoryStore()
    async with running(store, Busy, kinds={"work": Work()}, max_depth=5) as runtime, consuming(runtime, sessions):
        for depth in ("3", "2"):
            body = {"payload": {}, "correlation_id": "chain"}
            await client.send("cmd.shop.main.counter.go", body, {"CG-Recursion-Depth": depth})
            await empty(sessions)
        await settled(runtime, store)
    async with mirroring(store, server) as mirror:
        await drained(mirror)
    tasks = await read_independently(server, "cg.*.*.*.evt.*.*.task", L0_EVENTS)
    assert [task.subject for task in tasks] == ["cg.v1.shop.public.evt.agent.counter.task"] * 2
    told = {decode(task.subject, task.body)[1].fields()["error_code"]: task.headers for task in tasks}
    assert told["recursion_depth_exceeded"]["CG-Recursion-Depth"] == "5"
    assert told["protocol_violation"]["CG-Recursion-Depth"] == "3"
