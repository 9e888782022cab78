"""The database of a log: what it must refuse, and that it finds the same with each of its indexes."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.errors import ForeignStore
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.query import Filter
from streams.stores.sqlite.files import STEPS
from streams.stores.sqlite.reader import SqliteReader
from streams.stores.sqlite.search_index import SearchIndex, remove_search
from tests.streams.builders import event
from tests.streams.databases import change, written
from tests.streams.opened import collect, moved


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
    log = await Log.open(tmp_path, seeded_identity(1))
    for number in range(60):
        await log.append([event(f"k{number}", payload={"text": TEXTS[number % len(TEXTS)], "n": number})])
    await moved(log)
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
