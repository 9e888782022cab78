"""The sqlite backend: the contract, its schema and indexes, and what it must refuse."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from streams.errors import ForeignStore, StoreFailed
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import StreamStore
from streams.stores.sqlite.files import STEPS
from streams.stores.sqlite.reader import TAILS, SqliteReader
from streams.stores.sqlite.rows import SELECT, conditions
from streams.stores.sqlite.search import SearchIndex, remove_search
from streams.stores.sqlite.store import SqliteStore
from tests.streams.builders import event, events
from tests.streams.opened import collect
from tests.streams.retention_contract import RetentionContract
from tests.streams.sqlite_logs import ask, change, findings, written
from tests.streams.store_contract import StoreContract


class TestSqliteStore(StoreContract, RetentionContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "store"
        self.directory.mkdir()

    async def open_store(self) -> StreamStore:
        return await SqliteStore.open(self.directory)


class TestSqliteStoreThatWritesItsKeysOften(TestSqliteStore):
    @pytest.fixture(autouse=True)
    def _few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("streams.stores.sqlite.keys.FOLDED", 2)


async def test_keys_are_known_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether still in memory, written, or read by the next writer."""
    monkeypatch.setattr("streams.stores.sqlite.keys.FOLDED", 10)
    store = await SqliteStore.open(tmp_path)
    first = [(await store.append([event(f"k{n}")]))[0] for n in range(25)]
    through = ask(tmp_path, "SELECT position FROM keys_through")
    assert 9 <= through < 24 and ask(tmp_path, "SELECT count(*) FROM keys") == through + 1
    await store.close()
    store = await SqliteStore.open(tmp_path)
    for number, record in enumerate(first):
        assert await store.find(record.event.idempotency_key) == record
        (again,) = await store.append([event(f"k{number}")])
        assert (again.position, again.duplicate) == (record.position, True)
    assert await store.find("k25") is None
    await store.close()
    assert [finding for finding in await findings(tmp_path) if Path(finding.file).name == "log.db"] == []


async def test_the_write_ahead_file_is_taken_in_when_it_is_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size says nothing: SQLite overwrites checkpointed frames and never shortens the file."""
    monkeypatch.setattr("streams.stores.sqlite.store.CHECKPOINT_PAGES", 100)
    store = await SqliteStore.open(tmp_path)
    told: list[str] = []
    store._connection.set_trace_callback(told.append)
    for number in range(60):
        await store.append([event(f"k{number}-{n}") for n in range(10)])
    checkpoints = [statement for statement in told if "wal_checkpoint" in statement]
    assert 3 <= len(checkpoints) <= 12
    await store.close()


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


async def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    await written(tmp_path)
    content = b"not a database at all, but long enough to be read as one" * 20
    (tmp_path / "log.db").write_bytes(content)
    with pytest.raises(ForeignStore, match="damaged"):
        await Log.open(tmp_path, seeded_identity(1))
    assert (tmp_path / "log.db").read_bytes() == content


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


async def test_full_sync_is_read_back(tmp_path: Path) -> None:
    log = await Log.open(tmp_path, seeded_identity(1), backend="sqlite")
    assert isinstance(log.source, SqliteStore)
    connection = log.source._connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    await log.close()


async def test_a_reader_cannot_write(tmp_path: Path) -> None:
    await written(tmp_path)
    reader = SqliteReader(tmp_path)
    assert reader.head == 59
    with pytest.raises(OSError, match="read-only"):
        await reader._fetch("DELETE FROM records", [])
    await reader.close()


async def test_filters_use_an_index(tmp_path: Path) -> None:
    await written(tmp_path)
    connection = sqlite3.connect(tmp_path / "log.db")
    for wanted, index in [
        (Filter(types=["agent.error"]), "records_by_type"),
        (Filter(types=["agent.*"]), "records_by_type"),
        (Filter(streams=["ses_1"]), "records_by_stream"),
        (Filter(causation_id="x"), "records_by_causation"),
        (Filter(correlation_id="x"), "records_by_correlation"),
    ]:
        where, values = conditions(wanted)
        plan = connection.execute(f"EXPLAIN QUERY PLAN {SELECT} WHERE {where}", values).fetchall()
        assert any(index in row[-1] for row in plan), (wanted, plan)
    connection.close()


async def test_the_ends_of_all_streams_are_found_without_a_look_at_every_record(tmp_path: Path) -> None:
    await written(tmp_path)
    connection = sqlite3.connect(tmp_path / "log.db")
    plan = [row[-1] for row in connection.execute(f"EXPLAIN QUERY PLAN {TAILS}")]
    connection.close()
    assert plan[0] == "SCAN streams" and not any("SCAN records" in step or "SCAN all" in step for step in plan), plan


async def test_the_newest_of_what_fits_are_the_end_of_what_fits(tmp_path: Path) -> None:
    await written(tmp_path)
    log = await Log.open(tmp_path, seeded_identity(2))
    await log.append([event(f"e{n}", type_="agent.error", stream=f"ses_{n % 2}") for n in range(9)])
    await log.prune({"ses_1": 5}, at_ms=1)
    await log.close()
    reader = LogReader(tmp_path)
    for wanted in [
        Filter(),
        Filter(types=["agent.error"]),
        Filter(types=["agent.*", "execution.step"]),
        Filter(types=["nothing"]),
        Filter(actors=["build"], since_ms=0),
        Filter(actors=["\ud800"]),
        Filter(text="k"),
        Filter(streams=["ses_1"]),
        Filter(streams=["ses_1", "ses_0", "none"], types=["agent.error"]),
    ]:
        every = await collect(reader.query(wanted))
        for count in (1, 4, 200):
            assert await reader.newest(wanted, count) == every[-count:], (wanted, count)
    change(tmp_path, "UPDATE records SET event = zeroblob(100) WHERE position = 68")
    assert await reader.newest(Filter(), 1) is None, "which reading tells in its place"
    await reader.close()
    connection = sqlite3.connect(tmp_path / "log.db")
    where, values = conditions(Filter(types=["agent.error"]))
    query = f"EXPLAIN QUERY PLAN SELECT position FROM records WHERE {where} ORDER BY position DESC LIMIT 1"
    plan = connection.execute(query, values).fetchall()
    assert len(plan) == 1 and "records_by_type" in plan[0][-1], plan
    connection.close()


TEXTS = [
    "Disk FULL on /dev/sda1",
    "straße STRASSE",
    "Kelvin \u212a and ﬁ ligature",
    'quote " and \\ back',
    "emoji 😀 face",
    "ÅNGSTRÖM",
    "a%b_c*d",
    "x" * 5000,
    "line\nbreak",
    "İstanbul",
]


async def test_a_search_finds_the_same_with_the_index_and_without(tmp_path: Path) -> None:
    log = await Log.open(tmp_path, seeded_identity(1), backend="sqlite")
    for number in range(60):
        await log.append([event(f"k{number}", payload={"text": TEXTS[number % len(TEXTS)], "n": number})])
    asked = [
        "disk full",
        "STRASSE",
        "straße",
        "kelvin k",
        "fi lig",
        '\\"',
        "😀",
        "ångström",
        "%b_",
        "xxx",
        "n",
        '"n":59',
    ]
    asked += [
        "İst",
        "i\u0307st",
        "nothing like it",
        "",
        "line\\nbreak",
        "line\nbreak",
        'e " and \\ b',
        "a*d",
        "AND",
        "NEAR(",
        '"',
        "dev/sda1",
        "\ud800abc",
    ]
    plain = {text: await collect(log.query(Filter(text=text))) for text in asked}
    assert not plain['"n":59'] and len(plain["line\nbreak"]) == 6 == len(plain['e " and \\ b'])
    assert len(plain["disk full"]) == 6 and not plain["nothing like it"] and len(plain["xxx"]) == 6
    index = SearchIndex(tmp_path)
    for indexed in (25, 60):
        while index.position < indexed - 1:
            assert index.advance(indexed - 1 - index.position) > 0
        reader = SqliteReader(tmp_path)
        for text in asked:
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


async def test_who_finds_the_database_locked_says_what_to_do_about_that_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.stores.sqlite.files.BUSY_MS", 20)
    log = await Log.open(tmp_path / "store", seeded_identity(1), backend="sqlite")
    with closing(sqlite3.connect(tmp_path / "store" / "log.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreFailed) as failure:
            await log.append(events(1))
        other.execute("ROLLBACK")
    await log.close()
    assert str(failure.value) == (
        f"the log could not be written ({tmp_path / 'store' / 'log.db'} is held by another program) and has stopped; "
        "close that program, then try again: nothing that was acknowledged is lost"
    )
