"""Derived tables hold what their records make of them: after kills, faults, removals and new versions.

``TORTURE_DERIVED`` is how many random lives are tried.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from streams.errors import ForeignStore, StoreLocked
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.store import NOTHING, Record
from streams.stores.journal import mover
from streams.stores.sqlite import deriving
from streams.stores.sqlite import removed as sqlite_removed
from tests.streams.builders import event, events
from tests.streams.databases import ask, change, findings
from tests.streams.derivers import Texts, are_right, caught_up, rows_from, rows_of
from tests.streams.opened import collect, faults, left_by_a_kill, moved
from tests.streams.sizes import size

LIVES = size("DERIVED", 3)


async def opened(store: Path, texts: Texts | None, seed: int = 1) -> Log:
    return await Log.open(store, seeded_identity(seed), derived=texts)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deriving, "MOST", 7)
    monkeypatch.setattr(mover, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(deriving, "FIRST_RETRY_SECONDS", 0.01)


async def test_the_tables_change_with_the_records(tmp_path: Path) -> None:
    texts = Texts()
    log = await opened(tmp_path, texts)
    await caught_up(log)
    assert await are_right(tmp_path) == NOTHING
    for begin in range(0, 50, 10):
        await log.append(events(10, prefix=f"{begin}-", stream=f"ses_{begin % 3}"))
        await moved(log)
        assert await are_right(tmp_path) == begin + 9
    await log.close()
    assert texts.applied == 50, "each record once"
    assert await are_right(tmp_path) == 49 and await faults(tmp_path) == []


async def test_a_reader_sees_one_moment_and_may_lay_tables_over_it(tmp_path: Path) -> None:
    log = await opened(tmp_path, Texts())
    await log.append(events(5))
    await caught_up(log)
    reader = LogReader(tmp_path)
    tables = await asyncio.to_thread(reader.derived, 1)
    assert tables is not None
    with tables:
        await log.append(events(5, prefix="more"))
        await moved(log)
        assert (tables.position, tables.head) == (4, 4)
        assert [record.position async for record in reader.read_all(after=tables.position)] == [5, 6, 7, 8, 9]
        found = tables.records([3, 5])
        assert [record.position for record in found.values()] == [*found] == [3]
        tables.db.execute("CREATE TEMP TABLE new_texts AS SELECT * FROM texts WHERE position = 2")
        tables.db.execute("UPDATE new_texts SET body = 'over'")
        tables.db.execute(
            "CREATE TEMP VIEW texts AS SELECT * FROM main.texts WHERE position NOT IN (SELECT position FROM new_texts)"
            " UNION ALL SELECT * FROM new_texts"
        )
        assert tables.db.execute("SELECT body FROM texts WHERE position = 2").fetchall() == [("over",)]
        assert tables.db.execute("SELECT count(*) FROM texts").fetchone() == (5,)
    with pytest.raises(OSError, match="read-only"), await asyncio.to_thread(reader.derived, 1) as other:  # type: ignore[union-attr]
        assert other.position == 9
        other.db.execute("DELETE FROM main.texts")
    await reader.close()
    await log.close()
    assert await are_right(tmp_path) == 9


async def test_without_tables_of_the_version_there_is_nothing_to_read(tmp_path: Path) -> None:
    reader = LogReader(tmp_path)
    assert reader.derived(1) is None, "no log"
    log = await opened(tmp_path, None)
    assert reader.derived(1) is None and log.waiting()["derived"] is None
    await log.append(events(3))
    await log.close()
    log = await opened(tmp_path, Texts(version=2))
    await caught_up(log)
    assert reader.derived(1) is None, "tables of another version"
    await reader.close()
    await log.close()
    assert await are_right(tmp_path, 2) == 2
    left = tmp_path / "log.db"
    left.write_bytes(left.read_bytes()[:8192])
    with pytest.raises(ForeignStore):
        LogReader(tmp_path).derived(2)


@pytest.mark.usefixtures("small_steps")
async def test_a_new_version_is_made_in_the_background(tmp_path: Path) -> None:
    log = await opened(tmp_path, Texts())
    await log.append(events(100))
    await caught_up(log)
    await log.close()
    begun, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(record: Record) -> None:
        if record.position == 50:
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()

    texts = Texts(2, hold)
    log = await opened(tmp_path, texts)
    await asyncio.wait_for(begun.wait(), 30)
    await log.append(events(10, prefix="more"))
    assert log.head == 109, "recording goes on"
    waiting = log.waiting()["derived"]
    assert isinstance(waiting, dict) and 45 <= waiting["records"] <= 60 and waiting["fault"] is None
    assert await are_right(tmp_path, 2) < 50, "a reader has what is made so far"
    closing = asyncio.create_task(log.close())
    go_on.set()
    await closing
    done = await are_right(tmp_path, 2)
    assert done < 60, "a close does not wait for all of it"
    texts = Texts(2)
    log = await opened(tmp_path, texts)
    await caught_up(log)
    await log.close()
    assert await are_right(tmp_path, 2) == 109 and texts.applied == 109 - done, "it goes on where it was"


@pytest.mark.usefixtures("small_steps")
async def test_a_fault_in_the_tables_holds_no_record_up(tmp_path: Path) -> None:
    broken = True

    def refuse(record: Record) -> None:
        if broken and record.position >= 20:
            raise KeyError("a rule that fails")

    log = await opened(tmp_path, Texts(1, refuse))
    for number in range(8):
        await log.append(events(5, prefix=f"{number}-"))
        await moved(log)
    await asyncio.to_thread(mover.Mover.drain, log.mover, log.head)
    assert LogReader(tmp_path).head == 39 and log.waiting()["fault"] is None
    waiting = log.waiting()["derived"]
    assert isinstance(waiting, dict) and waiting["records"] >= 20 and "a rule that fails" in str(waiting["fault"])
    assert await are_right(tmp_path) < 20
    broken = False
    await caught_up(log)
    await log.close()
    assert await are_right(tmp_path) == 39


@pytest.mark.usefixtures("small_steps")
async def test_a_disk_that_has_no_room_for_the_tables_holds_no_record_up(tmp_path: Path) -> None:
    """SQLite itself rolls back when the file may not grow."""
    full = True
    texts = Texts()
    plain = texts.apply

    def apply(db: sqlite3.Connection, records: Sequence[Record], record: Callable[[int], Record]) -> None:
        plain(db, records, record)
        if full:
            pages = db.execute("PRAGMA page_count").fetchone()[0]
            db.execute(f"PRAGMA max_page_count = {pages}").fetchone()
            try:
                db.execute("INSERT INTO texts VALUES (-1, ?)", ["x" * 100_000])
            finally:
                db.execute("PRAGMA max_page_count = 1000000").fetchone()

    texts.apply = apply  # type: ignore[method-assign]
    log = await opened(tmp_path, texts)
    await log.append(events(30))
    await moved(log)
    assert ask(tmp_path, "SELECT position FROM head") == 29
    full = False
    await caught_up(log)
    await log.close()
    assert await are_right(tmp_path) == 29 and await faults(tmp_path) == []


class FailsOnce:
    """A connection whose next commit fails."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection, self.fails = connection, True

    def execute(self, query: str, *values: Any) -> Any:
        if query == "COMMIT" and self.fails:
            self.fails = False
            raise sqlite3.OperationalError("the disk failed")
        return self._connection.execute(query, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


async def test_after_a_commit_that_failed_the_memory_is_what_the_tables_hold(tmp_path: Path) -> None:
    log = await opened(tmp_path, Texts())
    await log.append(events(5))
    await caught_up(log)
    log._stored._writing = cast("sqlite3.Connection", FailsOnce(log._stored._writing))
    await log.append(events(5, prefix="more"))
    await caught_up(log)
    await log.close()
    assert await are_right(tmp_path) == 9


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("what", ["prune", "forget"])
async def test_while_records_are_removed_there_are_no_tables(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_removed, "CHUNK", 2)
    log = await opened(tmp_path, Texts())
    for number in range(6):
        await log.append(events(20, prefix=f"{number}-", stream=f"ses_{number}"))
    await caught_up(log)
    names = [f"ses_{number}" for number in range(5)]
    removal = log.prune(dict.fromkeys(names, 20), at_ms=1) if what == "prune" else log.forget(names, at_ms=1)
    task, reader, without = asyncio.ensure_future(removal), LogReader(tmp_path), 0
    while not task.done():
        log.mover.wake()
        tables = await asyncio.to_thread(reader.derived, 1)
        if tables is None:
            without += 1
            continue
        with tables:
            assert tables.db.execute("SELECT count(*) FROM pending").fetchone() == (0,)
        await log.append(events(1, prefix=f"beside-{without}", stream="ses_5"))
    await task
    assert without
    await caught_up(log)
    await log.close()
    await reader.close()
    assert await are_right(tmp_path) == log.head


@pytest.mark.usefixtures("small_steps")
async def test_a_database_that_is_held_makes_the_tables_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.stores.sqlite.files.BUSY_MS", 1)
    log = await opened(tmp_path, Texts())
    await log.append(events(30))
    await caught_up(log)
    await log.close()
    holder = sqlite3.connect(tmp_path / "log.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    log = await opened(tmp_path, Texts(2))
    async with asyncio.timeout(30):
        while "held" not in str(log.waiting()["derived"]):
            await asyncio.sleep(0.005)
    await log.append(events(5, prefix="more"))
    reader = LogReader(tmp_path)
    assert await asyncio.to_thread(reader.derived, 2) is None, "a reader is not held up"
    await reader.close()
    holder.rollback()
    await caught_up(log)
    await log.close()
    holder.execute("PRAGMA locking_mode = EXCLUSIVE").fetchone()
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreLocked):
        LogReader(tmp_path).derived(2)
    holder.close()
    assert await are_right(tmp_path, 2) == 34


SECRET = "nobody may read this again"


def holding(store: Path, text: str) -> list[str]:
    return [path.name for path in store.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("single", [False, True])
async def test_what_is_forgotten_is_in_no_file(tmp_path: Path, single: bool) -> None:
    store = tmp_path / "store"
    log = await opened(store, Texts())
    for number in range(30):
        text = SECRET * 300 if number % 3 else "harmless"
        await log.append([event(f"k{number}", stream=f"ses_{number % 3}", payload={"text": text})])
    await caught_up(log)
    assert holding(store, SECRET)
    streams, positions = ([], [n for n in range(30) if n % 3]) if single else (["ses_1", "ses_2"], [])
    await log.forget(streams, at_ms=1, positions=positions)
    assert holding(left_by_a_kill(store, tmp_path / "at-once"), SECRET) == []
    await caught_up(log)
    assert holding(store, SECRET) == []
    await log.close()
    assert await are_right(store) == 29 and holding(store, SECRET) == [] and await faults(store) == []


@pytest.mark.usefixtures("small_steps")
async def test_tables_that_nobody_keeps_are_forgotten_with_their_records(tmp_path: Path) -> None:
    log = await opened(tmp_path, Texts())
    await log.append(events(9, payload={"text": SECRET}))
    await caught_up(log)
    await log.close()
    log = await opened(tmp_path, None)
    await log.forget(["ses_a"], at_ms=1)
    assert holding(tmp_path, SECRET) == [] and LogReader(tmp_path).derived(1) is None
    await log.close()


@pytest.mark.usefixtures("small_steps")
async def test_an_old_version_leaves_nothing_to_be_forgotten(tmp_path: Path) -> None:
    log = await opened(tmp_path, Texts())
    await log.append(events(40, payload={"text": SECRET * 100}))
    await caught_up(log)
    await log.close()
    log = await opened(tmp_path, Texts(2))
    await caught_up(log)
    await log.forget(["ses_a"], at_ms=1)
    assert holding(tmp_path, SECRET) == []
    await caught_up(log)
    await log.close()
    assert holding(tmp_path, SECRET) == [] and await are_right(tmp_path, 2) == 39


async def test_one_row_that_is_damaged_does_not_keep_the_log_from_being_opened(tmp_path: Path) -> None:
    log = await opened(tmp_path, Texts())
    await log.append(events(5))
    await caught_up(log)
    await log.close()
    change(tmp_path, "DELETE FROM derived")
    assert LogReader(tmp_path).derived(1) is None
    log = await opened(tmp_path, Texts())
    await caught_up(log)
    await log.close()
    assert await are_right(tmp_path) == 4


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("seed", range(LIVES))
async def test_any_life(tmp_path: Path, seed: int) -> None:
    """Any order of appends, moves, removals, kills, reopenings, new versions and faults."""
    random = Random(seed)
    fails = False

    def before(record: Record) -> None:
        if fails and random.random() < 0.2:
            raise ValueError("no")

    version, store, number = 1, tmp_path / "0", 0
    log = await opened(store, Texts(version, before))
    for step in range(40):
        what = random.choice(
            ["append"] * 6 + ["prune", "forget", "single", "kill", "reopen", "version", "wait", "fail"]
        )
        if what == "append":
            for _ in range(random.choice([1, 3, 12])):
                number += 1
                made = events(random.choice([1, 2, 9]), prefix=f"{number}-", stream=f"ses_{random.randrange(4)}")
                await log.append(made)
        elif what == "prune":
            await log.prune({f"ses_{random.randrange(4)}": random.randrange(1, 60)}, at_ms=1)
        elif what == "forget":
            await log.forget([f"ses_{random.randrange(4)}"], at_ms=1)
        elif what == "single":
            await log.forget([], at_ms=1, positions=[random.randrange(log.head + 1)] if log.head >= 0 else [])
        elif what == "kill":
            store, old = left_by_a_kill(store, tmp_path / f"{step + 1}"), log
            await old.close()
            log = await opened(store, Texts(version, before))
        elif what in ("reopen", "version"):
            await log.close()
            version += what == "version"
            log = await opened(store, random.choice([None, Texts(version, before)]))
        elif what == "fail":
            fails = not fails
        elif not fails and log._stored.deriving is not None:
            await caught_up(log)
            assert await are_right(store, version) == log.head
        tables = await asyncio.to_thread(LogReader(store).derived, version)
        if tables is not None:
            tables.close()
            await are_right(store, version)
    fails = False
    await log.close()
    log = await opened(store, Texts(version, before))
    await caught_up(log)
    assert await are_right(store, version) == log.head
    await log.close()
    assert await faults(store) == []
    reader = LogReader(store)
    found = await asyncio.to_thread(reader.derived, version)
    assert found is not None
    with found:
        assert rows_of(found.db) == rows_from(await collect(reader.read_all()))
    await reader.close()


PAGE = 4096


def pages_of(store: Path, name: str) -> list[int]:
    """The pages of a table or an index, its root first."""
    db = sqlite3.connect(store / "log.db")
    root = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", [name]).fetchone()[0]
    db.close()
    data = (store / "log.db").read_bytes()
    page = data[(root - 1) * PAGE : root * PAGE]
    found = [root - 1]
    if page[0] in (2, 5):  # an inner page: a pointer to a page in front of each cell
        cells = [int.from_bytes(page[12 + 2 * n : 14 + 2 * n]) for n in range(int.from_bytes(page[3:5]))]
        found += [int.from_bytes(page[cell : cell + 4]) - 1 for cell in cells]
        found.append(int.from_bytes(page[8:12]) - 1)
    return found


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("name", ["texts", "texts_by_body", "counts", "derived"])
@pytest.mark.parametrize("how", ["root", "leaf", "pointer"])
async def test_damaged_tables_are_made_again_and_harm_no_record(tmp_path: Path, name: str, how: str) -> None:
    log = await opened(tmp_path, Texts())
    for number in range(40):
        await log.append([event(f"k{number}", stream=f"ses_{number}", payload={"text": f"{number}" * 700})])
    await caught_up(log)
    await log.close()
    pages = pages_of(tmp_path, name)
    content, at = b"\xee" * 64, 0
    if how == "pointer":
        if len(pages) == 1:
            pytest.skip("one page has no pointers")
        # The last child is now a page of the records.
        content, at = (pages_of(tmp_path, "records")[1] + 1).to_bytes(4), 8
    with (tmp_path / "log.db").open("r+b") as file:
        file.seek(pages[-1 if how == "leaf" else 0] * PAGE + at)
        file.write(content)
    found = await findings(tmp_path)
    assert found and {finding.kind for finding in found} == ({"torn"} if name != "derived" else {"corrupt"})
    log = await opened(tmp_path, Texts())
    await log.append(events(3, prefix="more"))
    if name == "derived":  # one page, which is the log's own
        await moved(log)
        await log.close()
        assert len(await collect(LogReader(tmp_path).read_all())) == 43
        return
    await caught_up(log)
    await log.close()
    assert await are_right(tmp_path) == 42 and await faults(tmp_path) == []
