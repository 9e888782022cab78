"""The sqlite backend: the contract, damage, and what it must refuse."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from streams.errors import CorruptLog, ForeignStore
from streams.findings import Finding
from streams.identity import seeded_identity
from streams.log import Log
from streams.log_reader import LogReader
from streams.migrate import Migration, discard_kept
from streams.query import Filter
from streams.store import Record, StreamStore
from streams.stores.segments import read_head
from streams.stores.sqlite import SqliteStore
from streams.stores.sqlite_head import HEAD_FILE
from streams.stores.sqlite_reader import SqliteReader
from streams.stores.sqlite_rows import SELECT, conditions
from streams.stores.sqlite_search import SearchIndex, remove_search
from streams.verify import Verification
from tests.streams.builders import event, events
from tests.streams.opened import collect
from tests.streams.sizes import size
from tests.streams.store_contract import StoreContract


class TestSqliteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "store"
        self.directory.mkdir()

    async def open_store(self) -> StreamStore:
        return await SqliteStore.open(self.directory)


class TestSqliteStoreThatWritesItsKeysOften(TestSqliteStore):
    @pytest.fixture(autouse=True)
    def _few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("streams.stores.sqlite_keys.FOLDED", 2)


async def test_keys_are_known_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remembered, written, read again by the next writer, or in a file of the version before."""
    monkeypatch.setattr("streams.stores.sqlite_keys.FOLDED", 10)
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
    make_older(tmp_path)
    reader = SqliteReader(tmp_path)
    assert [await reader.find(record.event.idempotency_key) for record in first] == first
    await reader.close()
    store = await SqliteStore.open(tmp_path)
    assert ask(tmp_path, "SELECT count(*) FROM keys") == 25
    assert [(await store.append([event(f"k{n}")]))[0].duplicate for n in range(25)] == [True] * 25
    await store.close()
    assert [finding for finding in await findings(tmp_path) if Path(finding.file).name == "log.db"] == []


async def test_the_write_ahead_file_is_taken_in_when_it_is_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size says nothing: SQLite writes over what was taken in and keeps the file as long as it ever was."""
    monkeypatch.setattr("streams.stores.sqlite.CHECKPOINT_PAGES", 100)
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


async def written(store: Path) -> None:
    log = await Log.open(store, seeded_identity(1), backend="sqlite")
    for number in range(20):
        await log.append([event(f"k{number}-{n}", stream=f"ses_{n}") for n in range(3)])
    await log.close()


async def findings(store: Path) -> list[Finding]:
    return [finding async for finding in Verification(store).run()]


def ask(store: Path, query: str) -> int:
    connection = sqlite3.connect(store / "log.db")
    try:
        found: int = connection.execute(query).fetchone()[0]
        return found
    finally:
        connection.close()


def make_older(store: Path) -> None:
    """The database as a version wrote it that had neither a head file nor a table of keys."""
    for statement in (
        "DROP TABLE head_beside",
        "DROP TABLE keys",
        "DROP TABLE keys_through",
        "CREATE UNIQUE INDEX records_by_key ON records (key)",
        "PRAGMA user_version = 2",
    ):
        change(store, statement)


def change(store: Path, statement: str) -> None:
    connection = sqlite3.connect(store / "log.db")
    with connection:
        connection.execute(statement)
    connection.close()


async def test_a_sound_log_verifies(tmp_path: Path) -> None:
    await written(tmp_path)
    verification = Verification(tmp_path)
    assert [finding async for finding in verification.run()] == []
    summary = verification.summary
    assert (summary.records, summary.streams, summary.head, summary.findings) == (60, 3, 59, 0)


@pytest.mark.parametrize(
    ("statement", "kind", "position", "reason"),
    [
        (
            "UPDATE records SET event = CAST(replace(event, 'k7', 'k8') AS BLOB) WHERE position = 22",
            "corrupt",
            22,
            "sum",
        ),
        ("UPDATE records SET hash = zeroblob(32) WHERE position = 22", "tampered", 22, "hash chain"),
        ("UPDATE records SET actor = 'nobody' WHERE position = 22", "tampered", 22, "otherwise than the event: actor"),
        ("UPDATE records SET key = zeroblob(16) WHERE position = 22", "tampered", 22, "idempotency_key"),
        ("UPDATE records SET stream = 1, offset = 100 WHERE position = 22", "tampered", 22, "stream_id"),
        ("DELETE FROM records WHERE position = 22", "missing", 22, "record 22 is missing"),
        ("DELETE FROM records WHERE position BETWEEN 5 AND 9", "missing", 5, "records 5 to 9 are missing"),
        ("DELETE FROM records WHERE position = 59", "missing", 59, "last batch is not whole"),
        ("UPDATE records SET batch_index = 0 WHERE position = 22", "tampered", 22, "batch"),
    ],
)
async def test_what_is_changed_is_found(tmp_path: Path, statement: str, kind: str, position: int, reason: str) -> None:
    await written(tmp_path)
    change(tmp_path, statement)
    found = await findings(tmp_path)
    assert found and (found[0].kind, found[0].position) == (kind, position)
    assert reason in found[0].reason and found[0].line == position + 1


async def test_a_damaged_row_is_named_when_it_is_read(tmp_path: Path) -> None:
    await written(tmp_path)
    change(tmp_path, "UPDATE records SET event = zeroblob(100) WHERE position = 22")
    reader = SqliteReader(tmp_path)
    with pytest.raises(CorruptLog, match=r"log\.db:23 \(position 22\): wrong checksum"):
        await collect(reader.read_all())
    await reader.close()


@pytest.mark.parametrize("stopped", [True, False])
async def test_a_flipped_byte_anywhere_is_found_or_harmless(tmp_path: Path, stopped: bool) -> None:
    """RELIABILITY 5: of a closed database, and of one whose writer died with the records still in the WAL."""
    source = tmp_path / "source"
    if stopped:
        await written(source)
        target = source / "log.db"
    else:
        log = await Log.open(source, seeded_identity(1), backend="sqlite")
        await log.append(events(30))
        copy = tmp_path / "copy"
        shutil.copytree(source, copy)
        await log.close()
        source, target = copy, copy / "log.db-wal"
    sound = [r.as_json() for r in await collect(SqliteReader(source).read_all())]
    assert sound
    if not stopped:
        (source / "log.db-shm").unlink()
    whole = {path: path.read_bytes() for path in source.iterdir()}
    random = Random(size("SEED", 5))
    silent = 0
    for number in range(size("SQLITE_FLIPS", 150)):
        for path in source.iterdir():
            path.unlink()
        for path, content in whole.items():
            path.write_bytes(content)
        data = bytearray(whole[target])
        # Every second one in the first page, which holds the schema.
        at = random.randrange(len(data) if number % 2 else 4096)
        data[at] ^= 1 << random.randrange(8)
        target.write_bytes(bytes(data))
        try:
            if await findings(source):
                continue
        except ForeignStore as error:
            assert "upgrade" in error.reason, "its version is not one that there is"
            continue
        reader = SqliteReader(source)
        read = [r.as_json() for r in await collect(reader.read_all())]
        await reader.close()
        silent += read != sound
        log = await Log.open(source, seeded_identity(2))
        silent += [r.as_json() for r in await collect(log.read_all())] != sound
        await log.close()
    assert silent == 0


Damage = Callable[[Path], None]


def cut_at(part: float) -> Damage:
    """A WAL that lost its end."""
    return lambda wal: os.truncate(wal, int(wal.stat().st_size * part))


def zeros_from(part: float) -> Damage:
    """A WAL whose end the disk never wrote."""

    def damage(wal: Path) -> None:
        size = wal.stat().st_size
        os.truncate(wal, int(size * part))
        os.truncate(wal, size)

    return damage


def flipped_at(part: float) -> Damage:
    """A WAL with one bit changed."""

    def damage(wal: Path) -> None:
        data = bytearray(wal.read_bytes())
        data[int((len(data) - 1) * part)] ^= 4
        wal.write_bytes(data)

    return damage


PARTS = [0.0, 0.0001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99]


@pytest.fixture(scope="module", params=["nothing", "half of it", "all"])
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """What a killed writer leaves, with so much of the WAL moved into the database; and what it acknowledged."""
    place = tmp_path_factory.mktemp("killed")
    moved_at = {"nothing": -1, "half of it": 19, "all": 39}[request.param]

    async def write() -> list[Record]:
        log = await Log.open(place / "store", seeded_identity(1), backend="sqlite")
        source = log.source
        assert isinstance(source, SqliteStore)
        records: list[Record] = []
        for number in range(40):
            payload = {"text": "x" * (number * 37 % 900)}
            stream = f"ses_{number % 3}"
            records += await log.append([event(f"{number}-{n}", stream=stream, payload=payload) for n in range(2)])
            if number == moved_at:
                source._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        shutil.copytree(place / "store", place / "copy", ignore=shutil.ignore_patterns("*-shm", "lock"))
        await log.close()
        return records

    return place / "copy", asyncio.run(write())


@pytest.mark.parametrize(
    "damage",
    [*map(cut_at, PARTS), *map(zeros_from, PARTS), *map(flipped_at, PARTS), flipped_at(1.0), Path.unlink],
    ids=[*(f"{name} {part}" for name in ("cut", "zeros", "flip") for part in PARTS), "flip 1.0", "gone"],
)
async def test_a_wal_that_lost_records_is_refused_and_told(
    tmp_path: Path, killed: tuple[Path, list[Record]], damage: Damage
) -> None:
    """RELIABILITY 5: no acknowledged record is lost in silence, whatever becomes of the WAL."""
    store, (source, written) = tmp_path / "store", killed
    shutil.copytree(source, store)
    damage(store / "log.db-wal")
    before = {path.name: path.read_bytes() for path in store.iterdir() if path.is_file()}
    found = await findings(store)
    quick = [finding async for finding in Verification(store, quick=True).run()]
    try:
        log = await Log.open(store, seeded_identity(2))
    except ForeignStore:
        # Older pages of the WAL over newer ones of the database: not even SQLite reads that.
        assert found and quick
        return
    except CorruptLog as refusal:
        assert re.search(r"records? \d+ (was|to 79 were) written and (is|are) missing: log\.db-wal", str(refusal))
        for told in (found, quick):
            assert any(one.kind == "missing" and one.position == refusal.position for one in told), told
        with pytest.raises(CorruptLog):
            await collect(LogReader(store).read_all())
        after = {path.name: path.read_bytes() for path in store.iterdir() if path.is_file()}
        assert {name: after[name] for name in before} == before
        assert set(after) - set(before) <= {"log.db-shm", "log.db-wal", "lock"}
        assert "log.db-wal" in before or not after.get("log.db-wal"), "SQLite's own, and empty"
        return
    assert found == [] and await collect(log.read_all()) == written
    for record in written:
        assert (await log.find(record.event.idempotency_key)) == record
    assert (await log.append([event("next")]))[0].position == len(written)
    await log.close()
    assert await findings(store) == []


async def test_without_a_backup_the_loss_can_be_accepted_and_is_told(
    tmp_path: Path, killed: tuple[Path, list[Record]]
) -> None:
    store, (source, written) = tmp_path / "store", killed
    shutil.copytree(source, store)
    (store / "log.db-wal").unlink()
    (store / HEAD_FILE).rename(tmp_path / "kept")
    assert [(f.kind, Path(f.file).name) for f in await findings(store)] == [("missing", HEAD_FILE)]
    log = await Log.open(store, seeded_identity(2))
    assert log.head_lost
    left = await collect(log.read_all())
    assert left == written[: len(left)]
    await log.append([event("next")])
    await log.close()
    assert await findings(store) == []
    again = await Log.open(store, seeded_identity(2))
    assert not again.head_lost
    await again.close()


async def test_an_older_database_in_the_place_of_the_log_is_refused(tmp_path: Path) -> None:
    log = await Log.open(tmp_path, seeded_identity(1), backend="sqlite")
    await log.append([event("a")])
    await log.close()
    older = (tmp_path / "log.db").read_bytes()
    for name in ("b", "c"):
        log = await Log.open(tmp_path, seeded_identity(1))
        await log.append([event(name)])
        await log.close()
    newer = (tmp_path / "log.db").read_bytes()
    (tmp_path / "log.db").write_bytes(older)
    with pytest.raises(CorruptLog, match="records 1 to 2 were written"):
        await Log.open(tmp_path, seeded_identity(1))
    (tmp_path / "log.db").write_bytes(newer)
    change(tmp_path, "UPDATE records SET hash = zeroblob(32) WHERE position = 2")
    with pytest.raises(CorruptLog, match="not the record that sqlite-head names"):
        await Log.open(tmp_path, seeded_identity(1))


async def test_a_log_of_an_older_version_has_no_head_file_and_gets_one(tmp_path: Path) -> None:
    await written(tmp_path)
    (tmp_path / HEAD_FILE).unlink()
    make_older(tmp_path)
    assert await findings(tmp_path) == []
    log = await Log.open(tmp_path, seeded_identity(1))
    assert not log.head_lost
    await log.close()
    head = read_head(tmp_path / HEAD_FILE)
    assert head is not None and head.position == 59


async def test_a_head_file_goes_with_its_log_and_comes_with_a_copy(tmp_path: Path) -> None:
    """Moves and prunes: it says no more than what is there, and no less than before."""

    def known() -> int | None:
        head = read_head(tmp_path / HEAD_FILE)
        return None if head is None else head.position

    await written(tmp_path)
    log = await Log.open(tmp_path, seeded_identity(1))
    await log.prune({"ses_0": 20, "ses_1": 20, "ses_2": 20}, at_ms=1)
    assert (log.head, known()) == (59, 59)
    await Migration(log, "jsonl").run()
    await asyncio.to_thread(discard_kept, tmp_path)
    log.reread_manifest()
    assert known() is None
    await log.append([event("more")])
    await Migration(log, "sqlite").run()
    assert (log.head, known()) == (60, 60)
    await log.close()
    log = await Log.open(tmp_path, seeded_identity(1))
    await log.prune({"ses_a": 1}, at_ms=1)
    await log.close()
    log = await Log.open(tmp_path, seeded_identity(1))
    assert (log.head, known(), await collect(log.read_all())) == (60, 60, [])
    await log.close()
    assert await findings(tmp_path) == []


async def test_the_index_of_the_wal_may_be_lost(tmp_path: Path) -> None:
    log = await Log.open(tmp_path / "store", seeded_identity(1), backend="sqlite")
    written = [record for n in range(20) for record in await log.append([event(f"a{n}", stream=f"ses_{n % 3}")])]
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    await log.close()
    (tmp_path / "copy" / "log.db-shm").unlink()
    again = await Log.open(tmp_path / "copy", seeded_identity(2))
    assert await collect(again.read_all()) == written
    await again.append([event("next")])
    await again.close()
    assert [str(finding) async for finding in Verification(tmp_path / "copy").run()] == []


async def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    await written(tmp_path)
    content = b"not a database at all, but long enough to be read as one" * 20
    (tmp_path / "log.db").write_bytes(content)
    with pytest.raises(ForeignStore, match="damaged"):
        await Log.open(tmp_path, seeded_identity(1))
    assert (tmp_path / "log.db").read_bytes() == content


async def test_a_newer_schema_and_a_foreign_database_are_refused(tmp_path: Path) -> None:
    await written(tmp_path)
    change(tmp_path, "PRAGMA user_version = 99")
    for opening in (Log.open(tmp_path, seeded_identity(1)), collect(SqliteReader(tmp_path).read_all())):
        with pytest.raises(ForeignStore, match=r"schema 99.*upgrade"):
            await opening
    change(tmp_path, "PRAGMA application_id = 7")
    with pytest.raises(ForeignStore, match="not written by Durable Stream"):
        await Log.open(tmp_path, seeded_identity(1))


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
    ]:
        every = await collect(reader.query(wanted))
        for count in (1, 4, 200):
            assert await reader.newest(wanted, count) == every[-count:], (wanted, count)
    assert (
        await reader.newest(Filter(text="k"), 1) is None and await reader.newest(Filter(streams=["ses_1"]), 1) is None
    )
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
        "a*d",
        "AND",
        "NEAR(",
        '"',
        "dev/sda1",
        "\ud800abc",
    ]
    plain = {text: await collect(log.query(Filter(text=text))) for text in asked}
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
