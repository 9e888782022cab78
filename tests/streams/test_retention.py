"""Pruning and forgetting on disk: remaining bytes, faults and kills, and other processes."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from streams.errors import StoreUnavailable
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.query import Filter
from streams.store import Snapshot
from streams.stores.disk import Disk
from streams.stores.journal import mover
from streams.stores.sqlite.search_index import SearchIndex
from tests.streams.builders import event
from tests.streams.calls import Call, watching
from tests.streams.disks import FastDisk
from tests.streams.opened import PLACES, Place, collect, faults, held, left_by_a_kill, moved, put
from tests.streams.removals import open_log
from tests.streams.retention_contract import NOW, fill

MARKER = "MARKER-of-what-is-to-be-forgotten"


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with held():
        yield request.param


def holders(store: Path, text: str) -> list[str]:
    """The files whose bytes contain a text."""
    return [str(path) for path in store.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


async def written(store: Path, place: Place, disk: Disk | None = None) -> Log:
    """A log with thirty records, every second one to be forgotten."""
    log = await open_log(store, disk)
    for n in range(30):
        payload = {"text": f"{MARKER} {n} " + "y" * (n * 40)}
        await log.append([event(f"f{n}", stream=f"ses_{n % 2}", payload=payload if n % 2 else {"text": "kept"})])
    await put(log, place)
    return log


class TestForgottenBytes:
    async def test_no_file_of_the_store_holds_them(self, tmp_path: Path, place: Place) -> None:
        """Journal, database, write-ahead file, search index, snapshots, tails kept by recovery."""
        log = await written(tmp_path, place)
        await log.put_snapshot("capture", Snapshot(1, 4, MARKER.encode()))
        await log.write_hints()
        await log.put_snapshot("late", Snapshot(1, 4, MARKER.encode()))
        (tmp_path / "torn").mkdir(exist_ok=True)
        (tmp_path / "torn" / "x.bin").write_bytes(b'{"payload":"' + MARKER.encode())
        index = SearchIndex(tmp_path)
        index.advance(100)
        assert len(await collect(log.query(Filter(text=MARKER)))) == 15
        assert len(holders(tmp_path, MARKER)) > 2
        assert (await log.forget(["ses_1"], at_ms=NOW)).records == 15
        assert holders(tmp_path, MARKER) == []
        assert await collect(log.query(Filter(text=MARKER))) == []
        assert index.advance(100) == 30, "it begins again"
        assert await collect(log.query(Filter(text=MARKER))) == []
        index.close()
        assert holders(tmp_path, MARKER) == [] and holders(tmp_path, "kept")
        await log.close()
        assert holders(tmp_path, MARKER) == [] and await faults(tmp_path) == []

    async def test_pruned_events_are_in_no_file_of_the_log_and_its_room_comes_back(
        self, tmp_path: Path, place: Place
    ) -> None:
        log = await open_log(tmp_path)
        for n in range(40):
            payload = {"text": f"MARKER{n % 2} " + "z" * 20_000}
            await log.append([event(f"p{n}", stream=f"ses_{n % 2}", payload=payload)])
        await put(log, place)
        await log.prune({"ses_0": 20}, at_ms=NOW)
        after = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        assert holders(tmp_path, "MARKER0") == [] and holders(tmp_path, "MARKER1")
        assert after < 20 * 30_000
        await log.close()

    async def test_what_is_appended_meanwhile_is_kept(self, tmp_path: Path, place: Place) -> None:
        log = await written(tmp_path, place)
        late = [event(f"late{n}", stream="ses_1", payload={"text": "late"}) for n in range(20)]

        async def append() -> None:
            for each in late:
                await log.append([each])

        await asyncio.gather(log.forget(["ses_1"], at_ms=NOW), append())
        assert holders(tmp_path, MARKER) == []
        found = await collect(log.read("ses_1"))
        assert [record.offset for record in found] == list(range(35))
        await log.close()
        assert await faults(tmp_path) == []

    async def test_after_a_kill_at_any_step_the_next_start_finishes_it(self, tmp_path: Path, place: Place) -> None:
        copies: list[Path] = []
        steps = count(PLACES.index(place))  # each place has other steps, together all

        def keep(call: Call) -> None:
            if is_removing and next(steps) % len(PLACES) == 0:
                copies.append(left_by_a_kill(tmp_path / "store", tmp_path / f"killed{len(copies)}"))

        is_removing = False
        with watching(tmp_path / "store", keep):
            log = await written(tmp_path / "store", place)
            is_removing = True
            await log.forget(["ses_1"], at_ms=NOW)
            is_removing = False
            await log.close()
        assert len(copies) > 5
        finished = 0
        for copy in copies:
            begun = (await LogReader(copy).removal()).pending
            log = await open_log(copy)
            records = await collect(log.read_all())
            left = [record for record in records if MARKER in str(record.event.payload)]
            assert len(records) == 30 and len(left) in (0, 15)
            assert not begun or not left
            if not left:
                finished += 1
                assert holders(copy, MARKER) == []
            await log.forget(["ses_1"], at_ms=NOW)
            assert holders(copy, MARKER) == []
            await log.close()
            assert await faults(copy) == [] and holders(copy, MARKER) == []
        assert finished > 0


class Undeletable(FastDisk):
    """A disk that deletes nothing while ``fails``."""

    fails = True

    def unlink(self, path: Path) -> None:
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().unlink(path)


async def test_a_segment_that_cannot_be_deleted_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mover tries to delete it first; a removal must not trust that."""
    for name in ("PAUSE_SECONDS", "FIRST_RETRY_SECONDS", "LAST_RETRY_SECONDS"):
        monkeypatch.setattr(mover, name, 0.0)
    disk = Undeletable()
    log = await written(tmp_path, "journal", disk)
    await moved(log)
    assert holders(tmp_path / "journal", MARKER)
    with pytest.raises(StoreUnavailable):
        await log.forget(["ses_1"], at_ms=NOW)
    disk.fails = False
    assert (await log.forget(["ses_1"], at_ms=NOW)).records == 15
    assert holders(tmp_path, MARKER) == []
    await log.close()


async def test_a_database_that_takes_nothing_lets_nothing_be_removed(tmp_path: Path) -> None:
    is_full = False

    def fill_disk(call: Call) -> None:
        if is_full and call.by == "sqlite":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with held(), watching(tmp_path, fill_disk):
        log = await written(tmp_path, "journal")
        before = await collect(log.read_all())
        is_full = True
        with pytest.raises(StoreUnavailable):
            await log.forget(["ses_1"], at_ms=NOW)
        with pytest.raises(StoreUnavailable):
            await log.prune({"ses_1": 3}, at_ms=NOW)
        is_full = False
        assert await collect(log.read_all()) == before
        await log.close()
    assert await faults(tmp_path) == []


class TestBesideOthers:
    async def test_a_reader_sees_what_is_kept_at_any_moment(self, tmp_path: Path, place: Place) -> None:
        log = await open_log(tmp_path)
        before = {record.position: record.hash for record in await fill(log, 120)}
        await put(log, place)
        reader = LogReader(tmp_path)
        for step in range(1, 8):
            removing = asyncio.gather(
                log.prune({"ses_0": step * 5, "ses_1": step * 3}, at_ms=NOW), log.forget(["ses_2"], at_ms=NOW)
            )
            seen = await collect(reader.read_all())
            await removing
            assert reader.head == 119
            positions = [record.position for record in seen]
            assert positions == sorted(set(positions)) and all(before[r.position] == r.hash for r in seen)
            assert {r.position async for r in log.read_all()} <= set(positions)
        await reader.close()
        await log.close()

    async def test_verify_beside_removals_tells_nothing(self, tmp_path: Path) -> None:
        log = await open_log(tmp_path)
        await fill(log, 100)
        stop = asyncio.Event()

        async def remove() -> None:
            for step in range(1, 10):
                await log.prune({"ses_0": step * 2, "ses_1": step}, at_ms=NOW)
                await log.forget(["ses_2"], at_ms=NOW)
                await log.append([event(f"v{step}", stream="ses_2")])
            stop.set()

        async def verify() -> int:
            runs = 0
            while not stop.is_set() or not runs:
                assert await faults(tmp_path) == []
                runs += 1
            return runs

        async with asyncio.timeout(60):
            await asyncio.gather(remove(), verify())
        await log.close()
        verification = Verification(tmp_path)
        assert [f async for f in verification.run()] == []
        assert (verification.summary.pruned, verification.summary.head) == (18 + 9, 108)
        assert verification.summary.forgotten == 33 + 8
