"""Replaying an agent, equal to the log at every offset or the first difference; and the contract it keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.agents import engine
from sidecar.agents.checks.contract import as_event, try_agent
from sidecar.agents.checks.replay import replay
from sidecar.agents.history import SNAPSHOT_VERSION
from sidecar.agents.inputs import agent_stream, state_hash
from sidecar.agents.loading import UserAgent
from sidecar.background.intents.intents import IntentAgent
from sidecar.config import PhantomConfig
from streams.event import StreamEvent
from streams.hashing import canonical
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.store import Snapshot, StreamStore
from tests.memory import MemoryStore
from tests.sidecar.agents.agents import Counter, Other, Watcher
from tests.sidecar.agents.kinds import Policy, Work
from tests.sidecar.agents.support import agents, command, records, running, settled, state, steps
from tests.sidecar.agents.test_effects_in_doubt import Looper
from tests.streams.logs import files


class Mended(Watcher):
    """Handles what the watcher fails on."""

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        if event["payload"].get("status") == "broken":
            return [{"type": "watcher.failed", "payload": {"step": event["id"]}}]
        return super().receive(event)


async def a_life(store: StreamStore, seed: int = 7) -> dict[str, Any]:
    """Everything that an agent may meet; returns the states."""
    work = Work(OSError("down"))
    more: dict[str, Any] = {"kinds": {"work": work}, "policy": Policy(), "max_depth": 4}
    async with running(store, Counter, Other, Watcher, identity=seeded_identity(seed), **more) as runtime:
        for n in range(5):
            await runtime.command("counter", command(f"k{n}", by=n))
        await runtime.command("counter", command("k1", by=1))
        await runtime.command("counter", command("quiet", "quiet"))
        await runtime.command("counter", command("call", "call", kind="work"))
        await settled(runtime, store)
        await runtime.command("counter", command("tell", "tell", to="other"))
        await store.append(steps("error", "broken", "error"))
        await settled(runtime, store)
        deep = command("deep", "tell", to="other")
        for key, depth in (("output refused", 3), ("input refused", 9)):
            object.__setattr__(deep, "key", key)
            object.__setattr__(deep, "depth", depth)
            await runtime.command("counter", deep)
        await settled(runtime, store)
    async with running(store, Counter, Other, Mended, identity=seeded_identity(seed + 1), **more) as runtime:
        await settled(runtime, store)
        for letter in list(runtime.view.dead):
            assert await runtime.redrive(letter) == "done"
        await runtime.command("counter", command("late", by=1))
        await settled(runtime, store)
        return {name: state(runtime, name) for name in runtime.engines}


async def test_a_replay_gives_the_recorded_outputs_and_states(store: StreamStore, monkeypatch: Any) -> None:
    monkeypatch.setattr(engine, "SNAPSHOT_RECORDS", 5)
    states = await a_life(store)
    for agent in agents(Counter, Other, Mended):
        result = await replay(store, agent)
        assert result.difference is None
        assert result.snapshot == "equal"
        assert result.inputs > 0
        assert result.state == state_hash(states[agent.name])
        assert result.offset == (await records(store, agent_stream(agent.name)))[-1].offset


async def test_it_works_on_a_stopped_home_and_changes_nothing(tmp_path: Path) -> None:
    store = await Log.open(tmp_path / "store", seeded_identity(1))
    await a_life(store)
    await store.close()
    before = files(tmp_path / "store")
    reader = LogReader(tmp_path / "store")
    for agent in agents(Counter, Other, Mended):
        assert (await replay(reader, agent)).difference is None
    await reader.close()
    assert files(tmp_path / "store") == before


class WrongOutput(Counter):
    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        found = super().receive(event)
        if event["type"] == "add" and event["payload"]["by"] == 3:
            found[0]["payload"]["was"] += 1
        return found


class FewerOutputs(Counter):
    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        return []


class MoreOutputs(Counter):
    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        return super().receive(event) * 2


class WrongState(Counter):
    def apply(self, event: dict[str, Any]) -> None:
        super().apply(event)
        if event["type"] == "counter.result":
            self.results.append("more")


class Raises(Counter):
    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        raise RuntimeError


@pytest.mark.parametrize(
    ("changed", "what", "where"),
    [
        (WrongOutput, "outputs", lambda event: event.payload == {"by": 3, "was": 3}),
        (FewerOutputs, "outputs", 2),
        (MoreOutputs, "outputs", 3),
        (WrongState, "state", lambda event: event.type == "counter.result"),
        (Raises, "raised", 1),
    ],
)
async def test_what_differs_is_found_at_its_offset(store: StreamStore, changed: Any, what: str, where: Any) -> None:
    await a_life(store)
    (agent,) = agents(changed)
    difference = (await replay(store, agent)).difference
    if callable(where):
        (where,) = [r.offset for r in await records(store, agent_stream("counter")) if where(r.event)]
    assert difference is not None and (difference.what, difference.offset) == (what, where)


async def test_a_snapshot_that_differs_is_found(store: StreamStore, monkeypatch: Any) -> None:
    monkeypatch.setattr(engine, "SNAPSHOT_RECORDS", 5)
    await a_life(store)
    kept = await store.snapshot("agent-counter", SNAPSHOT_VERSION)
    assert kept is not None
    spoiled = json.loads(kept.state)
    spoiled["state"]["total"] += 1
    await store.put_snapshot("agent-counter", Snapshot(kept.version, kept.position, canonical(spoiled)))
    (agent,) = agents(Counter)
    result = await replay(store, agent)
    assert result.snapshot == "differs"
    assert result.difference is not None and result.difference.what == "snapshot"


async def test_what_was_removed_cannot_be_replayed() -> None:
    for streams, kept in (({"agent/counter": 2}, None), (None, ["ses_1"])):
        store = MemoryStore()
        await a_life(store)
        if streams is not None:
            await store.prune(streams, at_ms=0)
        else:
            await store.forget(kept or [], at_ms=0)
        agent = agents(Counter if streams else Mended)[0]
        difference = (await replay(store, agent)).difference
        assert difference is not None and difference.what == "removed"


async def test_an_agent_without_history_is_replayed_at_once() -> None:
    (agent,) = agents(Counter)
    result = await replay(MemoryStore(), agent)
    assert (result.inputs, result.offset, result.difference) == (0, -1, None)


EVENTS = [
    {"type": "add", "payload": {"by": 3}},
    {"type": "tell", "payload": {"to": "other"}},
    {"type": "call", "payload": {"kind": "work"}},
    {"type": "effect.completed", "payload": {"result": {"n": 1}, "request": "r"}},
    {"type": "execution.step", "payload": {"status": "error"}},
]


def stamped(given: list[dict[str, Any]]) -> list[StreamEvent]:
    identity = seeded_identity(0)
    return [as_event(one, identity) for one in given]


def findings(make: Callable[[], Any]) -> list[str]:
    """Which methods are at fault."""
    return [one.where for one in try_agent(UserAgent("agent", make), stamped(EVENTS[:1])).findings]


@pytest.mark.parametrize("make", [Counter, Other, Watcher, Looper])
def test_our_own_agents_keep_the_contract(make: Callable[[], Any]) -> None:
    first, second = (try_agent(UserAgent("agent", make), stamped(EVENTS)) for _ in range(2))
    assert first == second and first.findings == [] and len(first.results) == len(EVENTS)


def test_the_agent_of_intents_keeps_the_contract() -> None:
    register = {"intent": "int_1", "title": "t", "directory": "/", "prompt": "p", "parent": "ses_1", "agent": "build"}
    given = [
        {"type": "intent.register", "payload": register},
        {"type": "intent.cancel", "payload": {"intent": "int_1"}},
        {"type": "tick", "payload": {"now": 1}},
    ]
    assert try_agent(IntentAgent(PhantomConfig()), stamped(given)).findings == []


class Base:
    name = "at-fault"

    def __init__(self) -> None:
        self.seen = 0

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"type": "it.saw", "payload": {"n": self.value()}}]

    def value(self) -> Any:
        return 0

    def apply(self, event: dict[str, Any]) -> None:
        self.seen += 1


def test_a_receive_that_changes_the_state_is_found() -> None:
    class Changes(Base):
        def value(self) -> int:
            self.seen += 1
            return self.seen

    assert set(findings(Changes)) == {"receive"}


def test_a_second_call_that_returns_something_else_is_found() -> None:
    class Alternates(Base):
        def __init__(self) -> None:
            super().__init__()
            self._calls = 0  # not a part of the state

        def value(self) -> int:
            self._calls += 1
            return self._calls

    assert set(findings(Alternates)) == {"receive"}


def test_a_state_that_a_snapshot_changes_is_found() -> None:
    class Keyed(Base):
        def __init__(self) -> None:
            self.seen = 0
            self._hidden = 0

        def apply(self, event: dict[str, Any]) -> None:
            self._hidden += 1

        def state(self) -> dict[str, Any]:
            return {"hidden": self._hidden}

        def load(self, state: dict[str, Any]) -> None:
            self._hidden = 0

    assert "load" in findings(Keyed)
