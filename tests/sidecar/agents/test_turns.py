"""Turns of an agent: what begins and ends one, over restarts, and what a stopped one still does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from bridge.nats.l0.captured import l0_messages
from bridge.nats.l0.context import RecordContext
from sidecar.agents.checks.replay import replay
from sidecar.agents.effects.runner import EndsTurn
from sidecar.agents.runtime import Runtime
from tests.memory import MemoryStore
from tests.sidecar.agents.agents import Counter, Other, Watcher
from tests.sidecar.agents.kinds import Policy, Work, never_ends
from tests.sidecar.agents.support import agents, command, records, running, state

ALONE = [("state", "running"), ("task", "success"), ("state", "idle")]


async def edges(store: MemoryStore, name: str = "counter") -> list[tuple[str, list[str]]]:
    found = await records(store, f"agent/{name}")
    return [(one.event.type, one.event.metadata["turn"]) for one in found if "turn" in one.event.metadata]


async def told(store: MemoryStore, name: str = "counter") -> list[tuple[str, str, int]]:
    """What the L0 protocol says of the agent: suffix, status or phase, epoch."""
    found = []
    for one in await records(store, f"agent/{name}"):
        for message in l0_messages(one.event, RecordContext()) if one.event.type != "agent.installed" else []:
            fields = message.payload.fields()
            assert message.target == name
            found.append((message.suffix, fields.get("status") or fields["phase"], fields.get("turn_epoch", 0)))
    return found


async def results(runtime: Runtime, count: int = 1) -> list[Any]:
    async with asyncio.timeout(10):
        while len(found := state(runtime)["results"]) < count:
            await asyncio.sleep(0.001)
    return list(found)


async def at_rest(runtime: Runtime) -> None:
    async with asyncio.timeout(10):
        while runtime.owes():
            await asyncio.sleep(0.001)


async def test_a_command_alone_is_a_turn() -> None:
    store = MemoryStore()
    async with running(store, Counter) as runtime:
        await runtime.command("counter", command("one"))
        await runtime.command("counter", command("two", "idle"))
    assert await edges(store) == [
        ("add", ["started"]),
        ("counter.added", ["completed"]),
        ("idle", ["started", "completed"]),
    ]
    assert await told(store) == [
        ("state", "running", 0),
        ("task", "success", 0),
        ("state", "idle", 0),
        ("state", "running", 0),
        ("task", "success", 0),
        ("state", "idle", 0),
    ]


async def test_a_turn_ends_with_the_last_result_over_a_restart() -> None:
    store = MemoryStore()
    async with running(store, Counter, kinds={"work": Work(never_ends)}) as runtime:
        await runtime.command("counter", command("one", "call", kind="work"))
    assert await edges(store) == [("call", ["started"])]
    async with running(store, Counter, kinds={"work": Work()}) as runtime:
        await results(runtime)
    assert await edges(store) == [
        ("call", ["started"]),
        ("agent.received", ["step"]),
        ("counter.result", ["completed"]),
    ]
    assert [each[:2] for each in await told(store)] == [
        ("state", "running"),
        ("step", "completed"),
        ("task", "success"),
        ("state", "idle"),
    ]
    (agent,) = agents(Counter)
    assert (await replay(store, agent)).difference is None


async def test_a_failed_effect_fails_the_turn() -> None:
    store = MemoryStore()
    async with running(store, Counter, kinds={"work": Work(*[ValueError("no")] * 9)}, policy=Policy(1)) as runtime:
        await runtime.command("counter", command("one", "call", kind="work"))
        await results(runtime)
    assert (await edges(store))[-1] == ("counter.result", ["failed"])
    assert ("task", "failed", 0) in await told(store)


async def test_an_event_of_the_log_begins_no_turn_but_the_command_that_follows_does() -> None:
    store = MemoryStore()
    async with running(store, Counter, Other) as runtime:
        await runtime.command("counter", command("one", "tell", to="other"))
        await at_rest(runtime)
    assert [marks for _, marks in await edges(store, "other")] == [["started"], ["completed"]]
    assert Watcher.events  # an agent that lists events of the log
    turns = {one.event.correlation_id for one in await records(store, "agent/other") if "turn" in one.event.metadata}
    assert len(turns) == 1


async def test_a_stopped_turn_ends_at_once_and_what_it_led_to_is_refused() -> None:
    store = MemoryStore()
    going = asyncio.Event()

    async def work() -> str:
        await going.wait()
        return "late"

    kind = Work(work)
    async with running(store, Counter, kinds={"work": kind}) as runtime:
        handled = await runtime.command("counter", command("one", "call", kind="work"))
        turn = handled.records[0].event.correlation_id
        assert turn is not None
        async with asyncio.timeout(10):
            while not kind.keys:
                await asyncio.sleep(0.001)
        stop = command("stop", "inbox.stop", reason="enough")
        assert not await runtime.stop("counter", turn, 1, stop)
        assert not await runtime.stop("counter", "another", 0, stop)
        for _ in range(2):  # the first may have been cut off before all that follows from it
            assert await runtime.stop("counter", turn, 0, stop)
        going.set()
        await at_rest(runtime)
        assert not state(runtime)["results"]
        await runtime.command("counter", command("two"))  # the agent goes on
        assert state(runtime)["total"] == 1
    types = [one.event.type for one in await records(store, "agent/counter")]
    assert types.count("agent.turn_stopped") == 1 and "agent.refused" in types
    assert [each[:2] for each in await told(store)][:3] == [
        ("state", "running"),
        ("task", "canceled"),
        ("state", "idle"),
    ]


async def test_a_stop_and_a_command_that_restore_the_state_at_the_same_time_do_it_once() -> None:
    store = MemoryStore()
    async with running(store, Counter, kinds={"work": Work(never_ends)}) as runtime:
        await runtime.own("counter", 5)
        for n in range(10):
            await runtime.command("counter", command(f"add-{n}"))
        handled = await runtime.command("counter", command("one", "call", kind="work"))
        turn = str(handled.records[0].event.correlation_id)
        read, epochs = store.read, set()

        async def slowly(*args: Any, **more: Any) -> Any:
            async for record in read(*args, **more):
                epochs.add(runtime.epoch("counter"))
                await asyncio.sleep(0)
                yield record

        store.read = slowly  # type: ignore[method-assign]
        await runtime.own("counter", 7)
        stop, _ = await asyncio.gather(
            runtime.stop("counter", turn, 7, command("stop", "inbox.stop")),
            runtime.command("counter", command("last")),
        )
        assert stop and state(runtime)["total"] == 11 and epochs == {7}
    (agent,) = agents(Counter)
    assert (await replay(store, agent)).difference is None


async def test_no_attempt_of_a_stopped_turn_begins_also_after_a_restart() -> None:
    store = MemoryStore()

    async def forever(_: float) -> None:
        await asyncio.Event().wait()

    kind = Work(ValueError("once"))
    async with running(store, Counter, kinds={"work": kind}) as runtime:
        runtime.effects._sleep = forever
        handled = await runtime.command("counter", command("one", "call", kind="work"))
        async with asyncio.timeout(10):
            while not kind.keys:
                await asyncio.sleep(0.001)
        assert await runtime.stop(
            "counter", str(handled.records[0].event.correlation_id), 0, command("s", "inbox.stop")
        )
    again = Work()
    async with running(store, Counter, kinds={"work": again}) as runtime:
        await at_rest(runtime)
    failed = [one.event for one in await records(store, "agent/counter/effects") if one.event.type == "effect.failed"]
    assert not again.keys and failed[-1].payload["error_code"] == "stopped"


async def test_an_attempt_that_began_as_its_turn_was_stopped_does_nothing() -> None:
    store, kind = MemoryStore(), Work()
    append = store.append

    async def stopped_meanwhile(events: Any, **more: Any) -> Any:
        kept = await append(events, **more)
        if events[0].type == "effect.started":
            assert await runtime.stop("counter", events[0].correlation_id, 0, command("s", "inbox.stop"))
        return kept

    store.append = stopped_meanwhile  # type: ignore[method-assign]
    async with running(store, Counter, kinds={"work": kind}) as runtime:
        await runtime.command("counter", command("one", "call", kind="work"))
        await at_rest(runtime)
    (failed,) = [one.event for one in await records(store, "agent/counter/effects") if "error" in one.event.payload]
    assert not kind.keys and failed.payload["error_code"] == "stopped"


class Caller:
    """Does several things at once, as its commands say."""

    name = "counter"

    def __init__(self) -> None:
        self.results: list[str] = []

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        if event["type"].startswith("effect."):
            more = [{"to": "other", "type": "add", "payload": {"by": 1}}] * bool(event["payload"]["node"] == "then")
            return [{"type": "counter.result", "payload": {"kind": event["payload"]["kind"]}}, *more]
        return [{"effect": kind, "payload": {}, "node": node} for kind, node in event["payload"]["calls"]]

    def apply(self, event: dict[str, Any]) -> None:
        self.results += [event["payload"]["kind"]] * (event["type"] == "counter.result")


async def test_a_turn_that_ends_with_a_command_for_another_agent_closes_under_its_own_id() -> None:
    store = MemoryStore()
    async with running(store, Counter, Other) as runtime:
        given = await runtime.command("counter", command("one", "tell", to="other"))
        await at_rest(runtime)
        turn = str(given.records[0].event.correlation_id)
        assert not await runtime.stop("counter", turn, 0, command("stop", "inbox.stop"))
        again = replace(command("two"), correlation_id=turn)
        assert (await runtime.command("counter", again)).outcome == "done"
    marked = [one.event for one in await records(store, "agent/counter") if "turn" in one.event.metadata]
    assert {event.correlation_id for event in marked} == {turn}
    assert [each[:2] for each in await told(store)] == [*ALONE, *ALONE]


async def test_a_result_that_ends_the_turn_cancels_what_else_is_open() -> None:
    store, going = MemoryStore(), asyncio.Event()
    slow = Work(going.wait)
    async with running(store, Caller, kinds={"last": Work(EndsTurn("enough")), "slow": slow}) as runtime:
        calls = [("slow", "first"), ("last", "first")]
        given = await runtime.command("counter", command("one", "go", calls=calls))
        assert await results(runtime) == ["last"]
        going.set()
        await at_rest(runtime)
        assert await results(runtime) == ["last"]
        turn = str(given.records[0].event.correlation_id)
        again = replace(command("two", "go", calls=[("slow", "first")]), correlation_id=turn)
        await runtime.command("counter", again)
        assert await results(runtime, 2) == ["last", "slow"]
    types = [one.event.type for one in await records(store, "agent/counter")]
    assert types.count("agent.refused") == 1
    one = [("state", "running"), ("step", "completed"), ("task", "success"), ("state", "idle")]
    assert [each[:2] for each in await told(store)] == [*one, *one]
    (agent,) = agents(Caller)
    assert (await replay(store, agent)).difference is None


async def test_a_command_after_a_stop_begins_the_turn_anew_and_it_can_be_stopped_again() -> None:
    store, going = MemoryStore(), asyncio.Event()
    async with running(store, Caller, kinds={"slow": Work(going.wait), "last": Work()}) as runtime:
        for n in range(2):
            each = replace(command(f"c-{n}", "go", calls=[("slow", "first")]), correlation_id="chain")
            await runtime.command("counter", each)
            assert await runtime.stop("counter", "chain", 0, command("stop", "inbox.stop"))
        await runtime.command("counter", replace(command("c", "go", calls=[("last", "first")]), correlation_id="chain"))
        going.set()
        await at_rest(runtime)
        assert await results(runtime) == ["last"]
    async with running(store, Caller, kinds={"last": Work()}) as runtime:  # and so it is after a restart
        assert await results(runtime) == ["last"] and not runtime.engines["counter"].turns.is_open("chain")
    canceled = [("state", "running"), ("task", "canceled"), ("state", "idle")]
    done = [("state", "running"), ("step", "completed"), ("task", "success"), ("state", "idle")]
    assert [each[:2] for each in await told(store)] == [*canceled, *canceled, *done]


async def test_a_chain_that_becomes_too_deep_has_one_end() -> None:
    store, going = MemoryStore(), asyncio.Event()
    async with running(store, Caller, kinds={"slow": Work(going.wait), "last": Work()}, max_depth=3) as runtime:
        deep = replace(command("one", "go", calls=[("slow", "first"), ("last", "then")]), depth=1)
        await runtime.command("counter", deep)
        await results(runtime)
        going.set()
        await at_rest(runtime)
    found = await told(store)
    assert [each[:2] for each in found] == [
        ("state", "running"),
        ("step", "completed"),
        ("task", "failed"),
        ("state", "idle"),
    ]
