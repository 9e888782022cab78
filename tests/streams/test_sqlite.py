"""The sqlite backend: the contract, damage, and what it must refuse."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from random import Random

import pytest

from streams.errors import CorruptLog, ForeignStore
from streams.findings import Finding
from streams.identity import seeded_identity
from streams.log import Log
from streams.query import Filter
from streams.store import StreamStore
from streams.stores.sqlite import SqliteStore
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
    for statement in (
        "DROP TABLE keys",
        "DROP TABLE keys_through",
        "CREATE UNIQUE INDEX records_by_key ON records (key)",
        "PRAGMA user_version = 2",
    ):
        change(tmp_path, statement)
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
    whole = {path: path.read_bytes() for path in source.iterdir()}
    random = Random(size("SEED", 5))
    silent = 0
    for _ in range(size("SQLITE_FLIPS", 150)):
        for path in source.iterdir():
            path.unlink()
        for path, content in whole.items():
            path.write_bytes(content)
        data = bytearray(whole[target])
        at = random.randrange(len(data))
        data[at] ^= 1 << random.randrange(8)
        target.write_bytes(bytes(data))
        if await findings(source):
            continue
        reader = SqliteReader(source)
        read = [r.as_json() for r in await collect(reader.read_all())]
        await reader.close()
        # A damaged frame of the WAL ends it, as a power loss would: what follows was never seen. See docs.
        silent += read != sound[: len(read)]
    assert silent == 0


@pytest.mark.parametrize("deleted", [["log.db-shm"], ["log.db-wal"], ["log.db-wal", "log.db-shm"]])
async def test_what_sqlite_keeps_beside_a_log_may_be_lost_as_far_as_it_can_be(
    tmp_path: Path, deleted: list[str]
) -> None:
    """The index of the WAL is derived. The WAL itself is not: without it the log is an earlier one, and whole."""
    log = await Log.open(tmp_path / "store", seeded_identity(1), backend="sqlite")
    written = [record for n in range(20) for record in await log.append([event(f"a{n}", stream=f"ses_{n % 3}")])]
    source = log.source
    assert isinstance(source, SqliteStore)
    source._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    in_the_database = len(written)
    written += [record for n in range(20) for record in await log.append([event(f"b{n}", stream=f"ses_{n % 3}")])]
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    await log.close()
    for name in deleted:
        (tmp_path / "copy" / name).unlink()
    again = await Log.open(tmp_path / "copy", seeded_identity(2))
    left = await collect(again.read_all())
    assert left == (written if deleted == ["log.db-shm"] else written[: len(left)]) and len(left) >= in_the_database
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
