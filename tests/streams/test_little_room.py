"""Removing where the disk has room for a part of the work at a time: in smaller steps, whole, or not begun."""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from streams.errors import StoreUnavailable
from streams.identity import seeded_identity
from streams.log import Log
from streams.retention import ENTRY_BYTES
from streams.stores import sqlite_removed
from streams.stores.directory import Backend
from streams.stores.jsonl_removal import SLACK_BYTES, JsonlRemover
from streams.stores.reserve import LEAST_BYTES, RESERVE_FILE, TIGHT_BYTES, Reserve
from streams.stores.segments import list_segments
from tests.streams.disks import FastDisk
from tests.streams.opened import collect
from tests.streams.removals import BACKENDS, faults, open_log
from tests.streams.retention_contract import NOW, check_chains, fill

RECORDS = 120
OF_ONE_STREAM = RECORDS // 3


class SmallDisk:
    """Has room for so many records in a transaction of a removal.

    ``asked`` is how many each was to take, ``wal_bytes`` how large the write-ahead file was when it began.
    """

    def __init__(
        self, store: Path, patch: pytest.MonkeyPatch, room: int = sqlite_removed.CHUNK, code: int = sqlite3.SQLITE_FULL
    ) -> None:
        self.room, self.code, self._wal = room, code, store / "log.db-wal"
        self.asked: list[int] = []
        self.wal_bytes: list[int] = []
        for name in ("prune_chunk", "forget_chunk"):
            patch.setattr(sqlite_removed, name, self._limited(getattr(sqlite_removed, name)))

    def _limited(self, real: Any) -> Any:
        def chunk(*arguments: Any) -> Any:
            self.asked.append(arguments[-1])
            self.wal_bytes.append(self._wal.stat().st_size)
            done = real(*arguments)
            if arguments[-1] > self.room:
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = self.code
                raise error
            return done

        return chunk


async def remove(log: Log, what: str) -> int:
    """Prune all of a stream, or forget it; how many records it says it took."""
    if what == "prune":
        return (await log.prune({"ses_0": RECORDS}, at_ms=NOW)).records
    return (await log.forget(["ses_0"], at_ms=NOW)).records


@pytest.mark.parametrize("what", ["prune", "forget"])
async def test_a_sqlite_log_takes_fewer_records_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    log = await open_log(tmp_path, "sqlite")
    await fill(log, RECORDS)
    disk = SmallDisk(tmp_path, monkeypatch, 10)
    assert await remove(log, what) == OF_ONE_STREAM
    assert disk.asked == [256, 128, 64, 32, 16, *[8] * (OF_ONE_STREAM // 8)]
    # What an attempt that failed wrote there keeps its space until it is emptied.
    assert disk.wal_bytes[0] > 0 and disk.wal_bytes[1:6] == [0] * 5
    kept = await collect(log.read("ses_0"))
    assert len(kept) == (0 if what == "prune" else OF_ONE_STREAM)
    await check_chains(log)
    await log.close()
    assert await faults(tmp_path) == []


@pytest.mark.parametrize("what", ["prune", "forget"])
async def test_where_a_sqlite_log_has_room_for_no_record_that_is_told_and_done_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    log = await open_log(tmp_path, "sqlite")
    before = await fill(log, RECORDS)
    with monkeypatch.context() as patch:
        disk = SmallDisk(tmp_path, patch, 0)
        with pytest.raises(StoreUnavailable, match=r"could not be .* as a whole: No space left.*free disk space"):
            await remove(log, what)
        assert disk.asked == [256, 128, 64, 32, 16, 8, 4, 2, 1]
    assert [r.hash for r in await collect(log.read_all())] == [r.hash for r in before]
    assert await remove(log, what) == 0, "it was noted, and is done before anything new"
    assert (await collect(log.read("ses_0"))) != [r for r in before if r.event.stream_id == "ses_0"]
    await check_chains(log)
    await log.close()
    assert await faults(tmp_path) == []


async def test_a_failing_disk_is_not_asked_again_for_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await open_log(tmp_path, "sqlite")
    await fill(log, RECORDS)
    disk = SmallDisk(tmp_path, monkeypatch, 0, sqlite3.SQLITE_IOERR)
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        await remove(log, "prune")
    assert disk.asked == [256]
    await log.close()


@pytest.mark.parametrize(("free", "is_emptied"), [(TIGHT_BYTES - 1, True), (TIGHT_BYTES, False)])
async def test_the_write_ahead_file_stays_small_on_a_disk_that_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, is_emptied: bool
) -> None:
    log = await open_log(tmp_path, "sqlite")
    await fill(log, RECORDS)
    monkeypatch.setattr("streams.stores.sqlite_removal.free_bytes", lambda _: free)
    monkeypatch.setattr(sqlite_removed, "CHUNK", 8)
    disk = SmallDisk(tmp_path, monkeypatch)
    assert await remove(log, "prune") == OF_ONE_STREAM
    assert disk.asked == [8] * (OF_ONE_STREAM // 8)
    assert all((size == 0) is is_emptied for size in disk.wal_bytes[1:])
    await log.close()


def portions_of(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The positions that a jsonl log takes at once, one list for each time."""
    portions: list[list[int]] = []
    real = JsonlRemover._prune

    def prune(self: JsonlRemover, positions: Sequence[int], *more: Any) -> int:
        portions.append(list(positions))
        return real(self, positions, *more)

    monkeypatch.setattr(JsonlRemover, "_prune", prune)
    return portions


def leave_room(monkeypatch: pytest.MonkeyPatch, records: int) -> None:
    """The disk has room for the digests of so many records, and for as much beside them."""
    # What the manifest takes grows with what was removed, so it is added anew each time.
    manifest = {"bytes": 0}
    real = JsonlRemover._fitting

    def fitting(self: JsonlRemover, positions: Sequence[int]) -> int:
        manifest["bytes"] = len(self._files.manifest())
        return real(self, positions)

    def free(_: Path) -> int:
        return 2 * manifest["bytes"] + SLACK_BYTES + 2 * records * ENTRY_BYTES

    monkeypatch.setattr(JsonlRemover, "_fitting", fitting)
    monkeypatch.setattr("streams.stores.jsonl_removal.free_bytes", free)


async def test_a_jsonl_log_goes_in_portions_that_end_where_a_segment_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log(tmp_path)
    before = await fill(log, RECORDS)
    firsts = [segment.first for segment in list_segments(tmp_path / "log")]
    portions = portions_of(monkeypatch)
    leave_room(monkeypatch, 30)
    done = await log.prune({"ses_0": RECORDS, "ses_1": RECORDS}, at_ms=NOW)
    gone = [r.position for r in before if r.event.stream_id != "ses_2"]
    assert (done.records, done.streams) == (len(gone), 2)
    assert [position for portion in portions for position in portion] == gone
    assert len(portions) > 2 and all(len(portion) <= 30 for portion in portions)
    for earlier, later in pairwise(portions):
        assert bisect_right(firsts, earlier[-1]) < bisect_right(firsts, later[0]), "no segment is rewritten twice"
        following = firsts[bisect_right(firsts, later[0])]
        assert len(earlier) + sum(position < following for position in later) > 30, "as many as find room"
    assert [r.position for r in await collect(log.read_all())] == [r.position for r in before if r.position not in gone]
    await check_chains(log)
    await log.close()
    assert await faults(tmp_path) == []


async def test_what_lies_in_one_segment_goes_in_portions_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await Log.open(tmp_path, seeded_identity(1), disk=FastDisk())
    await fill(log, RECORDS)
    portions = portions_of(monkeypatch)
    # Each portion leaves room for its digests, and the segment is rewritten beside itself.
    leave_room(monkeypatch, 30)
    monkeypatch.setattr(JsonlRemover, "_fits", lambda *_: True)
    assert (await log.prune({"ses_0": RECORDS, "ses_1": RECORDS}, at_ms=NOW)).records == 2 * OF_ONE_STREAM
    assert [len(portion) for portion in portions] == [30, 30, 20]
    assert {r.event.stream_id for r in await collect(log.read_all())} == {"ses_2"}
    await log.close()
    assert await faults(tmp_path) == []


@pytest.mark.parametrize(("room", "portions"), [(2 * OF_ONE_STREAM, 1), (2 * OF_ONE_STREAM - 1, 2)])
async def test_what_finds_room_goes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, portions: int
) -> None:
    log = await open_log(tmp_path)
    await fill(log, RECORDS)
    taken = portions_of(monkeypatch)
    leave_room(monkeypatch, room)
    assert (await log.prune({"ses_0": RECORDS, "ses_1": RECORDS}, at_ms=NOW)).records == 2 * OF_ONE_STREAM
    assert len(taken) == portions
    await log.close()


async def test_where_a_jsonl_log_has_room_for_no_digest_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log(tmp_path)
    before = await fill(log, RECORDS)
    files = {path: path.read_bytes() for path in (tmp_path / "log").iterdir()}
    leave_room(monkeypatch, 0)
    with pytest.raises(StoreUnavailable, match=r"too little free space.*were not touched; free 1 MiB"):
        await log.prune({"ses_0": RECORDS}, at_ms=NOW)
    assert {path: path.read_bytes() for path in (tmp_path / "log").iterdir()} == files
    assert await collect(log.read_all()) == before
    leave_room(monkeypatch, 1)
    monkeypatch.setattr(JsonlRemover, "_fits", lambda *_: True)
    assert (await log.prune({"ses_0": 3}, at_ms=NOW)).records == 3, "one by one"
    await log.close()


# The reserve


@pytest.mark.parametrize(("free", "is_given_up"), [(TIGHT_BYTES - 1, True), (TIGHT_BYTES, False), (0, True)])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_removal_takes_the_reserve_only_on_a_disk_that_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Backend, free: int, is_given_up: bool
) -> None:
    """With plenty of room it stays the same file: making it anew would cost what it is there to save."""
    log = await open_log(tmp_path, backend)
    await fill(log)
    await log.keep_reserve()
    kept = (tmp_path / RESERVE_FILE).stat()
    assert kept.st_size >= LEAST_BYTES
    monkeypatch.setattr("streams.stores.reserve.free_bytes", lambda _: free)
    seen: list[bool] = []
    real = log.source.prune

    async def prune(*arguments: Any, **more: Any) -> Any:
        seen.append((tmp_path / RESERVE_FILE).exists())
        return await real(*arguments, **more)

    monkeypatch.setattr(log.source, "prune", prune)
    assert (await log.prune({"ses_0": 3}, at_ms=NOW)).records == 3
    assert seen == [not is_given_up]
    if not is_given_up:
        left = (tmp_path / RESERVE_FILE).stat()
        assert (left.st_ino, left.st_size, left.st_mtime_ns) == (kept.st_ino, kept.st_size, kept.st_mtime_ns)
    await log.close()


def test_the_reserve_comes_back_as_far_as_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve, path = Reserve(tmp_path), tmp_path / RESERVE_FILE
    assert reserve.give_up() == 0 and not path.exists(), "where none is, none is given up"
    reserve.keep()
    size = path.stat().st_size
    free = TIGHT_BYTES - 1
    monkeypatch.setattr("streams.stores.reserve.free_bytes", lambda _: free)
    assert reserve.give_up() == size >= LEAST_BYTES and not path.exists()
    free = size  # half of it for the reserve
    reserve.take_back(size)
    assert path.stat().st_size == size // 2
    path.unlink()
    reserve.take_back(0)
    assert not path.exists(), "what was not given up is not taken back"
