"""Compressing a segment and giving it other lines: at any moment, for any reader, after any crash the log is right."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from streams.errors import CorruptLog, StoreUnavailable
from streams.identity import seeded_identity
from streams.log import Log
from streams.migrate import Migration
from streams.store import Record
from streams.stores import seekable
from streams.stores.disk import Disk
from streams.stores.jsonl import JsonlStore
from streams.stores.jsonl_reader import JsonlReader
from streams.stores.rewriting import compress, remove_segment, replace_lines
from streams.stores.segment_files import Segment, list_segments, read_segment
from streams.verify import Verification
from tests.streams.builders import event, events
from tests.streams.disks import FastDisk, FaultyDisk
from tests.streams.logs import files, findings
from tests.streams.opened import collect
from tests.streams.other_process import start

HANG_S = 60


async def open_store(store: Path, disk: Disk | None = None) -> JsonlStore:
    return await JsonlStore.open(store, seeded_identity(1), disk=disk or FastDisk(), segment_bytes=1500)


async def fill(store: JsonlStore, batches: int = 12) -> list[Record]:
    records = []
    for number in range(batches):
        records += await store.append(events(1 + number % 3, prefix=f"b{number}-", stream=f"ses_{number % 2}"))
    return records


def names(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "log").iterdir())


class Killed(BaseException):
    """What ``DyingDisk`` raises; nothing handles it."""


class DyingDisk(FastDisk):
    """The process dies at the ``at``-th call: from then on nothing reaches the disk, no cleaning up either."""

    def __init__(self, at: int, *, done: bool) -> None:
        self.at, self.calls, self.done = at, 0, done
        """``done``: the call that it dies at has its effect all the same."""


def _dying(name: str) -> Callable[..., Any]:
    def call(self: DyingDisk, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls > self.at or (self.calls == self.at and not self.done):
            raise Killed
        result = getattr(super(DyingDisk, self), name)(*arguments)
        if self.calls == self.at:
            raise Killed
        return result

    return call


for _name in ("write", "sync", "create", "replace", "unlink"):
    setattr(DyingDisk, _name, _dying(_name))


# Crashes


@pytest.mark.parametrize("done", [False, True])
async def test_a_crash_at_any_step_of_compressing_leaves_a_right_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    monkeypatch.setattr(seekable, "FRAME_BYTES", 700)
    store = await open_store(tmp_path / "made")
    records = await fill(store, 5)
    await store.close()
    left = set()
    at = 0
    while True:
        at += 1
        place = tmp_path / str(at)
        shutil.copytree(tmp_path / "made", place)
        disk = DyingDisk(at, done=done)
        with suppress(Killed):
            compress(disk, list_segments(place / "log")[0])
        left.add(tuple(names(place)))
        assert await collect(JsonlReader(place).read_all()) == records, at
        assert await findings(place) == [], at
        store = await open_store(place)
        assert await collect(store.read_all()) == records, at
        for record in records:
            assert store.places.records_at([record.position]) == [record]
        while await store.compress() is not None:
            pass
        records_now = records + await store.append([event("next")])
        assert await collect(store.read_all()) == records_now
        await store.close()
        assert not any(name.startswith("new-") for name in names(place)), "leftovers are removed"
        assert len({name[:20] for name in names(place)}) == len(names(place)), "one form is left"
        assert await findings(place) == []
        if disk.calls < at:
            break
    assert at > 7 and len(left) == (3 if done else 4), "before, half beside it, both forms, after"


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("form", ["plain", "compressed"])
async def test_a_crash_while_lines_are_replaced_leaves_the_old_ones_or_the_new(
    tmp_path: Path, form: str, done: bool
) -> None:
    store = await open_store(tmp_path)
    await fill(store, 3)
    await store.close()
    segment = list_segments(tmp_path / "log")[0]
    if form == "compressed":
        segment = compress(FastDisk(), segment).segment
    old = read_segment(segment)
    new = old.replace(b'"build"', b'"other"')
    seen = set()
    at = 0
    while True:
        at += 1
        disk = DyingDisk(at, done=done)
        with suppress(Killed):
            replace_lines(disk, segment, new.splitlines(keepends=True))
        found = read_segment(list_segments(tmp_path / "log")[0])
        assert found in (old, new)
        assert list_segments(tmp_path / "log")[0] == segment, "it keeps its form"
        seen.add(found)
        if disk.calls < at:
            break
        replace_lines(FastDisk(), segment, old.splitlines(keepends=True))
    assert seen == {old, new} and at > 4 and found == new
    assert not any(name.startswith("new-") for name in names(tmp_path))


async def test_what_a_failed_removal_left_never_comes_back(tmp_path: Path) -> None:
    """After new lines the old ones must not be there under the other name: they may have been forgotten."""
    store = await open_store(tmp_path)
    await fill(store, 3)
    await store.close()
    for number in range(2):
        plain = list_segments(tmp_path / "log")[0]
        old = plain.path.read_bytes()
        compressed = compress(FastDisk(), plain).segment
        plain.path.write_bytes(old)
        segment = (plain, compressed)[number]
        new = old.replace(b'"build"', b'"other"')
        replace_lines(FastDisk(), segment, [new])
        assert list_segments(tmp_path / "log")[0] == segment and read_segment(segment) == new
        assert not segment.other_form().path.exists()


@pytest.mark.parametrize("named", [0, 1])
async def test_a_segment_goes_in_both_its_forms(tmp_path: Path, named: int) -> None:
    """What is pruned must not stay under the other name."""
    store = await open_store(tmp_path)
    await fill(store, 3)
    await store.close()
    plain = list_segments(tmp_path / "log")[0]
    old = plain.path.read_bytes()
    compressed = compress(FastDisk(), plain).segment
    plain.path.write_bytes(old)
    for _ in range(2):
        remove_segment(FastDisk(), (plain, compressed)[named])
        assert not plain.path.exists() and not compressed.path.exists()


async def test_two_forms_with_the_same_lines_are_settled(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    records = await fill(store)
    await store.close()
    kept = list_segments(tmp_path / "log")[0].path.read_bytes()
    compress(FastDisk(), list_segments(tmp_path / "log")[0])
    (tmp_path / "log" / f"{0:020d}.jsonl").write_bytes(kept)
    (tmp_path / "log" / f"new-{0:020d}.jsonl.zst").write_bytes(b"half of it")
    (tmp_path / "log" / "mine.txt").write_text("a stranger's")
    assert not list_segments(tmp_path / "log")[0].is_compressed and await findings(tmp_path) == []
    assert await collect(JsonlReader(tmp_path).read_all()) == records
    store = await open_store(tmp_path)
    assert await collect(store.read_all()) == records
    await store.close()
    assert names(tmp_path)[0] == f"{0:020d}.jsonl.zst" and f"{0:020d}.jsonl" not in names(tmp_path)
    assert "mine.txt" in names(tmp_path) and not any(name.startswith("new-") for name in names(tmp_path))


@pytest.mark.parametrize("damage", ["other lines", "no segment"])
async def test_two_forms_that_differ_are_for_a_person_to_settle(tmp_path: Path, damage: str) -> None:
    store = await open_store(tmp_path)
    records = await fill(store)
    await store.close()
    plain = list_segments(tmp_path / "log")[0]
    kept = plain.path.read_bytes()
    compressed = compress(FastDisk(), plain).segment
    if damage == "other lines":
        replace_lines(FastDisk(), compressed, kept.splitlines(keepends=True)[:-1])
    else:
        compressed.path.write_bytes(b"rubbish")
    plain.path.write_bytes(kept)
    before = files(tmp_path)
    with pytest.raises(CorruptLog, match=r"holds other lines: move the one.*nothing was changed"):
        await open_store(tmp_path)
    assert files(tmp_path) == before
    assert await findings(tmp_path) == [("corrupt", compressed.path.name, None, 0)]
    assert await collect(JsonlReader(tmp_path).read_all()) == records, "the plain one counts"
    compressed.path.unlink()
    await (await open_store(tmp_path)).close()


# The store


async def test_only_closed_segments_are_compressed_one_at_a_time(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    assert await store.compress() is None
    records = await fill(store)
    count = len(names(tmp_path))
    for number in range(1, count):
        done = await store.compress()
        assert done is not None and done.segment.path.name == names(tmp_path)[number - 1]
        assert done.bytes > done.disk_bytes == done.segment.path.stat().st_size
        assert [name.endswith(".zst") for name in names(tmp_path)] == [True] * number + [False] * (count - number)
    assert await store.compress() is None
    assert (await store.append([event("next")]))[0].position == len(records)
    assert [r.duplicate for r in await store.append(events(1, prefix="b0-", stream="ses_0"))] == [True]
    assert await collect(store.read_all(after=len(records) - 1)) != []
    await store.close()
    assert await store.compress() is None, "a closed store rewrites nothing"


async def test_a_compressed_last_segment_is_gone_on_after(tmp_path: Path) -> None:
    """Whoever compressed it by hand: the next record begins a segment."""
    store = await open_store(tmp_path)
    records = await fill(store)
    await store.close()
    compress(FastDisk(), list_segments(tmp_path / "log")[-1])
    assert await collect(JsonlReader(tmp_path).read_all()) == records
    for _ in range(2):
        store = await open_store(tmp_path)
        records += await store.append([event(f"next{len(records)}")])
        await store.close()
    assert await collect(JsonlReader(tmp_path).read_all()) == records and await findings(tmp_path) == []
    assert [s.is_compressed for s in list_segments(tmp_path / "log")][-2:] == [True, False]


@pytest.mark.parametrize(("method", "code"), [("write", errno.ENOSPC), ("sync", errno.EIO), ("create", errno.ENOSPC)])
async def test_a_failing_disk_ends_the_compression_and_nothing_else(tmp_path: Path, method: str, code: int) -> None:
    disk = FaultyDisk()
    store = await open_store(tmp_path, disk)
    records = await fill(store)
    before = names(tmp_path)
    disk.faults[method, disk.calls[method] + 1] = code
    with pytest.raises(StoreUnavailable, match=f"{os.strerror(code)}.*stays as it is"):
        await store.compress()
    assert names(tmp_path) == before, "no half of it is left"
    records += await store.append([event("it goes on")])
    assert await store.compress() is not None
    assert await collect(store.read_all()) == records
    await store.close()
    assert await findings(tmp_path) == []


async def test_what_is_not_read_back_as_it_was_is_not_kept(tmp_path: Path) -> None:
    class LyingDisk(FastDisk):
        lies = False

        def write(self, fd: int, data: bytes) -> None:
            super().write(fd, data[:-30] + bytes(30) if self.lies else data)

    disk = LyingDisk()
    store = await open_store(tmp_path, disk)
    records = await fill(store)
    before = names(tmp_path)
    disk.lies = True
    with pytest.raises(StoreUnavailable, match="does not hold what was written to it"):
        await store.compress()
    with pytest.raises(StoreUnavailable, match="does not hold what was written to it"):
        replace_lines(disk, list_segments(tmp_path / "log")[0], [b"other\n" * 20])
    disk.lies = False
    assert names(tmp_path) == before and await collect(store.read_all()) == records
    await store.close()


async def test_closing_ends_a_compression_under_way(tmp_path: Path) -> None:
    class SlowDisk(FastDisk):
        def __init__(self) -> None:
            self.slow, self.entered, self.gate = False, threading.Event(), threading.Event()

        def create(self, path: Path) -> int:
            if self.slow:
                self.entered.set()
                assert self.gate.wait(HANG_S)
            return super().create(path)

    disk = SlowDisk()
    store = await open_store(tmp_path, disk)
    records = await fill(store)
    disk.slow = True
    before = names(tmp_path)
    async with asyncio.timeout(HANG_S):
        compressing = asyncio.ensure_future(store.compress())
        await asyncio.to_thread(disk.entered.wait, HANG_S)
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        compressing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await compressing
        assert not closing.done(), "who would open the log now would meet another writer"
        disk.gate.set()
        await closing
    assert names(tmp_path) == before
    store = await open_store(tmp_path)
    assert await collect(store.read_all()) == records
    await store.close()


# Readers


async def test_everybody_reads_while_every_segment_is_compressed(tmp_path: Path) -> None:
    """The store by its index, a reader beside it, one in another process, a subscription, and a copy for a move."""
    store = await open_store(tmp_path, Disk())
    records = await fill(store, 60)
    places = [[r.position, r.hash] for r in records]
    process = await start("read", tmp_path)
    assert process.stdin is not None and process.stdout is not None
    done = asyncio.Event()
    read = dict.fromkeys(["store", "stream", "reader", "process", "copy", "verify"], 0)

    async def again(name: str, reading: Callable[[], Any]) -> None:
        while not done.is_set() or not read[name]:
            await reading()
            read[name] += 1

    async def by_store() -> None:
        for record in records[:: 1 + read["store"] % 7]:
            assert await store.find(record.event.idempotency_key) == record

    async def by_stream() -> None:
        for stream in ("ses_0", "ses_1"):
            wanted = [r for r in records if r.event.stream_id == stream]
            assert await collect(store.read(stream)) == wanted

    async def by_reader() -> None:
        assert await collect(JsonlReader(tmp_path).read_all()) == records

    async def by_process() -> None:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"read\n")
        answer = await process.stdout.readline()
        assert b'"error": null' in answer and answer.count(b"[") == len(places) + 1

    async def by_copy() -> None:
        copied = [record.position async for part in store.copy_out(after=-1, most=5) for record in part]
        assert copied == [r.position for r in records]

    async def by_verify() -> None:
        assert [str(f) async for f in Verification(tmp_path).run()] == []

    async def follow() -> None:
        followed = 0
        subscription: AsyncIterator[Record] = store.subscribe()
        async for record in subscription:
            assert record == records[followed]
            followed += 1
            if followed == len(records):
                return

    try:
        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
            for name, reading in (
                ("store", by_store),
                ("stream", by_stream),
                ("reader", by_reader),
                ("process", by_process),
                ("copy", by_copy),
                ("verify", by_verify),
            ):
                tasks.create_task(again(name, reading))
            tasks.create_task(follow())
            while await store.compress() is not None:
                await asyncio.sleep(0)
            done.set()
    finally:
        process.kill()
        await process.communicate()
    assert store.file_sizes().compressed == store.file_sizes().files - 1 > 15
    assert all(read.values()), read
    await store.close()


# Moves


async def test_a_compressed_log_moves_and_comes_back(tmp_path: Path) -> None:
    log = await Log.open(tmp_path, seeded_identity(1), segment_bytes=1500)
    records = []
    for number in range(30):
        records += await log.append(events(1 + number % 3, prefix=f"b{number}-", stream=f"ses_{number % 2}"))
    while await log.compress() is not None:
        pass
    before = log.file_sizes()
    assert before is not None and before.compressed == before.files - 1 > 5
    await Migration(log, "sqlite").run()
    assert await collect(log.read_all()) == records
    assert log.file_sizes() is None and await log.compress() is None
    records += await log.append([event("in sqlite")])
    await Migration(log, "jsonl").run()
    anew = log.file_sizes()
    assert anew is not None and (anew.compressed, anew.bytes) == (0, anew.disk_bytes)
    while await log.compress() is not None:
        pass
    assert await collect(log.read_all()) == records
    await log.close()
    assert [str(f) async for f in Verification(tmp_path).run()] == []
    reopened = await Log.open(tmp_path, seeded_identity(1), segment_bytes=1500)
    assert await collect(reopened.read_all()) == records
    await reopened.close()


def test_a_segment_knows_its_other_name() -> None:
    plain = Segment(7, Path("/log/00000000000000000007.jsonl"))
    assert plain.other_form().path.name == "00000000000000000007.jsonl.zst" and not plain.is_compressed
    assert plain.other_form().other_form() == plain and plain.other_form().is_compressed
