"""The sqlite backend: the contract, its schema and indexes, and what it must refuse."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from streams.stores.sqlite.store import SqliteStore

from streams.errors import ForeignStore
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.query import Filter
from streams.stores.sqlite.files import STEPS
from streams.stores.sqlite.reader import SqliteReader
from streams.stores.sqlite.search import SearchIndex, remove_search
from tests.streams.builders import event
from tests.streams.opened import collect, faults
from tests.streams.sqlite_logs import change, written


async def test_a_program_that_holds_the_file_does_not_hold_the_loop(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path)
    for number in range(100):  # after so many quick ones, commits run on the loop
        await store.append([event(f"k{number}")])
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    appending = asyncio.gather(*(store.append([event(f"later{n}")]) for n in range(3)))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not appending.done()
    other.execute("ROLLBACK")
    records = [record for records in await appending for record in records]
    assert [record.position for record in records] == [100, 101, 102]
    other.close()
    await store.close()


async def test_a_newer_schema_and_a_foreign_database_are_refused(tmp_path: Path) -> None:
    await written(tmp_path)
    newer = len(STEPS) + 1
    change(tmp_path, f"PRAGMA user_version = {newer}")
    for opening in (Log.open(tmp_path, seeded_identity(1)), collect(SqliteReader(tmp_path).read_all())):
        with pytest.raises(
            ForeignStore, match=rf"schema {newer}, but this version only reads schemas up to {newer - 1}: upgrade"
        ):
            await opening
    change(tmp_path, "PRAGMA application_id = 7")
    with pytest.raises(ForeignStore, match=r"another program wrote it, or its header is damaged.*from a backup"):
        await Log.open(tmp_path, seeded_identity(1))
    (tmp_path / "store.json").unlink()
    with pytest.raises(ForeignStore, match="not written by Durable Stream"):
        await collect(SqliteReader(tmp_path).read_all())


async def test_a_query_finds_the_same_from_either_end(tmp_path: Path) -> None:
    log = await Log.open(tmp_path, seeded_identity(1), backend="sqlite")
    wanted = [
        Filter(types=("a.one",)),
        Filter(types=("a.*", "b")),
        Filter(types=("none.*",)),
        Filter(types=("a.two",), actors=("x",)),
        Filter(since_ms=1020, until_ms=1050),
        Filter(since_ms=1061),
        Filter(correlation_id="m3"),
    ]
    reader = SqliteReader(tmp_path)
    made: list[StreamEvent] = []
    for number in range(60):
        cause = made[number // 2].id if number > 10 else None
        kind = ("a.one", "a.two", "b", "a")[number % 4]
        more = {"causation_id": cause, "correlation_id": f"m{number % 5}", "actor": "xy"[number % 2]}
        made.append(event(f"k{number}", type_=kind, ts=1000 + (number * 7) % 61, **more))
        await log.append([made[-1]])
        if number % 20 == 19:
            filters = [*wanted, Filter(causation_id=made[8].id), Filter(causation_id=made[8].id, types=("a.*",))]
            for each in filters:
                found = [event for event in made if each.matches(event)]
                assert [record.event for record in await collect(log.query(each))] == found, each
                back = [record.event async for record in reader.back(each)]
                assert back == found[::-1], each
            for one in made:
                record = await reader.find_event(one.id)
                assert record is not None and record.event == one
            part = made[5].id[-5:]
            ids = sorted(identifier for some in [ids async for ids in reader.event_ids(part)] for identifier in some)
            assert ids == sorted(each.id for each in made if part in each.id)
    assert await reader.find_event("none") is None
    await log.prune({"ses_a": 30}, at_ms=1)
    assert await reader.find_event(made[3].id) is None
    await reader.close()
    await log.close()
    assert await faults(tmp_path) == []


async def test_a_reader_cannot_write(tmp_path: Path) -> None:
    await written(tmp_path)
    reader = SqliteReader(tmp_path)
    assert reader.head == 59
    with pytest.raises(OSError, match="read-only"):
        await reader._fetch("DELETE FROM records", [])
    await reader.close()


TEXTS = ["Disk FULL on /dev/sda1", "straße STRASSE", "Kelvin \u212a and ﬁ ligature", 'quote " and \\ back']
TEXTS += ["emoji 😀 face", "ÅNGSTRÖM", "a%b_c*d", "x" * 5000, "line\nbreak", "İstanbul"]
ASKED = ["disk full", "STRASSE", "straße", "kelvin k", "fi lig", '\\"', "😀", "ångström", "%b_", "xxx", "n", '"n":59']
ASKED += ["İst", "i\u0307st", "nothing like it", "", "line\\nbreak", "line\nbreak", 'e " and \\ b', "a*d", "AND"]
ASKED += ["NEAR(", '"', "dev/sda1", "\ud800abc"]


async def test_a_search_finds_the_same_with_the_index_and_without(tmp_path: Path) -> None:
    log = await Log.open(tmp_path, seeded_identity(1), backend="sqlite")
    for number in range(60):
        await log.append([event(f"k{number}", payload={"text": TEXTS[number % len(TEXTS)], "n": number})])
    plain = {text: await collect(log.query(Filter(text=text))) for text in ASKED}
    assert not plain['"n":59'] and len(plain["line\nbreak"]) == 6 == len(plain['e " and \\ b'])
    assert len(plain["disk full"]) == 6 and not plain["nothing like it"] and len(plain["xxx"]) == 6
    index = SearchIndex(tmp_path)
    for indexed in (25, 60):
        while index.position < indexed - 1:
            assert index.advance(indexed - 1 - index.position) > 0
        reader = SqliteReader(tmp_path)
        for text in ASKED:
            assert await collect(reader.query(Filter(text=text))) == plain[text], (indexed, text)
            narrowed = Filter(text=text, types=["execution.*"], since_ms=0)
            assert await collect(reader.query(narrowed)) == [r for r in plain[text] if narrowed.matches(r.event)]
        await reader.close()
    assert index.advance(100) == 0
    index.close()
    (tmp_path / "search.db").write_bytes(b"damaged" * 1000)
    reader = SqliteReader(tmp_path)
    assert await collect(reader.query(Filter(text="disk full"))) == plain["disk full"], "it is only a help"
    await reader.close()
    remove_search(tmp_path)
    assert not list(tmp_path.glob("search.db*"))
    await log.close()
