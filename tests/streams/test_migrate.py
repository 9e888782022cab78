"""Moving a log between backends under way (FEATURES D9, F8, U32): nothing lost, nothing twice, wherever it fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from streams.errors import CorruptLog, StoreUnavailable
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log import DiskStore, Log
from streams.log_reader import LogReader
from streams.migrate import Migration, MigrationFailed, Progress, discard_kept
from streams.query import Filter
from streams.store import Record
from streams.stores.directory import Backend, Manifest, read_manifest, write_manifest
from streams.stores.jsonl import JsonlStore
from streams.stores.jsonl_reader import JsonlReader
from streams.stores.segments import EMPTY_HEAD, format_head
from streams.stores.sqlite import SqliteStore
from streams.stores.sqlite_reader import SqliteReader
from streams.stores.sqlite_rows import Row, stored_row
from streams.stores.sqlite_search import SearchIndex
from streams.stores.stored import Stored
from streams.verify import Verification
from tests.streams.builders import event
from tests.streams.descriptors import deleted_and_open, needs_descriptors
from tests.streams.disks import GatedDisk
from tests.streams.opened import collect

BOTH = pytest.mark.parametrize(("start", "to"), [("jsonl", "sqlite"), ("sqlite", "jsonl")])
HANG_S = 60.0


async def open_log(store: Path, backend: Backend = "jsonl") -> Log:
    return await Log.open(store, seeded_identity(1), backend=backend, segment_bytes=4000)


AT_ONCE = 20
"""Batches that share a sync: still many segments, and a test does not wait for its disk a thousand times."""


async def fill(log: Log, count: int, prefix: str = "k") -> list[Record]:
    """Append ``count`` batches of one to four events, to five streams."""
    batches = [
        [event(f"{prefix}{number}-{n}", stream=f"ses_{(number + n) % 5}") for n in range(1 + number % 4)]
        for number in range(count)
    ]
    records: list[Record] = []
    for first in range(0, count, AT_ONCE):
        for appended in await asyncio.gather(*map(log.append, batches[first : first + AT_ONCE])):
            records += appended
    return records


def plain(records: list[Record]) -> list[dict[str, object]]:
    return [record.as_json() for record in records]


async def stored(log: Log) -> list[object]:
    """Every record with its bytes and its place in its batch."""
    return [record async for records in log.source.copy_out(after=-1, most=7) for record in records]


@BOTH
async def test_every_record_moves_as_it_is(tmp_path: Path, start: Backend, to: Backend) -> None:
    log = await open_log(tmp_path, start)
    written = await fill(log, 60)
    before = await stored(log)
    told: list[str] = []
    done = await Migration(log, to, lambda progress: told.append(progress.phase)).run()
    assert (done.phase, done.copied, done.streams, log.backend) == ("done", len(written), 5, to)
    assert list(dict.fromkeys(told)) == ["opening", "switching", "done"] or "copying" in told
    assert await stored(log) == before
    assert plain(await collect(log.read_all())) == plain(written)
    again = await log.append([event("k3-1", stream="ses_4")])
    assert again[0].duplicate, "keys moved too"
    new = await log.append([event("new", stream="ses_0")])
    assert new[0].position == len(written)
    await log.close()
    reopened = await open_log(tmp_path)
    assert reopened.backend == to and len(await collect(reopened.read_all())) == len(written) + 1
    await reopened.close()


@BOTH
async def test_an_empty_log_moves(tmp_path: Path, start: Backend, to: Backend) -> None:
    log = await open_log(tmp_path, start)
    await Migration(log, to).run()
    assert log.backend == to and log.head == -1
    assert (await log.append([event("a")]))[0].position == 0
    await log.close()


async def test_appends_that_come_faster_than_they_are_copied_are_slowed_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move ends all the same, nothing is lost, and the order in which they were handed over is kept."""
    log = await open_log(tmp_path)
    await fill(log, 900, "before-")
    check = Migration._check

    def slowly(self: Migration, records: list[Stored]) -> None:
        time.sleep(len(records) / 4000)  # a disk that copies 4,000 a second
        check(self, records)

    monkeypatch.setattr(Migration, "_check", slowly)
    stop, order = asyncio.Event(), 0
    pending: set[asyncio.Task[list[Record]]] = set()

    async def write() -> None:
        nonlocal order, pending
        while not stop.is_set():
            for _ in range(20):
                pending.add(asyncio.create_task(log.append([event(f"new-{order}", stream="ses_new")])))
                order += 1
            await asyncio.sleep(0.002)  # ten thousand a second, but no more than a window of them waits
            while len(pending) > 200:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)

    writer = asyncio.create_task(write())
    async with asyncio.timeout(2 * HANG_S):
        await Migration(log, "sqlite").run()
        stop.set()
        await writer
        await asyncio.gather(*pending)
    keys = [record.event.idempotency_key for record in await collect(log.read("ses_new"))]
    assert keys == [f"test:new-{n}" for n in range(order)]
    await log.close()


@BOTH
async def test_appends_go_on_meanwhile(tmp_path: Path, start: Backend, to: Backend) -> None:
    """Writers, a subscriber and a reader notice nothing; what they wrote is there once, in their order."""
    log = await open_log(tmp_path, start)
    await fill(log, 700, "before-")
    stop = asyncio.Event()
    seen: list[Record] = []

    async def write(name: str) -> list[Record]:
        mine: list[Record] = []
        while not stop.is_set():
            mine += await log.append([event(f"{name}-{len(mine)}", stream=f"ses_{name}")])
        return mine

    async def subscribe(records: AsyncIterator[Record]) -> None:
        seen.extend([record async for record in records])

    watching = asyncio.create_task(subscribe(log.subscribe()))
    writers = [asyncio.create_task(write(name)) for name in "abc"]
    async with asyncio.timeout(HANG_S):
        await Migration(log, to).run()
        moved = log.head
        while log.head < moved + 30:
            await asyncio.sleep(0)
    stop.set()
    written = await asyncio.gather(*writers)
    for mine in written:
        assert [record.offset for record in mine] == list(range(len(mine)))
        assert not any(record.duplicate for record in mine)
    everything = await collect(log.read_all())
    assert [record.position for record in everything] == list(range(log.head + 1))
    assert plain(await collect(LogReader(tmp_path).read_all())) == plain(everything)
    await log.close()
    async with asyncio.timeout(HANG_S):
        await watching
    assert plain(seen) == plain(everything)


@BOTH
async def test_while_appends_are_held_only_what_came_last_is_compared(
    tmp_path: Path, start: Backend, to: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long recording pauses must not grow with the log."""
    log = await open_log(tmp_path, start)
    await fill(log, 40)
    await log.prune({"ses_4": 3}, at_ms=1)
    compare_most = Migration._compare_most

    async def compared(move: Migration, copy: DiskStore) -> None:
        await compare_most(move, copy)
        await log.append([event("late-1", stream="ses_1"), event("late-2", stream="new")])

    monkeypatch.setattr(Migration, "_compare_most", compared)
    monkeypatch.setattr("streams.migrate.CLOSE_ENOUGH", 2)
    asked: list[set[str] | None] = []
    for store in (JsonlStore, SqliteStore):
        own = store.tails

        async def tails(
            self: Any, among: Collection[str] | None = None, *, own: Any = own
        ) -> dict[str, tuple[int, bytes]]:
            if not log._admitted.is_set():
                asked.append(None if among is None else set(among))
            found: dict[str, tuple[int, bytes]] = await own(self, among)
            assert among is None or found.keys() <= set(among)
            return found

        monkeypatch.setattr(store, "tails", tails)
    done = await Migration(log, to).run()
    assert asked == [{"ses_1", "new"}, {"ses_1", "new"}] and done.streams == 6
    verification = Verification(tmp_path)
    assert [finding async for finding in verification.run()] == []
    await log.close()


@BOTH
async def test_the_old_store_stays_until_it_is_discarded_and_takes_what_came_since_on_the_way_back(
    tmp_path: Path, start: Backend, to: Backend
) -> None:
    log = await open_log(tmp_path, start)
    first = await fill(log, 20)
    await Migration(log, to).run()
    old = SqliteReader(tmp_path) if start == "sqlite" else JsonlReader(tmp_path)
    assert plain(await collect(old.read_all())) == plain(first)
    since = await fill(log, 20, "since-")
    copied: list[int] = []
    await Migration(log, start, lambda progress: copied.append(progress.copied)).run()
    assert log.backend == start
    assert plain(await collect(log.read_all())) == plain(first + since)
    assert min(n for n in copied if n) > len(first), "only what came since was copied"
    assert await asyncio.to_thread(discard_kept, tmp_path) > 0
    manifest = read_manifest(tmp_path)
    assert manifest is not None and manifest.kept is None
    assert await asyncio.to_thread(discard_kept, tmp_path) == 0
    await log.append([event("after")])
    await log.close()
    names = {path.name for path in tmp_path.iterdir()}
    assert ("log.db" in names) == (start == "sqlite") and ("log" in names) == (start == "jsonl")


class Stopped(Exception):
    """Cuts a migration off."""


@BOTH
@pytest.mark.parametrize("at", [2, 3, 5, "switching"])
async def test_one_that_was_cut_off_is_continued(tmp_path: Path, start: Backend, to: Backend, at: int | str) -> None:
    log = await open_log(tmp_path, start)
    first = await fill(log, 900)
    calls = 0

    def stop(progress: Progress) -> None:
        nonlocal calls
        calls += 1
        if at in (calls, progress.phase):
            raise Stopped

    with pytest.raises(Stopped):
        await Migration(log, to, stop).run()
    assert log.backend == start
    more = await fill(log, 10, "meanwhile-")
    await log.close()
    log = await open_log(tmp_path)
    assert log.backend == start
    await Migration(log, to).run()
    assert plain(await collect(log.read_all())) == plain(first + more)
    await log.close()


async def test_a_copy_of_another_log_is_begun_anew(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    await fill(log, 10)
    await Migration(log, "sqlite").run()
    await log.close()
    (tmp_path / "store.json").write_bytes(b'{"backend":"jsonl","format":1,"log_id":"x"}')
    for segment in (tmp_path / "log").iterdir():
        segment.unlink()
    (tmp_path / "head").write_bytes(format_head(EMPTY_HEAD))
    log = await open_log(tmp_path)
    other = await fill(log, 12, "other-")
    await Migration(log, "sqlite").run()
    assert plain(await collect(log.read_all())) == plain(other)
    await log.close()


@BOTH
async def test_a_reading_whose_store_is_discarded_goes_on_where_the_log_lies(
    tmp_path: Path, start: Backend, to: Backend
) -> None:
    log = await open_log(tmp_path, start)
    written = await fill(log, 300)
    reader, begun = LogReader(tmp_path), LogReader(tmp_path)
    some = Filter(streams=("ses_1", "ses_2"))
    readings = {
        "all of the log": (log.read_all(), written),
        "a query of the log": (log.query(Filter()), written),
        "all": (reader.read_all(), written),
        "a stream": (reader.read("ses_3"), [r for r in written if r.event.stream_id == "ses_3"]),
        "a query": (reader.query(some), [r for r in written if r.event.stream_id in some.streams]),
    }
    firsts = {name: await anext(reading) for name, (reading, _) in readings.items()}
    ids = reader.event_ids()
    seen = set(await anext(ids))
    unread = begun.read_all()
    await Migration(log, to).run()
    await asyncio.to_thread(discard_kept, tmp_path)
    for name, (reading, wanted) in readings.items():
        assert [firsts[name], *await collect(reading)] == wanted, name
    async for more in ids:
        seen |= set(more)
    assert seen == {record.event.id for record in written}
    assert await collect(unread) == written, "what is not there any more does not read as empty"
    assert await reader.find(written[-1].event.idempotency_key) == written[-1]
    assert await reader.find_event(written[-1].event.id) == written[-1]
    assert await reader.removed() == {}
    for one in (reader, begun):
        await one.close()
    await log.close()


async def test_a_source_whose_store_is_discarded_does_not_end_as_if_it_were_whole(tmp_path: Path) -> None:
    log = await open_log(tmp_path, "sqlite")
    written = await fill(log, 300)
    old = log.source
    reading = old.read_all()
    assert await anext(reading) == written[0]
    await Migration(log, "jsonl").run()
    await asyncio.to_thread(discard_kept, tmp_path)
    with pytest.raises(StoreUnavailable, match="moved away while it was read; read the log again"):
        await collect(reading)
    with pytest.raises(StoreUnavailable, match="moved away"):
        await old.find(written[-1].event.idempotency_key)
    assert await collect(log.read_all()) == written
    await log.close()


async def test_a_reader_that_slept_through_two_moves_reads_the_new_file(tmp_path: Path) -> None:
    log = await open_log(tmp_path, "sqlite")
    written = await fill(log, 30)
    reader = LogReader(tmp_path)
    assert await collect(reader.read_all()) == written
    await Migration(log, "jsonl").run()
    await asyncio.to_thread(discard_kept, tmp_path)
    log.reread_manifest()
    await Migration(log, "sqlite").run()
    written += await fill(log, 5, "later-")
    assert await collect(reader.read_all()) == written and reader.head == log.head
    await reader.close()
    await log.close()


@needs_descriptors
@pytest.mark.parametrize("asked", ["head", "read"])
async def test_a_reader_does_not_keep_the_space_of_a_store_that_is_discarded(tmp_path: Path, asked: str) -> None:
    """One that follows the log may live for weeks: it lets go of the database when it next looks at the log."""
    log = await open_log(tmp_path, "sqlite")
    written = await fill(log, 300)
    reader = LogReader(tmp_path)
    index = SearchIndex(tmp_path)
    index.advance(len(written))
    index.close()
    assert await collect(reader.query(Filter(text="k1-0"))) != []
    begun = reader.read_all()
    assert await anext(begun) == written[0]
    await Migration(log, "jsonl").run()
    assert reader.head == log.head, "it let go of the database"
    for record in written[1:300]:
        assert await anext(begun) == record, "and a reading of the old store, which is kept, goes on"
    await asyncio.to_thread(discard_kept, tmp_path)
    assert "log.db" in deleted_and_open(tmp_path)
    if asked == "head":
        assert reader.head == log.head
    else:
        assert await collect(reader.read_all(after=log.head - 1)) == written[-1:]
    assert deleted_and_open(tmp_path) == set()
    assert await collect(begun) == written[300:]
    assert deleted_and_open(tmp_path) == set()
    await reader.close()
    await log.close()


@BOTH
async def test_verifying_a_store_that_is_discarded_finds_no_damage(tmp_path: Path, start: Backend, to: Backend) -> None:
    log = await open_log(tmp_path, start)
    await fill(log, 300)
    check = Verification(tmp_path)
    await Migration(log, to).run()
    assert [finding async for finding in Verification(tmp_path).run()] == []
    await asyncio.to_thread(discard_kept, tmp_path)
    with pytest.raises(StoreUnavailable, match=f"moved to {to} while it was verified.*run it again"):
        assert [finding async for finding in check.run()] == []
    assert [finding async for finding in Verification(tmp_path).run()] == []
    await log.close()


@BOTH
@pytest.mark.parametrize("deleted", [0, 1])
async def test_a_discarding_that_is_cut_off_leaves_nothing_to_go_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Backend, to: Backend, deleted: int
) -> None:
    """Half a store must never be what a rollback goes back to: the pointer is changed before the first file goes."""
    log = await open_log(tmp_path, start)
    written = await fill(log, 30)
    await Migration(log, to).run()
    await log.close()
    left = iter(range(deleted))
    unlink, rmtree = Path.unlink, shutil.rmtree

    def cut_off(real: Callable[..., None]) -> Callable[..., None]:
        def delete(path: Path, *arguments: object, **more: object) -> None:
            if next(left, None) is None:
                raise Stopped
            real(path, *arguments, **more)

        return delete

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", cut_off(unlink))
        patch.setattr("streams.stores.copies.shutil.rmtree", cut_off(rmtree))
        with pytest.raises(Stopped):
            discard_kept(tmp_path)
    assert read_manifest(tmp_path) == Manifest(to, log.manifest.log_id)
    log = await open_log(tmp_path)
    assert plain(await collect(log.read_all())) == plain(written)
    await log.close()
    assert discard_kept(tmp_path) > 0
    assert [finding async for finding in Verification(tmp_path).run()] == []


@BOTH
async def test_what_a_discarding_that_was_cut_off_left_is_deleted_by_the_next(
    tmp_path: Path, start: Backend, to: Backend
) -> None:
    log = await open_log(tmp_path, start)
    written = await fill(log, 30)
    await Migration(log, to).run()
    # Killed after the pointer, before the files.
    write_manifest(tmp_path, Manifest(to, log.manifest.log_id))
    assert await asyncio.to_thread(discard_kept, tmp_path) > 0
    assert not (tmp_path / ("log" if start == "jsonl" else "log.db")).exists()
    assert await asyncio.to_thread(discard_kept, tmp_path) == 0
    assert plain(await collect(log.read_all())) == plain(written)
    await log.close()


@BOTH
async def test_a_copy_that_was_half_discarded_is_begun_anew(tmp_path: Path, start: Backend, to: Backend) -> None:
    """Discarding was cut off; what it left must not keep the log from moving there again."""
    log = await open_log(tmp_path, start)
    written = await fill(log, 30)
    await Migration(log, to).run()
    if start == "jsonl":
        for segment in sorted((tmp_path / "log").iterdir())[:2]:
            segment.unlink()
    else:
        (tmp_path / "log.db").write_bytes((tmp_path / "log.db").read_bytes()[:5000])
    written += await fill(log, 5, "since-")
    await Migration(log, start).run()
    assert log.backend == start and plain(await collect(log.read_all())) == plain(written)
    await log.close()


def files_of(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


async def test_a_damaged_database_is_not_moved(tmp_path: Path) -> None:
    log = await open_log(tmp_path, "sqlite")
    await fill(log, 30)
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.execute("UPDATE records SET hash = zeroblob(32) WHERE position = 7")
    connection.close()
    before = {name for name in files_of(tmp_path) if not name.startswith("log.db-")}
    with pytest.raises(MigrationFailed, match=r"record 7 does not continue.*was not moved.*verify"):
        await Migration(log, "jsonl").run()
    assert log.backend == "sqlite" and not (tmp_path / "log").exists() and not (tmp_path / "head").exists()
    assert {name for name in files_of(tmp_path) if not name.startswith("log.db-")} == before
    await log.close()


async def test_damage_is_not_moved(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    await fill(log, 30)
    segment = sorted((tmp_path / "log").iterdir())[1]
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(bytes(data))
    before = files_of(tmp_path)
    with pytest.raises(CorruptLog, match=r"wrong checksum"):
        await Migration(log, "sqlite").run()
    assert log.backend == "jsonl" and files_of(tmp_path) == before, "nothing of the copy is left"
    assert (await log.append([event("it goes on")]))[0].position == log.head
    await log.close()


TAMPERED = {
    "a payload": [
        """UPDATE records SET event = CAST(replace(event, '"n":"k6-', '"n":"k9-') AS BLOB) WHERE position = 15""",
        "UPDATE records SET crc = checksum(event) WHERE position = 15",
    ],
    "the order in a stream": [
        "UPDATE records SET offset = 1000 WHERE position = 15",
        "UPDATE records SET offset = 2 WHERE offset = 3 AND stream = (SELECT stream FROM records WHERE position = 15)",
        "UPDATE records SET offset = 3 WHERE offset = 1000",
    ],
}
"""Record 15 is changed as one who knows the format would: everything but the chain is right."""


@pytest.mark.parametrize("what", TAMPERED)
async def test_what_was_tampered_with_is_not_moved(tmp_path: Path, what: str) -> None:
    log = await open_log(tmp_path, "sqlite")
    written = await fill(log, 30)
    assert (written[15].offset, written[15].event.idempotency_key[:8]) == (2, "test:k6-")
    await log.close()
    connection = sqlite3.connect(tmp_path / "log.db")
    connection.create_function("checksum", 1, crc32)
    for statement in TAMPERED[what]:
        assert connection.execute(statement).rowcount == 1
    connection.commit()
    connection.close()
    log = await open_log(tmp_path)
    with pytest.raises(MigrationFailed, match="does not continue its stream's hash chain, so the log was not moved"):
        await Migration(log, "jsonl").run()
    assert log.backend == "sqlite" and log.head == written[-1].position
    await log.close()


async def test_a_copy_that_differs_is_not_switched_to(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    await fill(log, 30)
    await Migration(log, "sqlite").run()
    await Migration(log, "jsonl").run()
    more = await fill(log, 5, "more-")
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.execute("UPDATE records SET hash = zeroblob(32) WHERE position = 3")
        connection.execute("UPDATE records SET offset = offset + 1000 WHERE position = 4")
    connection.close()
    with pytest.raises(MigrationFailed, match=r"was not moved.*verify"):
        await Migration(log, "sqlite").run()
    assert log.backend == "jsonl"
    assert (await collect(log.read_all(after=more[0].position - 1)))[0].event == more[0].event
    await log.append([event("it goes on")])
    await log.close()


async def test_a_copy_that_does_not_hold_what_was_written_to_it_is_not_switched_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a failing disk would have it: what was read is right, and what the copy gives back is another record."""
    log = await open_log(tmp_path)
    written = await fill(log, 10)

    def row(record: Stored, event: StreamEvent, stream: int) -> Row:
        last = record.position == written[-1].position
        return stored_row(record._replace(hash=bytes(32)) if last else record, event, stream)

    monkeypatch.setattr("streams.stores.sqlite.stored_row", row)
    with pytest.raises(MigrationFailed, match="1 of 5 streams differ, so the log was not moved"):
        await Migration(log, "sqlite").run()
    assert log.backend == "jsonl"
    await log.append([event("it goes on")])
    await log.close()


async def test_a_full_disk_ends_the_migration_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await open_log(tmp_path)
    first = await fill(log, 30)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("streams.stores.sqlite.SqliteStore._copy", full)
        before = files_of(tmp_path)
        with pytest.raises(StoreUnavailable, match=r"No space left.*free .* MiB.*run the same command again"):
            await Migration(log, "sqlite").run()
        assert files_of(tmp_path) == before, "the copy takes no space from the records any more"
    assert log.backend == "jsonl"
    await Migration(log, "sqlite").run()
    assert plain(await collect(log.read_all())) == plain(first)
    await log.close()


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from streams.identity import seeded_identity
from streams.log import Log
from streams.migrate import Migration

async def main(store, to, at):
    calls = 0
    def maybe_die(progress):
        nonlocal calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
    log = await Log.open(Path(store), seeded_identity(1), segment_bytes=4000)
    await Migration(log, to, maybe_die).run()
    print("moved", flush=True)
    await log.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@BOTH
async def test_kill_at_every_step_and_run_again(tmp_path: Path, start: Backend, to: Backend) -> None:
    log = await open_log(tmp_path, start)
    first = await fill(log, 900)
    await log.close()
    at, code = 1, -signal.SIGKILL
    while code == -signal.SIGKILL:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, str(tmp_path), to, str(at), stdout=asyncio.subprocess.PIPE, env={**os.environ}
        )
        out, _ = await asyncio.wait_for(process.communicate(), HANG_S)
        code = process.returncode or 0
        log = await open_log(tmp_path)
        assert log.backend == to or (log.backend == start and b"moved" not in out)
        assert plain(await collect(log.read_all())) == plain(first)
        await log.close()
        at += 1
    assert code == 0 and at > 4
    log = await open_log(tmp_path)
    assert log.backend == to and plain(await collect(log.read_all())) == plain(first)
    await log.close()


async def test_an_append_that_nobody_waits_for_any_more_is_under_way_all_the_same(tmp_path: Path) -> None:
    """Its caller was cancelled while the disk was at it: the move waits for the write, and takes it along."""
    disk = GatedDisk(is_open=True)
    log = await Log.open(tmp_path, seeded_identity(1), disk=disk)
    first = await fill(log, 10)
    disk.gate.clear()
    disk.entered.clear()
    left = asyncio.create_task(log.append([event("left")]))
    await asyncio.to_thread(disk.entered.wait, HANG_S)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    moving = asyncio.create_task(Migration(log, "sqlite").run())
    done, _ = await asyncio.wait([moving], timeout=0.2)
    assert not done, "it waits for what is being written"
    disk.gate.set()
    async with asyncio.timeout(HANG_S):
        await moving
    found = await collect(log.read_all())
    assert [r.event.idempotency_key for r in found[len(first) :]] == ["test:left"]
    assert (await log.append([event("left")]))[0].duplicate
    await log.close()


async def test_a_move_that_is_cancelled_while_it_waits_for_a_write_lets_appends_go_on(tmp_path: Path) -> None:
    disk = GatedDisk(is_open=True)
    log = await Log.open(tmp_path, seeded_identity(1), disk=disk)
    disk.gate.clear()
    waiting = asyncio.create_task(log.append([event("a")]))
    await asyncio.to_thread(disk.entered.wait, HANG_S)
    moving = asyncio.create_task(Migration(log, "sqlite").run())
    await asyncio.wait([moving], timeout=0.2)
    moving.cancel()
    await asyncio.wait([moving])
    disk.gate.set()
    async with asyncio.timeout(HANG_S):
        await waiting
        assert (await log.append([event("b")]))[0].position == 1 and log.backend == "jsonl"
    await log.close()
