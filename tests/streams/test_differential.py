"""Memory, jsonl and sqlite given the same random operations answer the same, record by record
and hash by hash.

A Hypothesis state machine drives them together with a fourth store, a log that moves between jsonl
and sqlite. Keys, streams, bodies and expectations have few values each, so that they collide.
``TORTURE_SEQUENCES`` sets the number of sequences, ``TORTURE_SEED`` the seed.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from streams.errors import Conflict, InvalidEvent
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.migrate import Migration
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.query import Filter
from streams.store import NOTHING, OnKnown, Record, Snapshot, StreamStore
from streams.stores.directory import Backend
from streams.stores.head import EMPTY_HEAD, format_head
from streams.stores.jsonl.reader import JsonlReader
from streams.stores.jsonl.store import JsonlStore
from streams.stores.sqlite.reader import SqliteReader
from streams.stores.sqlite.store import SqliteStore
from streams.stores.sqlite.verify import SqliteVerification
from tests.memory import MemoryStore
from tests.streams.builders import event
from tests.streams.disks import FastDisk
from tests.streams.sizes import is_set, size

HANG_S = 60.0

MANIFEST = b'{"backend":"jsonl","format":1,"log_id":"01HF7YAT0072TECMQ49PKZ57H0"}'
"""Written beforehand: the store would sync it, and there are many stores."""

STREAMS = ["ses_a", "ses_b", "agent/x"]
TYPES = ["execution.step", "agent.error", "agent.spawned"]

keys = st.sampled_from(["a", "b", "c", "d", 'quote"d', "ü"])
payloads = st.sampled_from(
    [
        {},
        {"n": 1},
        {"n": 1.0},
        {"text": "Disk FULL"},
        {"é": ["✓", None, True, {"z": 1, "a": -0.0}]},
        {"lone": "\ud800", "big": 2**70, "not": float("nan")},
    ]
)


@dataclass(frozen=True)
class Append:
    batch: list[tuple[str, str, str, str, dict[str, Any]]]
    expected: dict[str, int] | None
    on_known: OnKnown


@dataclass(frozen=True)
class Together:
    """Appends that are submitted at once; every store takes them in this order."""

    appends: list[Append]


@dataclass(frozen=True)
class Read:
    stream: str
    from_offset: int


@dataclass(frozen=True)
class ReadAll:
    after: int


@dataclass(frozen=True)
class Query:
    wanted: Filter


@dataclass(frozen=True)
class Find:
    key: str


@dataclass(frozen=True)
class Advance:
    """Advance a cursor to ``behind`` records before the head."""

    name: str
    behind: int


@dataclass(frozen=True)
class PutSnapshot:
    """Like ``Advance``, with a state of some form."""

    name: str
    behind: int
    version: int


@dataclass(frozen=True)
class Hints:
    """Read a name's cursor, and its snapshot of a form."""

    name: str
    version: int


@dataclass(frozen=True)
class Follow:
    """Read all available records of the live tail."""

    after: int


@dataclass(frozen=True)
class Prune:
    cuts: dict[str, int]


@dataclass(frozen=True)
class Forget:
    streams: list[str]


Operation = Append | Together | Read | ReadAll | Query | Find | Advance | PutSnapshot | Hints | Follow | Prune | Forget

appends = st.builds(
    Append,
    st.lists(
        st.tuples(keys, st.sampled_from(STREAMS), st.sampled_from(TYPES), st.sampled_from(["user", "build"]), payloads),
        min_size=1,
        max_size=4,
    ),
    st.none() | st.dictionaries(st.sampled_from(STREAMS), st.integers(0, 4), max_size=2),
    st.sampled_from(["conflict", "keep_first"]),
)
CORRELATION = "corr"
filters = st.builds(
    Filter,
    types=st.sampled_from([(), ("agent.*",), ("agent.error",), ("agent.error", "execution.*")]),
    streams=st.sampled_from([(), ("ses_a",), ("ses_a", "ses_b"), ("never",)]),
    actors=st.sampled_from([(), ("user",)]),
    correlation_id=st.sampled_from([None, None, CORRELATION, "never"]),
    causation_id=st.sampled_from([None, None, "cause-1", "never"]),
    since_ms=st.sampled_from([None, 1_700_000_000_005]),
    until_ms=st.sampled_from([None, 1_700_000_000_010]),
    text=st.sampled_from([None, "disk full", "✓"]),
)
names = st.sampled_from([*STREAMS, "never"])
forgets = st.builds(Forget, st.lists(names, max_size=2))
hint_names = st.sampled_from(["mirror", "lineage", "Not a name"])
behinds = st.integers(0, 3)
versions = st.integers(1, 2)


async def perform(store: StreamStore, operation: Operation, ids: int) -> Any:
    """Return the store's answer, or its error, as plain data."""
    match operation:
        case Append():
            return await _append(store, operation, ids)
        case Together():
            tasks = [
                asyncio.ensure_future(_append(store, each, ids * 100 + n)) for n, each in enumerate(operation.appends)
            ]
            return await asyncio.gather(*tasks)
        case Read():
            return await _plain(store.read(operation.stream, from_offset=operation.from_offset))
        case ReadAll():
            return await _plain(store.read_all(after=operation.after))
        case Query():
            return await _plain(store.query(operation.wanted))
        case Find():
            found = await store.find(f"test:{operation.key}")
            return None if found is None else found.as_json()
        case Advance():
            return await _refused(store.advance(operation.name, max(store.head - operation.behind, NOTHING)))
        case PutSnapshot():
            position = max(store.head - operation.behind, NOTHING)
            state = b"state at %d" % position
            return await _refused(store.put_snapshot(operation.name, Snapshot(operation.version, position, state)))
        case Hints():
            return (
                await _refused(store.cursor(operation.name)),
                await _refused(store.snapshot(operation.name, operation.version)),
            )
        case Follow():
            return await _followed(store, operation.after)

        case Prune():
            done = await store.prune(operation.cuts, at_ms=ids)
            return done._replace(moved_from=None), await store.removed(), await store.sizes()
        case Forget():
            forgotten = await store.forget(operation.streams, at_ms=ids)
            return forgotten._replace(moved_from=None), await store.removed(), await store.sizes()


async def _refused(answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except ValueError as error:
        return (type(error).__name__, str(error))


async def _followed(store: StreamStore, after: int) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    there = len(await _plain(store.read_all(after=after)))  # what was pruned never comes
    tail = store.subscribe(after=after)
    async with asyncio.timeout(HANG_S):
        while len(seen) < there:
            seen.append((await anext(tail)).as_json())
    await tail.aclose()  # type: ignore[attr-defined]
    return seen


async def _append(store: StreamStore, operation: Append, ids: int) -> Any:
    identity = seeded_identity(ids)
    batch = [
        event(
            key,
            stream=stream,
            type_=type_,
            actor=actor,
            identity=identity,
            payload=payload,
            correlation_id=CORRELATION if key < "c" else None,
            causation_id=f"cause-{ids % 3}",
        )
        for key, stream, type_, actor, payload in operation.batch
    ]
    try:
        records = await store.append(batch, expected=operation.expected, on_known=operation.on_known)
    except (Conflict, InvalidEvent) as error:
        return (type(error).__name__, str(error))
    return [(record.as_json(), record.duplicate) for record in records]


async def _plain(records: AsyncIterator[Record]) -> list[dict[str, Any]]:
    return [record.as_json() async for record in records]


@seed(size("SEED", 1))
class Machine(RuleBasedStateMachine):
    """The stores side by side. The others are compared with memory, which is never closed."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        # In memory where there is such a place: nothing here must survive, and there are many stores.
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.directory = Path(self.folder.name)
        self.number = self.differences = 0
        self.memory = MemoryStore()
        for name in ("jsonl", "sqlite", "moving"):
            (self.directory / name / "log").mkdir(parents=True)
            (self.directory / name / "head").write_bytes(format_head(EMPTY_HEAD))
            (self.directory / name / "store.json").write_bytes(MANIFEST)
        self.opens: list[Callable[[], Awaitable[StreamStore]]] = [
            lambda: JsonlStore.open(self.directory / "jsonl", seeded_identity(1), disk=FastDisk(), segment_bytes=700),
            lambda: SqliteStore.open(self.directory / "sqlite"),
            lambda: Log.open(self.directory / "moving", seeded_identity(1), disk=FastDisk(), segment_bytes=900),
        ]
        self.stores: list[StreamStore] = []
        self.runner.run(self._open())

    async def _open(self) -> None:
        self.stores = [await open_store() for open_store in self.opens]

    async def _close(self) -> None:
        for store in self.stores:
            await store.close()

    async def _compare(self, operation: Operation) -> None:
        self.number += 1
        wanted = await perform(self.memory, operation, self.number)
        for store in self.stores:
            answer = await perform(store, operation, self.number)
            assert answer == wanted, (type(store).__name__, operation)

    @rule(operation=appends)
    def append(self, operation: Append) -> None:
        self.runner.run(self._compare(operation))

    @rule(operation=st.builds(Together, st.lists(appends, min_size=2, max_size=5)))
    def append_together(self, operation: Together) -> None:
        self.runner.run(self._compare(operation))

    @rule(operation=st.builds(Read, st.sampled_from([*STREAMS, "never"]), st.integers(-1, 6)))
    def read(self, operation: Read) -> None:
        self.runner.run(self._compare(operation))

    @rule(operation=st.builds(ReadAll, st.integers(-2, 12)) | st.builds(Follow, st.integers(-1, 12)))
    def read_all(self, operation: ReadAll | Follow) -> None:
        self.runner.run(self._compare(operation))

    @rule(operation=st.builds(Query, filters) | st.builds(Find, keys | st.just("unknown")))
    def look_for(self, operation: Query | Find) -> None:
        self.runner.run(self._compare(operation))

    @rule(
        operation=st.builds(Advance, hint_names, behinds)
        | st.builds(PutSnapshot, hint_names, behinds, versions)
        | st.builds(Hints, hint_names, versions)
    )
    def hint(self, operation: Advance | PutSnapshot | Hints) -> None:
        self.runner.run(self._compare(operation))

    @rule(
        operation=st.builds(
            Prune, st.dictionaries(st.sampled_from([*STREAMS, "never"]), st.integers(-1, 6), max_size=3)
        )
        | st.builds(Forget, st.lists(st.sampled_from([*STREAMS, "never"]), max_size=2))
    )
    def remove(self, operation: Prune | Forget) -> None:
        """Remove; the jsonl store cannot, so it takes no further part."""
        for store in [store for store in self.stores if isinstance(store, JsonlStore)]:
            self.runner.run(store.close())
            self.stores.remove(store)
            del self.opens[0]
        self.runner.run(self._compare(operation))

    @rule()
    def reopen(self) -> None:
        """Reopen the stores on disk; memory just continues."""

        async def run() -> None:
            await self._close()
            await self._open()

        self.differences = self.memory.differences
        self.runner.run(run())

    @rule(to=st.sampled_from(["jsonl", "sqlite"]))
    def move(self, to: Backend) -> None:
        moving = self.stores[-1]
        assert isinstance(moving, Log)
        if moving.backend != to and not self.runner.run(moving.removed()):
            self.runner.run(Migration(moving, to).run())

    @invariant()
    def heads_and_differences_are_equal(self) -> None:
        for store in self.stores:
            assert store.head == self.memory.head
            assert store.differences + self.differences == self.memory.differences

    def teardown(self) -> None:
        try:
            self.runner.run(self._check())
        finally:
            self.runner.run(self._close())
            self.runner.close()
            self.folder.cleanup()

    async def _check(self) -> None:
        everything = await _plain(self.memory.read_all())
        has_jsonl = len(self.stores) == 3
        readers: list[Any] = [JsonlReader(self.directory / "jsonl")] if has_jsonl else []
        readers.append(SqliteReader(self.directory / "sqlite"))
        beside = LogReader(self.directory / "moving")
        for reader in (*self.stores, *readers, beside):
            assert await _plain(reader.read_all()) == everything
            assert await reader.removed() == await self.memory.removed()
        for reader in (*readers, beside):
            await reader.close()
        # The sqlite store was opened without the log, so the manifest in its directory still says jsonl.
        for name in ("jsonl", "moving") if has_jsonl else ("moving",):
            assert [str(finding) async for finding in Verification(self.directory / name).run()] == []
        assert [str(f) async for f in SqliteVerification(self.directory / "sqlite", None).run()] == []


def test_the_stores_answer_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that keys are remembered, written and looked up in every sequence.
    monkeypatch.setattr("streams.stores.sqlite.keys.FOLDED", 7)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=size("SEQUENCES", 60),
            stateful_step_count=10,
            deadline=None,
            derandomize=not is_set("SEQUENCES"),
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
