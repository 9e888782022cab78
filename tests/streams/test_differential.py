"""Memory, jsonl and sqlite given the same random operations answer the same, record by record and hash by hash.

Keys, streams, bodies and expectations come from a few values each, so that they collide. ``TORTURE_SEQUENCES``
sets how many sequences are tried.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.errors import Conflict, InvalidEvent
from streams.identity import seeded_identity
from streams.query import Filter
from streams.store import OnKnown, Record, StreamStore
from streams.stores.jsonl import JsonlStore
from streams.stores.jsonl_reader import JsonlReader
from streams.stores.memory import MemoryStore
from streams.stores.sqlite import SqliteStore
from streams.stores.sqlite_reader import SqliteReader
from streams.verify import Verification
from tests.streams.builders import event
from tests.streams.disks import FastDisk
from tests.streams.sizes import is_set, size

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
    """Appends that are submitted at once; both stores take them in this order."""

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
class Reopen:
    """Of the stores on disk; memory just goes on."""


@dataclass(frozen=True)
class Prune:
    cuts: dict[str, int]


@dataclass(frozen=True)
class Forget:
    streams: list[str]


Operation = Append | Together | Read | ReadAll | Query | Find | Prune | Forget | Reopen

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
filters = st.builds(
    Filter,
    types=st.sampled_from([(), ("agent.*",), ("agent.error",), ("agent.error", "execution.*")]),
    streams=st.sampled_from([(), ("ses_a",), ("ses_a", "ses_b"), ("never",)]),
    actors=st.sampled_from([(), ("user",)]),
    since_ms=st.sampled_from([None, 1_700_000_000_005]),
    until_ms=st.sampled_from([None, 1_700_000_000_010]),
    text=st.sampled_from([None, "disk full", "✓"]),
)
operations: st.SearchStrategy[Operation] = st.one_of(
    appends,
    appends,
    st.builds(Together, st.lists(appends, min_size=2, max_size=5)),
    st.builds(Read, st.sampled_from([*STREAMS, "never"]), st.integers(-1, 6)),
    st.builds(ReadAll, st.integers(-2, 12)),
    st.builds(Query, filters),
    st.builds(Find, keys | st.just("unknown")),
    st.builds(Prune, st.dictionaries(st.sampled_from([*STREAMS, "never"]), st.integers(-1, 6), max_size=3)),
    st.builds(Forget, st.lists(st.sampled_from([*STREAMS, "never"]), max_size=2)),
    st.just(Reopen()),
)


async def perform(store: StreamStore, operation: Operation, ids: int) -> Any:
    """What the store answers, as plain data; errors too."""
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
        case Prune():
            return await store.prune(operation.cuts, at_ms=ids), await store.removed(), await store.sizes()
        case Forget():
            return await store.forget(operation.streams, at_ms=ids), await store.removed(), await store.sizes()


async def _append(store: StreamStore, operation: Append, ids: int) -> Any:
    identity = seeded_identity(ids)
    batch = [
        event(key, stream=stream, type_=type_, actor=actor, identity=identity, payload=payload)
        for key, stream, type_, actor, payload in operation.batch
    ]
    try:
        records = await store.append(batch, expected=operation.expected, on_known=operation.on_known)
    except (Conflict, InvalidEvent) as error:
        return (type(error).__name__, str(error))
    return [(record.as_json(), record.duplicate) for record in records]


async def _plain(records: AsyncIterator[Record]) -> list[dict[str, Any]]:
    return [record.as_json() async for record in records]


async def play(script: list[Operation], directory: Path) -> None:
    (directory / "log").mkdir()
    (directory / "store.json").write_bytes(MANIFEST)

    async def open_jsonl() -> JsonlStore:
        return await JsonlStore.open(directory, seeded_identity(1), disk=FastDisk(), segment_bytes=700)

    async def open_sqlite() -> SqliteStore:
        return await SqliteStore.open(directory)

    memory = MemoryStore()
    opens: list[Callable[[], Awaitable[StreamStore]]] = [open_jsonl, open_sqlite]
    stores = [await open_store() for open_store in opens]
    differences = 0
    try:
        for number, operation in enumerate(script):
            if isinstance(operation, Reopen):
                differences = memory.differences
                for store in stores:
                    await store.close()
                stores = [await open_store() for open_store in opens]
                continue
            wanted = await perform(memory, operation, number)
            for store in stores:
                assert await perform(store, operation, number) == wanted, (type(store).__name__, operation)
                assert store.head == memory.head
                assert store.differences + differences == memory.differences
        everything = await _plain(memory.read_all())
        for reader in (*stores, JsonlReader(directory), SqliteReader(directory)):
            assert await _plain(reader.read_all()) == everything
            assert await reader.removed() == await memory.removed()
    finally:
        for store in stores:
            await store.close()
    assert [str(finding) async for finding in Verification(directory).run()] == []


@settings(
    max_examples=size("SEQUENCES", 200),
    deadline=None,
    derandomize=not is_set("SEQUENCES"),
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(operations, min_size=3, max_size=10))
def test_the_stores_answer_the_same(script: list[Operation]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(script, Path(directory)))
