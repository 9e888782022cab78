"""Stores: appends compared with raw writes and bare SQLite, appends on a slow disk, and replay compared with
``orjson.loads``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import orjson
from streams.log.backends import open_backend
from streams.stores.sqlite.store import SqliteStore

from benchmarks.limits import GROUP, ROUNDS, bare_sqlite_rate, beside, raw_group_rate, raw_rate
from benchmarks.report import Row
from streams.event import StreamEvent
from streams.hashing import encode
from streams.identity import system_identity
from streams.store import StreamStore
from streams.stores.commit import Pending
from streams.stores.disk import Disk
from streams.stores.journal.lines import parse_keys, parse_record
from streams.stores.sqlite.files import STEPS, connect_to_write
from streams.stores.sqlite.rows import INSERT, stored_row
from streams.stores.sqlite.rows import Row as StoredRow
from streams.stores.stored import Stored

IDENTITY = system_identity()
PAYLOAD = {"session": "ses_bench", "text": "x" * 560, "tokens": {"input": 10, "output": 5}}
CHUNK = 2000
SLOW_CHUNK = 50
SLOWER_SECONDS = 0.005


class SlowDisk(Disk):
    """A disk whose syncs take 5 ms longer."""

    def sync(self, fd: int) -> None:
        time.sleep(SLOWER_SECONDS)
        super().sync(fd)


class SlowSqlite(SqliteStore):
    """SQLite syncs its log once per commit: each commit takes 5 ms longer."""

    def _commit(self, group: Sequence[Pending]) -> float:
        time.sleep(SLOWER_SECONDS)
        return super()._commit(group) + SLOWER_SECONDS


def an_event(number: int) -> StreamEvent:
    """An event that takes about 1 KiB in the store."""
    return IDENTITY.stamp(
        {
            "type": "execution.output",
            "stream_id": f"ses_{number % 8}",
            "actor": "build",
            "source": {"agent": "build", "adapter": "opencode"},
            "idempotency_key": f"bench:{IDENTITY.ulid()}",
            "payload": PAYLOAD,
        }
    )


async def append_rate(
    store: StreamStore, in_flight: int, seconds: float, chunk: int | None = None, *, a_call: int = 1
) -> float:
    """Events per second with this many calls waiting at a time, each with ``a_call`` events; includes encoding the
    events, but not making them."""
    chunk = chunk or CHUNK // a_call * a_call
    done, spent = 0, 0.0
    while spent < seconds:
        batch = iter([an_event(done + n) for n in range(chunk)])

        async def one(events: Iterator[StreamEvent] = batch) -> None:
            while some := list(islice(events, a_call)):
                await store.append(some)

        start = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(in_flight)))
        spent += time.perf_counter() - start
        done += chunk
    return done / spent


def _rate(lines: list[bytes], read: Callable[[bytes], object], seconds: float) -> float:
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        for line in lines:
            read(line)
        count += len(lines)
    return count / spent


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure the rows of both stores."""
    return [
        *await _jsonl(directory, seconds),
        *await _sqlite(directory, seconds),
        *await _slow_disk(directory, seconds),
        *await _replay(directory, seconds),
    ]


async def _jsonl(directory: Path, seconds: float) -> list[Row]:
    store = await open_backend(directory / "store", "jsonl")
    await append_rate(store, 64, seconds / ROUNDS)  # warm up before measuring

    def appending(in_flight: int) -> Callable[[float], object]:
        return lambda s: append_rate(store, in_flight, s)

    async def group(s: float) -> float:
        return raw_group_rate(directory, s)

    rate, limit = await beside(lambda s: raw_rate(directory, s), group, seconds)
    rows = [Row("raw file, 64 lines a sync", rate, limit, "R")]
    for in_flight, floor, aim in ((1, 0.5, 0.85), (64, 5, 9)):
        rate, limit = await beside(
            lambda s: raw_rate(directory, s),
            lambda s, n=in_flight: append_rate(store, n, s),
            seconds,  # type: ignore[misc]
        )
        rows.append(Row(f"jsonl append, {in_flight} in flight", rate, limit, "R", floor, aim))
    rate, limit = await beside(
        lambda s: raw_rate(directory, s), lambda s: append_rate(store, 1, s, a_call=GROUP), seconds
    )
    rows.append(Row("jsonl append, 64 a call", rate, limit, "R", 6.5, 9))
    await store.close()
    return rows


async def _sqlite(directory: Path, seconds: float) -> list[Row]:
    home = directory / "sqlite"
    home.mkdir()
    store = await SqliteStore.open(home)
    await append_rate(store, 64, seconds / ROUNDS)  # warm up before measuring
    rows = []
    for in_flight, floor, aim in ((1, None, None), (64, 0.6, 0.95)):
        rate, limit = await beside(
            lambda s: bare_sqlite_rate(directory, s),
            lambda s, n=in_flight: append_rate(store, n, s),
            seconds,  # type: ignore[misc]
        )
        rows.append(Row(f"sqlite append, {in_flight} in flight", rate, limit, "sqlite3 executemany", floor, aim))
    for label, in_flight, a_call, floor, aim in (
        ("1 in flight", 1, 1, 0.35, 0.75),
        ("64 in flight", GROUP, 1, 3, 7),
        ("64 a call", 1, GROUP, 3.5, 7),
    ):
        rate, limit = await beside(
            lambda s: raw_rate(directory, s),
            lambda s, n=in_flight, m=a_call: append_rate(store, n, s, a_call=m),
            seconds,  # type: ignore[misc]
        )
        rows.append(Row(f"sqlite append, {label}, beside single writes", rate, limit, "R", floor, aim))
    await store.close()
    table = _SameTable(directory / "same.db")
    store = await SqliteStore.open(_made(directory / "sqlite-again"))
    rate, limit = await beside(table.rate, lambda s: append_rate(store, 64, s), seconds)
    rows.append(Row("sqlite append, 64 in flight, beside the same rows by sqlite3", rate, limit, "the same table"))
    await store.close()
    table.close()
    return rows


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


class _SameTable:
    """Writes the store's rows, made beforehand, to a table with the store's indexes, by ``executemany`` of 64 and a
    commit: the time that ``sqlite3`` itself needs for them."""

    def __init__(self, path: Path) -> None:
        self._connection = connect_to_write(path, STEPS)
        self._connection.execute("PRAGMA wal_autocheckpoint = 1000")
        self._connection.execute("INSERT INTO streams VALUES (1, 'ses_bench')")
        self._next = 0

    def rate(self, seconds: float) -> float:
        """Rows per second."""
        count, spent = 0, 0.0
        while spent < seconds:
            rows = [self._row(number) for number in range(self._next, self._next + 2048)]
            self._next += len(rows)
            start = time.perf_counter()
            for begin in range(0, len(rows), 64):
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(INSERT, rows[begin : begin + 64])
                self._connection.execute("COMMIT")
            spent += time.perf_counter() - start
            count += len(rows)
        return count / spent

    @staticmethod
    def _row(number: int) -> StoredRow:
        event = an_event(number)
        encoded = encode(event)
        return stored_row(Stored(number, number, b"h" * 32, 0, 1, encoded.canonical), event, 1)

    def close(self) -> None:
        self._connection.close()


async def _slow_disk(directory: Path, seconds: float) -> list[Row]:
    rows = []
    home = directory / "slow-sqlite"
    home.mkdir()
    stores: dict[str, StreamStore] = {
        "jsonl": await open_backend(directory / "slow", "jsonl", disk=SlowDisk()),
        "sqlite": await asyncio.to_thread(SlowSqlite, home),
    }
    for name, store in stores.items():
        rate, limit = await beside(
            lambda s, one=store: append_rate(one, 1, s, SLOW_CHUNK),  # type: ignore[misc]
            lambda s, one=store: append_rate(one, 64, s),  # type: ignore[misc]
            seconds,
        )
        rows.append(Row(f"{name}, disk 5 ms slower, 64 in flight", rate, limit, "1 in flight", 50, 60))
        await store.close()
    return rows


async def _replay(directory: Path, seconds: float) -> list[Row]:
    path = min((directory / "store" / "log").iterdir())
    lines = path.read_bytes().split(b"\n")[:-1][:2000]
    rows = []
    for label, read, floor, aim in (
        ("replay, raw records", parse_keys, 0.75, 1.2),
        ("replay, typed records", parse_record, 0.35, 0.6),
    ):

        async def work(s: float, read: Callable[[bytes], object] = read) -> float:
            return _rate(lines, read, s)

        rate, limit = await beside(lambda s: _rate(lines, orjson.loads, s), work, seconds)
        rows.append(Row(label, rate, limit, "orjson.loads", floor, aim))
    return rows
