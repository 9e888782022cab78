"""A reader sees one order, whatever the writer and the mover do meanwhile, and wherever a record is.

The reader here knows only the files, as one in another process does. Writer, mover and reader pause at random where one
of them could overtake another.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from streams.errors import CorruptLog
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import Record
from streams.stores.journal import mover
from streams.stores.journal.files import FileJournal
from streams.stores.journal.mover import Mover
from streams.stores.journal.segments import list_segments
from streams.stores.journal.writer import JournalWriter
from streams.stores.sqlite.reader import SqliteReader
from tests.streams.builders import event, events
from tests.streams.disks import FastDisk
from tests.streams.opened import collect, faults

APPENDS = 120


def pausing(monkeypatch: pytest.MonkeyPatch, random: Random, owner: type, name: str) -> None:
    """Let a method wait at random before and after its work. It runs on a thread."""
    method: Callable[..., Any] = getattr(owner, name)

    def slowly(*args: Any, **options: Any) -> Any:
        time.sleep(random.choice([0, 0, 0, 0.001, 0.004]))
        try:
            return method(*args, **options)
        finally:
            time.sleep(random.choice([0, 0, 0, 0.001, 0.004]))

    monkeypatch.setattr(owner, name, slowly)


async def open_log(store: Path) -> Log:
    return await Log.open(store, seeded_identity(1), disk=FastDisk(), segment_bytes=1500)


@pytest.mark.parametrize("seed", range(6))
async def test_a_reader_of_the_files_misses_repeats_and_reorders_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    monkeypatch.setattr(mover, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(mover, "MOST_BYTES", random.choice([500, 3000]))
    for owner, name in [
        (Mover, "_next_records"),
        (JournalWriter, "drop"),
        (JournalWriter, "make_durable"),
        (SqliteReader, "_rows"),
        (FileJournal, "head_record"),
    ]:
        pausing(monkeypatch, random, owner, name)
    log = await open_log(tmp_path)
    written: list[Record] = []
    reader = LogReader(tmp_path)

    async def write() -> None:
        for number in range(APPENDS):
            batch = [event(f"{number}-{n}", stream=f"ses_{number % 3}") for n in range(random.choice([1, 1, 3]))]
            written.extend(await log.append(batch))

    async def read() -> int:
        passes = 0
        while not writing.done() or not passes:
            passes += 1
            before = list(written)
            what = random.choice(["all", "after", "stream", "back", "filter", "find"])
            if what == "find" and before:
                wanted = random.choice(before)
                assert await reader.find(wanted.event.idempotency_key) == wanted
                assert await reader.find_event(wanted.event.id) == wanted
                continue
            after = random.randrange(len(before)) if what in ("after", "back") and before else -1
            stream = Filter(streams=("ses_1",))
            if what == "stream":
                found = await collect(reader.read("ses_1"))
            elif what == "filter":
                found = await collect(reader.query(stream))
            elif what == "back":
                newest = await reader.newest(Filter(), APPENDS * 3, after=after)
                assert newest is not None
                found = newest
            else:
                found = await collect(reader.read_all(after=after))
            if what in ("stream", "filter"):
                wanted_records = [record for record in before if stream.matches(record.event)]
            else:
                wanted_records = before[after + 1 :]
            assert found[: len(wanted_records)] == wanted_records, what
            positions = [record.position for record in found]
            assert positions == sorted(set(positions)), what
            if what in ("all", "after", "back"):
                assert positions == list(range(after + 1, after + 1 + len(positions))), what
        return passes

    writing = asyncio.ensure_future(write())
    reading = [asyncio.ensure_future(read()) for _ in range(2)]
    await writing
    for each in reading:
        assert await each > 3
    await log.close()
    assert await collect(reader.read_all()) == written
    await reader.close()
    assert await faults(tmp_path) == []


async def test_what_the_database_cannot_take_stays_readable_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program holds the database for as long as it likes."""
    monkeypatch.setattr(mover, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("streams.stores.sqlite.files.BUSY_MS", 1)
    log = await open_log(tmp_path)
    await log.append(events(3))
    await moved(log)
    holder = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    records = [(await log.append([event(f"held-{n}", stream="ses_b")]))[0] for n in range(30)]
    async with asyncio.timeout(30):
        while log.mover.fault is None:
            await asyncio.sleep(0.01)
    assert log.mover.waiting == 30
    assert (await log.append([records[4].event]))[0].duplicate
    reader = LogReader(tmp_path)
    assert await collect(reader.read("ses_b")) == await collect(log.read("ses_b")) == records
    assert reader.head == log.head == 32
    holder.execute("ROLLBACK")
    holder.close()
    await moved(log)
    assert log.mover.fault is None
    await log.close()
    assert await collect(reader.read("ses_b")) == records
    await reader.close()


async def moved(log: Log) -> None:
    async with asyncio.timeout(60):
        while log.mover.waiting:
            await asyncio.sleep(0.01)


async def test_segments_that_were_moved_are_deleted_and_a_start_reads_none_of_them(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    for number in range(40):
        await log.append([event(f"{number}")])
    assert len(list_segments(tmp_path / "journal")) > 5
    await log.close()
    assert len(list_segments(tmp_path / "journal")) == 1
    (last,) = list_segments(tmp_path / "journal")
    last.path.write_bytes(b"")  # all of it is in the database
    log = await open_log(tmp_path)
    assert (await log.append([event("more")]))[0].position == 40
    await log.close()
    assert await faults(tmp_path) == []


async def test_a_database_that_lost_records_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example after a deleted write-ahead file, or with an older copy of the database."""
    monkeypatch.setattr(mover, "PAUSE_SECONDS", 0.0)
    log = await open_log(tmp_path)
    await log.append([event("a")])
    await log.close()
    older = (tmp_path / "log.db").read_bytes()
    log = await open_log(tmp_path)
    for number in range(20):
        await log.append([event(f"{number}")])
    await log.close()
    (tmp_path / "log.db").write_bytes(older)
    with pytest.raises(CorruptLog) as raised:
        await open_log(tmp_path)
    assert raised.value.position == 1
    reader = LogReader(tmp_path)
    with pytest.raises(CorruptLog):
        await collect(reader.read_all())
    await reader.close()
