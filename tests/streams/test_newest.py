"""What is read from the end of a log is the end of what is read from its beginning, whatever the log and its damage."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.read.find_by_id import newest
from streams.errors import CorruptLog
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import Record
from streams.stores.journal import files as journal_files
from streams.stores.journal.segments import list_segments
from streams.stores.sqlite import reader as sqlite_reader
from streams.stores.sqlite.search_index import SearchIndex
from tests.streams.builders import event
from tests.streams.databases import change
from tests.streams.opened import PLACES, Place, collect, held, left_by_a_kill, put
from tests.streams.sizes import size

Answer = tuple[list[Record], tuple[str, int | None, int | None, str] | None]

FILTERS = st.sampled_from(
    [
        Filter(),
        Filter(streams=["ses_1"]),
        Filter(streams=["ses_2", "ses_0", "none"]),
        Filter(types=["agent.*"]),
        Filter(types=["agent.error"], streams=["ses_0"]),
        Filter(text="xyz7"),
        Filter(since_ms=0),
        Filter(actors=["nobody"]),
    ]
)
BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=4), max_size=12)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a log of a few records be read in many pieces."""
    monkeypatch.setattr(journal_files, "_CHUNK", 257)
    monkeypatch.setattr(sqlite_reader, "_FETCH", 4)
    monkeypatch.setattr(sqlite_reader, "_FIRST_FETCH", 2)
    monkeypatch.setattr(sqlite_reader, "_LEAST_REACH", 3)


async def make(store: Path, place: Place, batches: list[list[tuple[int, bool]]]) -> None:
    with held():
        await _make(store.with_name("open"), place, batches, store)


async def _make(store: Path, place: Place, batches: list[list[tuple[int, bool]]], copy: Path) -> None:
    log = await Log.open(store, seeded_identity(1), segment_bytes=2000)
    for number, batch in enumerate(batches):
        await log.append(
            [
                event(
                    f"k{number}-{n}",
                    stream=f"ses_{stream}",
                    type_="agent.error" if is_error else "execution.output",
                    payload={"text": f"xyz{number}"},
                )
                for n, (stream, is_error) in enumerate(batch)
            ]
        )
    await put(log, place)
    left_by_a_kill(store, copy)
    await log.close()


async def from_the_beginning(store: Path, wanted: Filter, count: int, after: int) -> Answer:
    found: list[Record] = []
    reader = LogReader(store)
    try:
        async for record in reader.query(wanted):
            found += [record] if record.position > after else []
    except CorruptLog as error:
        return found[-count:], told(error)
    finally:
        await reader.close()
    return found[-count:], None


async def from_the_end(store: Path, wanted: Filter, count: int, after: int) -> Answer:
    reader = LogReader(store)
    try:
        found, fault = await newest(reader, wanted, count, after=after)
    finally:
        await reader.close()
    return found, None if fault is None else told(fault)


def told(fault: CorruptLog) -> tuple[str, int | None, int | None, str]:
    return fault.file, fault.line, fault.position, fault.reason


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=size("NEWEST", 15), deadline=None)
@given(batches=BATCHES, wanted=FILTERS, count=st.integers(1, 30), after=st.integers(-1, 20), indexed=st.integers(0, 30))
def test_any_log(
    place: Place, batches: list[list[tuple[int, bool]]], wanted: Filter, count: int, after: int, indexed: int
) -> None:
    async def run(store: Path) -> None:
        await make(store, place, batches)
        if place != "journal" and indexed:
            index = SearchIndex(store)
            index.advance(indexed)
            index.close()
        ours = await from_the_end(store, wanted, count, after)
        assert ours == await from_the_beginning(store, wanted, count, after)
        reader = LogReader(store)
        assert await reader.newest(wanted, count, after=after) == ours[0], "no second reading was needed"
        every = await collect(reader.read_all())
        for record in every:
            assert await reader.find_event(record.event.id) == record
        assert await reader.find_event("none") is None
        await reader.close()

    in_directory(run)


Damage = Literal[
    "bit", "cut", "zeros", "line twice", "line gone", "lines swapped", "half a line more", "head", "no head"
]


@settings(max_examples=size("NEWEST", 30), deadline=None)
@given(
    batches=BATCHES.filter(lambda batches: len(batches) > 2),
    wanted=FILTERS,
    count=st.integers(1, 12),
    how=st.sampled_from(Damage.__args__) | st.none(),  # type: ignore[attr-defined]
    back=st.integers(1, 400),
    where=st.sampled_from(PLACES),
)
def test_any_damage_at_the_end(
    batches: list[list[tuple[int, bool]]], wanted: Filter, count: int, how: Damage | None, back: int, where: Place
) -> None:
    """The answer is that of a read from the beginning, with its fault, unless nothing that was read is damaged."""

    async def run(store: Path) -> None:
        await make(store, where, batches)
        intact = await from_the_beginning(store, wanted, count, -1)
        if how is not None:
            damage(store, how, back)
        elif where != "journal":
            change(store, f"UPDATE records SET event = zeroblob(100) WHERE position = {back % 40}")
        told_so = await from_the_beginning(store, wanted, count, -1)
        ours = await from_the_end(store, wanted, count, -1)
        assert ours == told_so or (told_so[1] is not None and is_before(told_so[1], ours) and ours == intact)

    in_directory(run)


def is_before(fault: tuple[str, int | None, int | None, str], answer: Answer) -> bool:
    """Whether a fault is in front of all records of an answer."""
    return bool(answer[0]) and fault[2] is not None and fault[2] < answer[0][0].position


def damage(store: Path, how: Damage, back: int) -> None:
    path = store / "head" if "head" in how else list_segments(store / "journal")[-1].path
    data = bytearray(path.read_bytes())
    at = max(len(data) - back, 0)
    lines = bytes(data).splitlines(keepends=True)
    which = -1 - back % max(len(lines), 1)
    match how:
        case "bit":
            data[at] ^= 1 << back % 8
        case "cut":
            del data[at:]
        case "zeros":
            data[at : at + 16] = bytes(len(data[at : at + 16]))
        case "line twice":
            data = bytearray(b"".join([*lines, lines[which]]))
        case "line gone":
            del lines[which]
            data = bytearray(b"".join(lines))
        case "lines swapped":
            lines[which], lines[-1] = lines[-1], lines[which]
            data = bytearray(b"".join(lines))
        case "half a line more":
            data += lines[which][: back % len(lines[which])]
        case "head":
            data[back % len(data)] ^= 1
        case "no head":
            path.unlink()
            return
    path.write_bytes(data)


def in_directory(run: Callable[[Path], object]) -> None:
    store = Path(tempfile.mkdtemp())
    try:
        asyncio.run(run(store / "store"))  # type: ignore[arg-type]
    finally:
        shutil.rmtree(store)
