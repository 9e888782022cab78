"""Memory and three logs, whose records are in the journal, in the database or in both, given the same random
operations, answer the same, record by record and hash by hash.

A Hypothesis state machine drives them. Keys, streams, bodies and expectations have few values each, so
that they collide. ``TORTURE_SEQUENCES`` sets the number of sequences, ``TORTURE_SEED`` the seed.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from streams.errors import Conflict, InvalidEvent
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import NOTHING, Record, RetentionStore, Snapshot
from tests.memory import MemoryStore
from tests.streams.builders import event
from tests.streams.disks import FastDisk
from tests.streams.opened import faults
from tests.streams.sizes import is_set, size

HANG_S = 60.0
PAUSES = {"in the journal": 1e6, "in both": 0.002, "in the database": 0.0}
"""How long a log waits for a pause before it moves records."""

names = st.sampled_from(["ses_a", "ses_b", "agent/x", "never"])
keys = st.sampled_from(["a", "b", "c", "d", 'quote"d', "ü"])
payloads: list[dict[str, Any]] = [{}, {"n": 1}, {"n": 1.0}, {"text": "Disk FULL"}]
payloads += [{"é": ["✓", None, True, {"z": 1, "a": -0.0}]}, {"lone": "\ud800", "big": 2**70, "not": float("nan")}]
given_events = st.tuples(
    keys,
    st.sampled_from(["ses_a", "ses_b", "agent/x"]),
    st.sampled_from(["execution.step", "agent.error", "agent.spawned"]),
    st.sampled_from(["user", "build"]),
    st.sampled_from(payloads),
)
appends = st.tuples(
    st.lists(given_events, min_size=1, max_size=4),
    st.none() | st.dictionaries(st.sampled_from(["ses_a", "ses_b", "agent/x"]), st.integers(0, 4), max_size=2),
    st.sampled_from(["conflict", "keep_first"]),
)
filters = st.builds(
    Filter,
    types=st.sampled_from([(), ("agent.*",), ("agent.error",), ("agent.error", "execution.*")]),
    streams=st.sampled_from([(), ("ses_a",), ("ses_a", "ses_b"), ("never",)]),
    actors=st.sampled_from([(), ("user",)]),
    correlation_id=st.sampled_from([None, None, "corr", "never"]),
    causation_id=st.sampled_from([None, None, "cause-1", "never"]),
    since_ms=st.sampled_from([None, 1_700_000_000_005]),
    until_ms=st.sampled_from([None, 1_700_000_000_010]),
    text=st.sampled_from([None, "disk full", "✓"]),
)
hints = st.sampled_from(["mirror", "lineage", "Not a name"])

Ask = Callable[[RetentionStore], Awaitable[Any]]


async def _append(store: RetentionStore, given: Any, ids: int) -> Any:
    """The store's answer, or its error, as plain data."""
    batch, expected, on_known = given
    identity = seeded_identity(ids)
    events = [
        event(
            key,
            stream=stream,
            type_=type_,
            actor=actor,
            identity=identity,
            payload=payload,
            correlation_id="corr" if key < "c" else None,
            causation_id=f"cause-{ids % 3}",
        )
        for key, stream, type_, actor, payload in batch
    ]
    try:
        records = await store.append(events, expected=expected, on_known=on_known)
    except (Conflict, InvalidEvent) as error:
        return (type(error).__name__, str(error))
    return [(record.as_json(), record.duplicate) for record in records]


async def _plain(records: AsyncIterator[Record]) -> list[dict[str, Any]]:
    return [record.as_json() async for record in records]


async def _followed(store: RetentionStore, after: int) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    there = len(await _plain(store.read_all(after=after)))  # what was pruned never comes
    tail = store.subscribe(after=after)
    async with asyncio.timeout(HANG_S):
        while len(seen) < there:
            seen.append((await anext(tail)).as_json())
    await tail.aclose()  # type: ignore[attr-defined]
    return seen


async def _hinted(store: RetentionStore, do: str, name: str, behind: int, version: int) -> Any:
    position = max(store.head - behind, NOTHING)
    try:
        if do == "advance":
            return await store.advance(name, position)
        if do == "put":
            return await store.put_snapshot(name, Snapshot(version, position, b"state at %d" % position))
        return await store.cursor(name), await store.snapshot(name, version)
    except ValueError as error:
        return str(error)


@seed(size("SEED", 1))
class Machine(RuleBasedStateMachine):
    """The logs side by side. They are compared with memory, which is never closed."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        # In memory where there is such a place: nothing here must survive, and there are many stores.
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.number = self.differences = 0
        self.memory = MemoryStore()
        self.runner.run(self._open())

    def place(self, name: str) -> Path:
        return Path(self.folder.name) / name

    async def _open(self) -> None:
        self.logs = {
            name: await Log.open(self.place(name), seeded_identity(1), disk=FastDisk(), segment_bytes=800)
            for name in PAUSES
        }
        for name, pause in PAUSES.items():
            self.logs[name].mover.pause = pause

    async def _close(self) -> None:
        for log in self.logs.values():
            await log.close()

    def compare(self, ask: Ask) -> None:
        async def run() -> None:
            wanted = await ask(self.memory)
            for name, log in self.logs.items():
                assert await ask(log) == wanted, name

        self.number += 1
        self.runner.run(run())

    @rule(given=appends)
    def append(self, given: Any) -> None:
        self.compare(lambda store: _append(store, given, self.number))

    @rule(several=st.lists(appends, min_size=2, max_size=5))
    def append_together(self, several: list[Any]) -> None:
        """Appends that are submitted at once; every store takes them in this order."""

        async def ask(store: RetentionStore) -> Any:
            work = [_append(store, given, self.number * 100 + n) for n, given in enumerate(several)]
            return await asyncio.gather(*map(asyncio.ensure_future, work))

        self.compare(ask)

    @rule(stream=names, offset=st.integers(-1, 6), after=st.integers(-2, 12))
    def read(self, stream: str, offset: int, after: int) -> None:
        self.compare(lambda store: _plain(store.read(stream, from_offset=offset)))
        self.compare(lambda store: _plain(store.read_all(after=after)))
        self.compare(lambda store: _followed(store, after))

    @rule(wanted=filters, key=keys | st.just("unknown"))
    def look_for(self, wanted: Filter, key: str) -> None:
        async def found(store: RetentionStore) -> Any:
            record = await store.find(f"test:{key}")
            return record and record.as_json()

        self.compare(lambda store: _plain(store.query(wanted)))
        self.compare(found)

    @rule(
        do=st.sampled_from(["advance", "put", "look"]), name=hints, behind=st.integers(0, 3), version=st.integers(1, 2)
    )
    def hint(self, do: str, name: str, behind: int, version: int) -> None:
        """Advance a cursor to ``behind`` records before the head, put a snapshot of it there, or look for both."""
        self.compare(lambda store: _hinted(store, do, name, behind, version))

    @rule(cuts=st.dictionaries(names, st.integers(-1, 6), max_size=3), streams=st.lists(names, max_size=2))
    def remove(self, cuts: dict[str, int], streams: list[str]) -> None:
        async def ask(store: RetentionStore) -> Any:
            pruned = await store.prune(cuts, at_ms=self.number)
            forgotten = await store.forget(streams, at_ms=self.number)
            return pruned, forgotten, await store.removed(), await store.sizes()

        self.compare(ask)

    @rule()
    def reopen(self) -> None:
        async def run() -> None:
            await self._close()
            await self._open()

        self.differences = self.memory.differences
        self.runner.run(run())

    @invariant()
    def heads_and_differences_are_equal(self) -> None:
        for log in self.logs.values():
            assert log.head == self.memory.head
            assert log.differences + self.differences == self.memory.differences

    def teardown(self) -> None:
        try:
            self.runner.run(self._check())
        finally:
            self.runner.run(self._close())
            self.runner.close()
            self.folder.cleanup()

    async def _check(self) -> None:
        everything = await _plain(self.memory.read_all())
        for name in PAUSES:
            reader = LogReader(self.place(name))
            assert await _plain(reader.read_all()) == everything
            assert await reader.removed() == await self.memory.removed()
            await reader.close()
            assert await faults(self.place(name)) == []


def test_the_stores_answer_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # Making a log syncs it; nothing here need survive.
    monkeypatch.setattr("os.fsync", lambda fd: None)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=size("SEQUENCES", 20),
            stateful_step_count=10,
            deadline=None,
            derandomize=not is_set("SEQUENCES"),
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
