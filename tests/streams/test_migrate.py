"""A log in use migrates between backends: nothing lost or duplicated, wherever it fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.migrate import Migration, Progress, discard_kept
from streams.log.reader import LogReader
from streams.store import Record
from streams.stores.directory import Backend, read_manifest
from streams.stores.head import EMPTY_HEAD, format_head
from streams.stores.jsonl.reader import JsonlReader
from streams.stores.sqlite.reader import SqliteReader
from streams.stores.sqlite.store import SqliteStore
from streams.stores.stored import Stored
from tests.streams.builders import event
from tests.streams.disks import GatedDisk
from tests.streams.moves import BOTH, HANG_S, Stopped, fill, open_log, plain, stored
from tests.streams.opened import collect


@BOTH
async def test_every_record_moves_as_it_is(tmp_path: Path, start: Backend, to: Backend) -> None:
    log = await open_log(tmp_path, start)
    written = await fill(log, 60)
    before = await stored(log)
    told: list[str] = []
    done = await Migration(log, to, lambda progress: told.append(progress.phase)).run()
    assert (done.phase, done.copied, done.streams, log.backend) == ("done", len(written), 5, to)
    assert list(dict.fromkeys(told)) in (
        ["opening", "copying", "verifying", "switching", "done"],
        ["opening", "verifying", "switching", "done"],
    )
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


async def test_appends_that_come_faster_than_they_are_copied_are_slowed_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move still ends, nothing is lost, and the order of submission is kept."""
    log = await open_log(tmp_path)
    await fill(log, 400, "before-")
    copy = SqliteStore._copy

    def slowly(self: SqliteStore, records: list[Stored]) -> None:
        time.sleep(len(records) / 4000)  # a disk that copies 4,000 a second
        copy(self, records)

    monkeypatch.setattr(SqliteStore, "_copy", slowly)
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
    """Writers, a subscriber and a reader notice nothing; all writes are there once, in order."""
    log = await open_log(tmp_path, start)
    await fill(log, 400, "before-")
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
async def test_the_old_store_stays_until_it_is_discarded_and_the_way_back_makes_a_new_one(
    tmp_path: Path, start: Backend, to: Backend
) -> None:
    log = await open_log(tmp_path, start)
    first = await fill(log, 20)
    await Migration(log, to).run()
    old = SqliteReader(tmp_path) if start == "sqlite" else JsonlReader(tmp_path)
    assert plain(await collect(old.read_all())) == plain(first)
    since = await fill(log, 20, "since-")
    await Migration(log, start).run()
    assert log.backend == start
    assert plain(await collect(log.read_all())) == plain(first + since)
    assert await asyncio.to_thread(discard_kept, tmp_path) > 0
    manifest = read_manifest(tmp_path)
    assert manifest is not None and manifest.kept is None
    assert await asyncio.to_thread(discard_kept, tmp_path) == 0
    await log.append([event("after")])
    await log.close()
    names = {path.name for path in tmp_path.iterdir()}
    assert ("log.db" in names) == (start == "sqlite") and ("log" in names) == (start == "jsonl")


@BOTH
@pytest.mark.parametrize("at", [3, "switching"])
async def test_one_that_was_cut_off_is_continued(tmp_path: Path, start: Backend, to: Backend, at: int | str) -> None:
    log = await open_log(tmp_path, start)
    first = await fill(log, 500)
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


async def test_an_append_that_nobody_waits_for_any_more_is_under_way_all_the_same(tmp_path: Path) -> None:
    """Its caller was cancelled during the write: the move waits for the write and includes it."""
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
