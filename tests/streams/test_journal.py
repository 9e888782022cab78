"""A log answers the same wherever its records are: in the journal, in the database, or on the way."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import Record
from streams.stores.journal import mover
from streams.stores.journal.segments import list_segments
from streams.stores.sqlite.database import Known
from streams.system.files import open_to_read
from tests.streams.builders import event, events
from tests.streams.opened import PLACES, Place, collect, faults, held, moved, put


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with held():
        yield request.param


def told() -> list[StreamEvent]:
    """Sixty events that differ in all that a filter asks for."""
    made: list[StreamEvent] = []
    for number in range(60):
        made.append(
            event(
                f"k{number}",
                stream=f"ses_{number % 3}",
                type_=("a.one", "a.two", "b", "a")[number % 4],
                ts=1000 + (number * 7) % 61,
                actor="xy"[number % 2],
                correlation_id=f"m{number % 5}",
                causation_id=made[number // 2].id if number > 10 else None,
                payload={"text": f"word{number % 7} é"},
            )
        )
    return made


def filters(made: Sequence[StreamEvent]) -> list[Filter]:
    return [
        Filter(),
        Filter(streams=("ses_1",)),
        Filter(streams=("ses_2", "ses_0", "none")),
        Filter(types=("a.one",)),
        Filter(types=("a.*", "b")),
        Filter(types=("none.*",)),
        Filter(types=("a.two",), actors=("x",)),
        Filter(actors=("y",)),
        Filter(since_ms=1020, until_ms=1050),
        Filter(since_ms=1061),
        Filter(correlation_id="m3"),
        Filter(causation_id=made[8].id),
        Filter(causation_id=made[8].id, types=("a.*",)),
        Filter(text="word5 é"),
        Filter(text="word5", streams=("ses_1",)),
    ]


async def test_each_question_has_the_same_answer(tmp_path: Path, place: Place) -> None:
    log = await Log.open(tmp_path, seeded_identity(1), segment_bytes=3000)
    made = told()
    written: list[Record] = []
    for begin in range(0, 60, 2):
        written += await log.append(made[begin : begin + 2])
    await put(log, place)
    assert log.waiting()["records"] == {"journal": 60, "database": 0, "both": 30}[place]
    reader = LogReader(tmp_path)
    for wanted in filters(made):
        expected = [record for record in written if wanted.matches(record.event)]
        assert await collect(log.query(wanted)) == await collect(reader.query(wanted)) == expected, wanted
        for count, after in ((3, -1), (100, 20), (7, 45)):
            above = [record for record in expected if record.position > after]
            assert await reader.newest(wanted, count, after=after) == above[-count:], wanted
    for after in (-1, 0, 17, 30, 31, 58, 59):
        assert await collect(log.read_all(after=after)) == await collect(reader.read_all(after=after))
        assert [record.position for record in await collect(log.read_all(after=after))] == list(range(after + 1, 60))
    for offset in (-2, 0, 2, 10, 19, 20, 99):
        expected = [r for r in written if r.event.stream_id == "ses_1" and r.offset >= offset]
        assert await collect(log.read("ses_1", from_offset=offset)) == expected
        assert await collect(reader.read("ses_1", from_offset=offset)) == expected
    keys = [record.event.idempotency_key for record in written]
    assert await log.find_each([*keys, "test:none"]) == [*written, None]
    for record in written[::7]:
        assert await log.find(record.event.idempotency_key) == record
        assert await reader.find(record.event.idempotency_key) == record
        assert await log.find_event(record.event.id) == await reader.find_event(record.event.id) == record
        assert (await log.append([record.event]))[0] == record._replace(duplicate=True)
    assert await reader.find("test:none") is None and await reader.find_event("none") is None
    part = made[5].id[-5:]
    ids = {one async for some in reader.event_ids(part) for one in some}
    assert ids == {each.id for each in made if part in each.id}
    assert await log.sizes() == await reader.sizes()
    assert [(size.stream_id, size.records) for size in await log.sizes()] == [(f"ses_{n}", 20) for n in range(3)]
    await reader.close()
    await log.close()
    assert await faults(tmp_path) == []


async def test_a_key_whose_record_moves_while_it_is_looked_up_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record leaves the journal between the two questions: whether the journal has it, and whether the database."""
    ask = Known.positions

    def slowly(known: Known, digests: Sequence[bytes]) -> dict[bytes, int]:
        found = ask(known, digests)
        log.mover.drain(log.head)
        return found

    monkeypatch.setattr(Known, "positions", slowly)
    with held():
        log = await Log.open(tmp_path, seeded_identity(1), segment_bytes=1)
        for number in range(4):
            assert [record.position for record in await log.append([event(f"{number}")])] == [number]
            assert (await log.append([event(f"{number}")]))[0].duplicate
        await log.close()
    assert await faults(tmp_path) == []


async def test_a_program_that_holds_the_database_stops_neither_appends_nor_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PAUSE_SECONDS", "FIRST_RETRY_SECONDS"):
        monkeypatch.setattr(mover, name, 0.0)
    monkeypatch.setattr("streams.stores.sqlite.files.BUSY_MS", 1)
    log = await Log.open(tmp_path, seeded_identity(1), segment_bytes=2000)
    await log.append([event("before")])
    await moved(log)
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for number in range(40):
        await log.append([event(f"k{number}")])
    async with asyncio.timeout(60):
        while log.waiting()["fault"] is None:
            await asyncio.sleep(0.005)
    waiting = log.waiting()
    assert waiting["records"] == 40 and int(str(waiting["files"])) > 5
    other.execute("ROLLBACK")
    other.close()
    await moved(log)
    async with asyncio.timeout(60):
        while log.waiting()["fault"] is not None:
            await asyncio.sleep(0.005)
    assert len(await collect(log.read_all())) == 41 and len(list_segments(tmp_path / "journal")) == 1
    await log.close()
    assert await faults(tmp_path) == []


async def test_a_reading_that_is_cancelled_while_it_opens_a_file_leaves_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held():
        log = await Log.open(tmp_path, seeded_identity(1))
        await log.append(events(3))
        begun, go_on = threading.Event(), threading.Event()
        opened: list[int] = []

        def slow(path: str, flags: int = 0) -> int:
            opened.append(open_to_read(path, flags))
            begun.set()
            assert go_on.wait(30)
            return opened[-1]

        monkeypatch.setattr("streams.stores.journal.files.open_to_read", slow)
        reading = asyncio.create_task(collect(LogReader(tmp_path).read_all()))
        await asyncio.to_thread(begun.wait, 30)
        reading.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await reading
        for descriptor in opened:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
        await log.close()
