"""A reader has the tables of the whole log, wherever its records are, and whoever writes them meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sidecar.read.story import reading, tables
from sidecar.read.story.reading import Snapshot, ask
from sidecar.read.story.rules import Rules
from sidecar.read.story.writing import StoryTables
from streams.errors import CorruptLog
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.store import NOTHING, Record
from tests.sidecar.read.story.playing import content, everything, tables_of
from tests.streams.databases import change
from tests.streams.derivers import caught_up
from tests.streams.opened import held, put
from tests.streams.unmoved import nothing_moves


async def append(log: Log, records: list[Record]) -> None:
    for begin in range(0, len(records), 7):
        await log.append([record.event for record in records[begin : begin + 7]])


async def opened(store: Path, *, story: bool = True) -> Log:
    return await Log.open(store, seeded_identity(1), derived=StoryTables() if story else None)


def whole(story: Snapshot) -> dict[str, list[Any]]:
    """Every row of every table."""
    return {name: sorted(story.sql(f"SELECT * FROM {name}")) for name in tables.ROWS}


def rows_of(records: list[Record]) -> dict[str, list[Any]]:
    return {name: sorted(rows) for name, rows in content(tables_of(records)).items()}


def _places(story: Snapshot) -> tuple[int, int]:
    return story.head, story.behind


def _about(story: Snapshot) -> tuple[int, int, list[StreamEvent]]:
    return story.head, story.behind, [story.record(n).event for n in range(story.head + 1)]


async def test_a_log_without_tables_is_folded_in_memory(tmp_path: Path) -> None:
    records = everything()
    reader = LogReader(tmp_path)
    assert await ask(reader, lambda story: (story.head, story.behind, story.sql("SELECT 1 FROM session"))) == (
        -1,
        0,
        [],
    )
    log = await opened(tmp_path, story=False)
    await append(log, records)
    assert await ask(reader, whole) == rows_of(records)
    await log.close()
    await reader.close()


@pytest.mark.parametrize("place", ["journal", "database", "both"])
async def test_records_above_the_tables_are_laid_over_them(tmp_path: Path, place: Any) -> None:
    records = everything()
    half = len(records) // 2
    log = await opened(tmp_path)
    await append(log, records[:half])
    await caught_up(log)
    await log.close()
    with held():
        log = await opened(tmp_path)
        reader = LogReader(tmp_path)
        for upto in range(half, len(records), 5):
            await append(log, records[upto : upto + 5])
            if upto % 3 == 0:
                await put(log, place)
            head, behind, events = await ask(reader, _about)
            assert (head, behind) == (min(upto + 5, len(records)) - 1, 0)
            assert events == [record.event for record in records[: head + 1]]
            assert await ask(reader, whole) == rows_of(records[: head + 1])
        await log.close()
    await reader.close()


async def test_a_record_above_the_tables_is_folded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folded: list[int] = []

    class Counting(Rules):
        def apply(self, record: Record) -> None:
            folded.append(record.position)
            super().apply(record)

    records = everything()[:40]
    log = await opened(tmp_path)
    await append(log, records[:20])
    await caught_up(log)
    monkeypatch.setattr(reading, "Rules", Counting)
    reader = LogReader(tmp_path)
    with nothing_moves():
        for upto in range(20, 40, 4):
            await append(log, records[upto : upto + 4])
            for _ in range(2):
                assert await ask(reader, whole) == rows_of(records[: upto + 4])
        assert folded == [*range(20, 40)]
        await log.close()
    await reader.close()


async def test_the_tables_are_as_of_one_moment_while_records_move(tmp_path: Path) -> None:
    records = everything()
    known = {record.position: record for record in records}
    log = await opened(tmp_path)
    reader = LogReader(tmp_path)
    appending = asyncio.create_task(append(log, records))
    seen = dict[int, dict[str, list[Any]]]()
    while not appending.done():
        head, rows = await ask(reader, lambda story: (story.head, whole(story)))
        seen[head] = rows
    await appending
    await caught_up(log)
    await log.close()
    seen[records[-1].position] = await ask(reader, whole)
    for head, rows in seen.items():
        assert rows == rows_of([known[n] for n in range(head + 1)])
    await reader.close()


async def test_tables_that_are_far_behind_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = everything()
    monkeypatch.setattr(reading, "MOST_ABOVE", 10)
    log = await opened(tmp_path)
    await append(log, records[:20])
    await caught_up(log)
    await log.close()
    log = await opened(tmp_path, story=False)
    await append(log, records[20:31])
    await log.close()
    reader = LogReader(tmp_path)
    assert await ask(reader, _places) == (19, 11)
    assert await ask(reader, whole) == rows_of(records[:20])
    monkeypatch.setattr(reading, "MOST_ABOVE", 11)
    assert await ask(reader, _places) == (30, 0)
    monkeypatch.setattr(tables, "STORY_VERSION", tables.STORY_VERSION + 1)
    monkeypatch.setattr(reading, "MOST_ABOVE", 30)
    assert await ask(reader, _places) == (NOTHING, 31)
    await reader.close()


@pytest.mark.parametrize("how", ["prune", "forget"])
async def test_after_a_removal_the_tables_are_those_of_what_is_left(tmp_path: Path, how: str) -> None:
    records = everything()
    log = await opened(tmp_path)
    await append(log, records)
    await caught_up(log)
    first, second = list(dict.fromkeys(record.event.stream_id for record in records))[:2]
    if how == "prune":
        await log.prune({first: 5, second: 10_000}, at_ms=1)
    else:
        await log.forget([first], at_ms=1)
    await caught_up(log)
    reader = LogReader(tmp_path)
    left = [record async for record in reader.read_all()]
    assert await ask(reader, whole) == rows_of(left) != rows_of(records)
    await log.close()
    await reader.close()


async def test_a_question_that_meets_damage_is_asked_about_the_moment_before_it(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await append(log, everything()[:20])
    await caught_up(log)
    await log.close()
    change(tmp_path, "UPDATE records SET crc = crc + 1 WHERE position IN (7, 12)")
    reader = LogReader(tmp_path, to_damage=True)
    assert await ask(reader, _places) == (19, 0)  # which reads no record
    head, _, events = await ask(reader, _about)
    assert (head, len(events)) == (6, 7) and reader.damage is not None and reader.damage.position == 7
    await reader.close()
    reader = LogReader(tmp_path)
    with pytest.raises(CorruptLog):
        await ask(reader, _about)
    await reader.close()
