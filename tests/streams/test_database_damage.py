"""Damage to a database and its WAL: found, refused, reported, or harmless."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from streams.errors import CorruptLog, ForeignStore, MissingLog, StoreUnavailable, StreamError
from streams.hashing import chain, encode
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.store import Record
from tests.streams.builders import event, events
from tests.streams.databases import change, findings, garble, written
from tests.streams.logs import files
from tests.streams.opened import collect, faults, held, left_by_a_kill, put


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
        ("UPDATE records SET actor = 'nobody' WHERE position = 22", "tampered", 22, "contradicts the event: actor"),
        ("UPDATE records SET key = zeroblob(16) WHERE position = 22", "tampered", 22, "idempotency_key"),
        ("UPDATE records SET stream = 1, offset = 100 WHERE position = 22", "tampered", 22, "stream_id"),
        ("DELETE FROM records WHERE position = 22", "missing", 22, "record 22 is missing"),
        ("DELETE FROM records WHERE position BETWEEN 5 AND 9", "missing", 5, "records 5 to 9 are missing"),
        ("DELETE FROM records WHERE position = 59", "missing", 59, "last batch is incomplete"),
        ("UPDATE head SET hash = zeroblob(32)", "tampered", 59, "names as its last"),
        ("UPDATE records SET batch_index = 0 WHERE position = 22", "tampered", 22, "batch"),
    ],
)
async def test_what_is_changed_is_found(tmp_path: Path, statement: str, kind: str, position: int, reason: str) -> None:
    await written(tmp_path)
    change(tmp_path, statement)
    found = await findings(tmp_path)
    assert found and (found[0].kind, found[0].position) == (kind, position)
    assert reason in found[0].reason and found[0].line == position + 1


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM head",
        "UPDATE head SET hash = '?'",
        "UPDATE streams SET hash = '?'",
        "UPDATE streams SET next_offset = 'x'",
    ],
)
async def test_a_damaged_row_beside_the_records_is_told(tmp_path: Path, statement: str) -> None:
    await written(tmp_path)
    connection = sqlite3.connect(tmp_path / "log.db")
    for table in ("head", "streams"):  # as damage of a page, which no rule of the table stops
        sql = f"UPDATE sqlite_schema SET sql = replace(sql, 'STRICT', '') WHERE name = '{table}'"
        connection.executescript(f"PRAGMA writable_schema = ON; {sql};")
    connection.close()
    change(tmp_path, statement)
    for quick in (False, True):
        assert [finding async for finding in Verification(tmp_path, quick=quick).run()]
    try:
        log = await Log.open(tmp_path, seeded_identity(1))
    except ForeignStore:
        assert "head" in statement
        return
    assert "streams" in statement
    assert [record.offset for record in await log.append([event("more", stream="ses_1")])] == [20]
    await log.append([event("other", stream="another")])
    await log.close()


@pytest.mark.parametrize("lost", ["streams", "sqlite_autoindex_streams_1"])
async def test_recording_goes_on_if_the_table_of_streams_or_its_index_is_damaged(tmp_path: Path, lost: str) -> None:
    """What the other one of the two says is enough to go on with a stream, and to begin one."""
    await written(tmp_path)
    log = await Log.open(tmp_path, seeded_identity(1))
    await log.prune({"ses_2": 20}, at_ms=1)
    await log.close()
    before = [record for n in range(2) for record in await collect(LogReader(tmp_path).read(f"ses_{n}"))]
    garble(tmp_path, lost)
    made: list[Record] = []
    for number in range(2):
        log = await Log.open(tmp_path, seeded_identity(2 + number))
        for name in ("ses_0", "ses_1", "ses_2", "another"):
            made += await log.append([event(f"{number}-{name}", stream=name)])
        with pytest.raises(StreamError):
            await asyncio.to_thread(log.mover.drain, log.head)
        await log.close()
    assert [record.offset for record in made] == [20, 20, 20, 0, 21, 21, 21, 1]
    reader = LogReader(tmp_path, to_damage=True)
    assert (await collect(reader.read_all()))[-len(made) :] == made
    for name in ("ses_0", "ses_1"):
        found = await collect(reader.read(name))
        assert found == [record for record in (*before, *made) if record.event.stream_id == name]
        for one, following in pairwise(found):
            assert chain(bytes.fromhex(one.hash), encode(following.event).digest_form).hex() == following.hash
    await reader.close()


async def test_a_stream_whose_end_is_nowhere_to_be_read_takes_no_append(tmp_path: Path) -> None:
    await written(tmp_path)
    garble(tmp_path, "streams")
    garble(tmp_path, "sqlite_autoindex_streams_1")
    log = await Log.open(tmp_path, seeded_identity(1))
    for name in ("ses_1", "another"):
        with pytest.raises(StoreUnavailable):
            await log.append([event("more", stream=name)])
    await log.close()


Damage = Callable[[Path], None]


def cut_at(part: float) -> Damage:
    """A WAL that lost its end."""
    return lambda wal: os.truncate(wal, int(wal.stat().st_size * part))


def zeros_from(part: float) -> Damage:
    """A torn WAL: its last frames never reached the disk."""

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


PARTS = [0.0, 0.0001, 0.3, 0.7, 0.99]


@pytest.fixture(scope="module", params=["nothing", "half of it", "all"])
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """The store of a killed writer, with part of the WAL checkpointed, and the writer's acks. The journal holds the
    last eight records only."""
    place = tmp_path_factory.mktemp("killed")
    moved_at = {"nothing": -1, "half of it": 19, "all": 39}[request.param]

    async def write() -> list[Record]:
        log = await Log.open(place / "store", seeded_identity(1), segment_bytes=1)
        records: list[Record] = []
        for number in range(40):
            payload = {"text": "x" * (number * 37 % 900)}
            stream = f"ses_{number % 3}"
            records += await log.append([event(f"{number}-{n}", stream=stream, payload=payload) for n in range(2)])
            if number < 36:
                await put(log, "database")
            if number == moved_at:
                log._stored._writing.execute("PRAGMA wal_checkpoint(PASSIVE)")
        left_by_a_kill(place / "store", place / "copy")
        await log.close()
        return records

    with held():
        return place / "copy", asyncio.run(write())


@pytest.mark.parametrize(
    "damage",
    [*map(cut_at, PARTS), *map(zeros_from, PARTS), *map(flipped_at, PARTS), flipped_at(1.0), Path.unlink],
    ids=[*(f"{name} {part}" for name in ("cut", "zeros", "flip") for part in PARTS), "flip 1.0", "gone"],
)
async def test_a_wal_that_lost_records_is_refused_and_told(
    tmp_path: Path, killed: tuple[Path, list[Record]], damage: Damage
) -> None:
    """No acknowledged record is lost silently, whatever happens to the WAL."""
    store, (source, written) = tmp_path / "store", killed
    shutil.copytree(source, store)
    damage(store / "log.db-wal")
    before = files(store)
    try:
        found = await findings(store)
        quick = [finding async for finding in Verification(store, quick=True).run()]
        log = await Log.open(store, seeded_identity(2))
    except MissingLog:
        assert found and files(store) == before
        return
    except ForeignStore:
        # Older pages of the WAL over newer ones of the database: not even SQLite reads that.
        assert found and quick
        return
    except CorruptLog as refusal:
        for told in (found, quick):
            assert any(one.kind == "missing" and one.position == refusal.position for one in told), told
        with pytest.raises(CorruptLog):
            await collect(LogReader(store).read_all())
        # An empty write-ahead file is SQLite's own to make and to delete.
        sound = [
            {name: data for name, data in each.items() if data or name != "log.db-wal"}
            for each in (before, files(store))
        ]
        assert sound[0] == sound[1]
        return
    assert found == [] and await collect(log.read_all()) == written
    for record in written:
        assert (await log.find(record.event.idempotency_key)) == record
    assert (await log.append([event("next")]))[0].position == len(written)
    await log.close()
    assert await findings(store) == []


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_each_record_that_is_lost_at_the_end_is_noticed(tmp_path: Path, lost: int) -> None:
    """Even a single one: the database is some appends older than the head file, and the journal has none of them."""
    log = await Log.open(tmp_path, seeded_identity(1), segment_bytes=1)
    await log.append(events(5))
    await log.close()
    older = (tmp_path / "log.db").read_bytes()
    log = await Log.open(tmp_path, seeded_identity(2), segment_bytes=1)
    for number in range(lost):
        await log.append([event(f"last-{number}")])
    await log.close()
    for path in (tmp_path / "journal").iterdir():
        path.unlink()
    (tmp_path / "log.db").write_bytes(older)
    found = await findings(tmp_path)
    reader = LogReader(tmp_path)
    if not lost:
        assert found == [] and len(await collect(reader.read_all())) == 5
        return
    assert [(each.kind, each.position) for each in found] == [("missing", 5)]
    with pytest.raises(CorruptLog) as raised:
        await Log.open(tmp_path, seeded_identity(3))
    assert raised.value.position == 5
    with pytest.raises(CorruptLog) as raised:
        await collect(reader.read_all())
    assert raised.value.position == 5
    await reader.close()


@pytest.mark.parametrize("is_journal_there", [True, False])
async def test_another_record_in_the_place_of_the_last_is_noticed(tmp_path: Path, is_journal_there: bool) -> None:
    await written(tmp_path)
    change(tmp_path, "UPDATE records SET hash = zeroblob(32) WHERE position = 59")
    change(tmp_path, "UPDATE head SET hash = zeroblob(32)")
    if not is_journal_there:
        for path in (tmp_path / "journal").iterdir():
            path.unlink()
    with pytest.raises(CorruptLog) as raised:
        await Log.open(tmp_path, seeded_identity(1))
    assert raised.value.position == 59
    assert "tampered" in [each.kind for each in await findings(tmp_path)]


async def test_the_index_of_the_wal_may_be_lost(tmp_path: Path) -> None:
    log = await Log.open(tmp_path / "store", seeded_identity(1))
    written = [record for n in range(20) for record in await log.append([event(f"a{n}", stream=f"ses_{n % 3}")])]
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    await log.close()
    (tmp_path / "copy" / "log.db-shm").unlink()
    again = await Log.open(tmp_path / "copy", seeded_identity(2))
    assert await collect(again.read_all()) == written
    await again.append([event("next")])
    await again.close()
    assert await faults(tmp_path / "copy") == []
