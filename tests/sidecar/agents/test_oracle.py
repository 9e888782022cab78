"""Duplicates, any order, groups, restarts, snapshots, poison, two engines: equals an oracle."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, seed, settings
from hypothesis import strategies as st

from sidecar.agents import engine
from sidecar.agents.deciding import AgentFailed, Handled
from sidecar.agents.inputs import InputRefused, agent_stream, state_hash
from sidecar.agents.runtime import Runtime
from streams.bus.command import Command
from streams.identity import seeded_identity
from streams.store import StreamStore
from tests.memory import MemoryStore
from tests.sidecar.agents.agents import Counter, Watcher
from tests.sidecar.agents.support import opener, records, running, settled, state, steps
from tests.streams.sizes import is_set, size
from tests.torture.figures import SEED

EXAMPLES = size("RUNTIME_EXAMPLES", 60)

KEYS = st.integers(0, 11)
ENGINES = st.integers(0, 1)

SEND = st.tuples(st.just("send"), st.lists(st.tuples(KEYS, ENGINES, st.integers(1, 10)), min_size=1, max_size=12))
"""Commands that are sent at the same time: key, engine, and how often at once."""
OTHER_BODY = st.tuples(st.just("other body"), KEYS, ENGINES)
STEPS = st.tuples(st.just("steps"), st.lists(st.sampled_from(["error", "completed", "broken"]), min_size=1, max_size=4))
RESTART = st.tuples(st.just("restart"), ENGINES)
SCENARIOS = st.lists(st.one_of(SEND, SEND, SEND, OTHER_BODY, STEPS, RESTART), min_size=1, max_size=12)


def body(key: int) -> tuple[str, dict[str, Any]]:
    """Each key has one body; some poison the agent, some give two outputs, some none."""
    if key % 5 == 4:
        return "fail", {"n": key}
    if key % 5 == 3:
        return "quiet", {"n": key}
    if key % 5 == 2:
        return "tell", {"to": "nobody", "n": key}
    return "add", {"by": key + 1}


class World:
    """Two runtimes over one store."""

    def __init__(self, store: StreamStore) -> None:
        self.store = store
        self._stacks = [AsyncExitStack(), AsyncExitStack()]
        self._runtimes: list[Runtime | None] = [None, None]
        self._lives = 0
        self.sent: set[int] = set()
        self.appended: list[str] = []

    async def runtime(self, number: int) -> Runtime:
        found = self._runtimes[number]
        if found is None:
            self._lives += 1
            identity = seeded_identity(1000 + self._lives)
            entered = running(self.store, Counter, Watcher, identity=identity)
            found = self._runtimes[number] = await self._stacks[number].enter_async_context(entered)
        return found

    async def restart(self, number: int) -> None:
        await self._stacks[number].aclose()
        self._runtimes[number] = None

    async def send(self, key: int, number: int) -> None:
        type_, payload = body(key)
        self.sent.add(key)
        runtime = await self.runtime(number)
        try:
            handled: Handled = await runtime.command("counter", Command(str(key), type_, payload))
            assert type_ != "fail"
            assert handled.outcome in ("done", "duplicate")
        except AgentFailed:
            assert type_ == "fail"

    async def other_body(self, key: int, number: int) -> None:
        if key not in self.sent or body(key)[0] == "fail":
            return
        with pytest.raises(InputRefused):
            await (await self.runtime(number)).command("counter", Command(str(key), "add", {"by": -1}))

    async def append(self, statuses: list[str]) -> None:
        await self.runtime(0)
        begin = len(self.appended)
        self.appended += statuses
        await self.store.append(steps(*self.appended)[begin:])

    async def play(self, scenario: list[Any]) -> None:
        for what, *more in scenario:
            match what:
                case "send":
                    for number in (0, 1):  # a runtime that starts during the sends would be another scenario
                        await self.runtime(number)
                    await asyncio.gather(*(self.send(key, to) for key, to, times in more[0] for _ in range(times)))
                case "other body":
                    await self.other_body(*more)
                case "steps":
                    await self.append(more[0])
                case "restart":
                    await self.restart(*more)
        for number in (0, 1):
            await settled(await self.runtime(number), self.store)
            await self.restart(number)


def oracle(own: list[Any], sent: set[int], errors: int) -> dict[str, Any]:
    """Apply each input once, in the order of the log; check what is recorded for it on the way. Returns the state."""
    clean = Counter()
    keys: list[str] = []
    at, told = 1, 0
    while at < len(own):
        given = own[at].event
        role, type_ = given.metadata["role"], given.type
        assert role in ("input", "dead"), f"offset {at} is no beginning of a group"
        at += 1
        if role == "dead":
            continue
        keys.append(given.idempotency_key)
        if type_ == "agent.received":
            told += 1
            type_, payload = "add", {"by": 1}
        else:
            assert (type_, given.payload) == body(int(given.metadata["key"]))
            payload = given.payload
        wanted = clean.receive({"type": type_, "payload": payload})
        for output in wanted:
            assert (own[at].event.type, own[at].event.payload) == (output["type"], output["payload"])
            assert own[at].event.causation_id == given.id
            clean.apply(output)
            at += 1
        assert own[at - 1].event.metadata["state"] == state_hash(vars(clean))
    assert len(keys) == len(set(keys)), "each input once"
    assert told == errors
    assert len(keys) - told == sum(body(key)[0] != "fail" for key in sent), "nothing lost"
    return vars(clean)


async def check(store: StreamStore, scenario: list[Any]) -> None:
    world = World(store)
    async with running(store, Counter, Watcher, identity=seeded_identity(999)):
        pass  # so that the agents are installed before the first step
    await world.play(scenario)
    errors = world.appended.count("error")
    final = oracle(await records(store, agent_stream("counter")), world.sent, errors)
    async with running(store, Counter, Watcher, identity=seeded_identity(998)) as runtime:
        await settled(runtime, store)
        assert state(runtime) == final
        assert state(runtime, "watcher") == {"failed": errors}
        assert len(runtime.view.dead) == world.appended.count("broken")
    payloads = [r.event.payload for r in await records(store, agent_stream("watcher"))]
    positions = [payload["position"] for payload in payloads if "position" in payload]
    assert positions == sorted(positions), "events reach an agent in the order of the log"


@seed(SEED)
@given(SCENARIOS)
@example([("steps", ["error", "broken"]), ("send", [(3, 1, 1)])])  # both engines record the very same batch
@settings(max_examples=EXAMPLES, deadline=None, derandomize=not is_set("RUNTIME_EXAMPLES"), database=None)
def test_any_scenario_equals_the_oracle(scenario: list[Any]) -> None:
    with patch.object(engine, "SNAPSHOT_RECORDS", 7):
        asyncio.run(check(MemoryStore(), scenario))


@seed(SEED)
@given(scenario=SCENARIOS)
@settings(
    max_examples=max(EXAMPLES // 20, 3),
    deadline=None,
    derandomize=not is_set("RUNTIME_EXAMPLES"),
    database=None,
)
def test_the_same_on_disk(scenario: list[Any]) -> None:
    async def run(path: Path) -> None:
        store = await opener("disk", path)()
        try:
            await check(store, scenario)
        finally:
            await store.close()

    with TemporaryDirectory() as name, patch.object(engine, "SNAPSHOT_RECORDS", 7):
        asyncio.run(run(Path(name)))
