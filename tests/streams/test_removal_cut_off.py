"""Pruning and forgetting that is cut off at any step: by a kill, by a disk error."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from streams.errors import StoreUnavailable
from streams.hashing import is_digest
from streams.log_reader import LogReader
from streams.retention import Gone
from streams.store import Record
from streams.stores import sqlite_removal
from streams.stores.directory import Backend
from streams.stores.removed_files import MANIFEST
from tests.streams import removing_process
from tests.streams.builders import event
from tests.streams.disks import FastDisk, FaultyDisk
from tests.streams.opened import collect
from tests.streams.removals import BACKENDS, Remove, faults, forget, open_log, prune, prune_most
from tests.streams.retention_contract import check_chains, fill
from tests.streams.sizes import size

KILLS = size("REMOVING_KILLS", 5)


async def check_images(images: Path, backend: Backend, before: list[Record], after: list[Record]) -> int:
    """Each image opens as if nothing had begun, or as if all were done, and goes on; returns how many there are."""
    seen = set()
    for image in sorted(images.iterdir()):
        reader = LogReader(image)
        read = await collect(reader.read_all())
        await reader.close()
        # What a reader sees meanwhile is between the two, but never less than what stays.
        assert [r.position for r in after] == [r.position for r in read if r.position in {r.position for r in after}]
        log = await open_log(image, backend)
        found = await collect(log.read_all())
        assert found in (before, after), image.name
        seen.add(len(found) == len(after) and found == after)
        for record in before:
            answer = (await log.append([record.event]))[0]
            assert answer.duplicate and answer[1:4] == record[1:4]
        assert (await log.append([event("more", stream="ses_0")]))[0].position == len(before)
        await check_chains(log)
        assert len(list(image.glob("log/*.new"))) == 0
        await log.close()
        assert await faults(image) == []
    assert seen == {False, True}, "some images are of before, some of after"
    return len(list(images.iterdir()))


class ImagingDisk(FastDisk):
    """Copies the store before each operation, and in the middle of each write."""

    def __init__(self, store: Path, images: Path) -> None:
        self.store, self.images, self.count, self.is_on = store, images, 0, False

    def image(self) -> None:
        if self.is_on:
            shutil.copytree(self.store, self.images / f"{self.count:04}")
            self.count += 1

    def write(self, fd: int, data: bytes) -> None:
        self.image()
        super().write(fd, data[: len(data) // 2])
        self.image()
        super().write(fd, data[len(data) // 2 :])

    def sync(self, fd: int) -> None:
        self.image()

    def rewrite(self, fd: int, data: bytes) -> None:
        self.image()
        super().rewrite(fd, data)

    def create(self, path: Path) -> int:
        self.image()
        return super().create(path)

    def replace(self, temporary: Path, path: Path) -> None:
        self.image()
        super().replace(temporary, path)

    def unlink(self, path: Path) -> None:
        self.image()
        super().unlink(path)


class TestCutOff:
    @pytest.mark.parametrize("remove", [prune, forget])
    async def test_jsonl_is_right_after_a_kill_before_any_disk_operation(self, tmp_path: Path, remove: Remove) -> None:
        (images := tmp_path / "images").mkdir()
        disk = ImagingDisk(tmp_path / "store", images)
        log = await open_log(tmp_path / "store", disk=disk)
        before = await fill(log)
        disk.is_on = True
        await remove(log)
        disk.image()
        after = await collect(log.read_all())
        await log.close()
        assert await check_images(images, "jsonl", before, after) > 20

    @pytest.mark.parametrize("remove", [prune, forget])
    async def test_sqlite_is_right_after_a_kill_between_any_two_transactions(
        self, tmp_path: Path, remove: Remove, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (images := tmp_path / "images").mkdir()
        log = await open_log(tmp_path / "store", "sqlite")
        before = await fill(log)
        transact = sqlite_removal.SqliteRemover._transact
        count = 0

        def imaged(self: Any, work: Any) -> Any:
            nonlocal count
            for name in ("before", "after"):
                if name == "after":
                    result = transact(self, work)
                shutil.copytree(tmp_path / "store", images / f"{count:04}-{name}")
            count += 1
            return result

        monkeypatch.setattr(sqlite_removal.SqliteRemover, "_transact", imaged)
        monkeypatch.setattr("streams.stores.sqlite_removed.CHUNK", 2)
        await remove(log)
        after = await collect(log.read_all())
        await log.close()
        monkeypatch.setattr(sqlite_removal.SqliteRemover, "_transact", transact)
        assert await check_images(images, "sqlite", before, after) > 8

    @pytest.mark.parametrize(
        ("method", "remove"),
        [*((m, r) for m in ("create", "write", "sync", "replace") for r in (prune, forget)), ("unlink", prune_most)],
    )
    async def test_after_a_disk_error_the_log_goes_on_and_the_next_try_ends_it(
        self, tmp_path: Path, method: str, remove: Remove
    ) -> None:
        for nth in range(1, 40):
            store = tmp_path / str(nth)
            disk = FaultyDisk()
            log = await open_log(store, disk=disk)
            before = await fill(log, 12)
            disk.calls.clear()
            disk.faults[method, nth] = 28
            try:
                await remove(log)
            except StoreUnavailable as error:
                assert "No space left" in str(error) and "try again" in str(error)
            if not disk.failed:
                await log.close()
                break
            record = (await log.append([event("meanwhile", stream="ses_0")]))[0]
            assert record.position == 12
            await remove(log)
            await check_chains(log)
            for known in before:
                assert (await log.append([known.event]))[0][1:4] == known[1:4]
            found = await collect(log.read_all())
            await log.close()
            assert await faults(store) == []
            log = await open_log(store)
            assert await collect(log.read_all()) == found
            await log.close()
        assert nth > 1


# Writers are forked from a clean process that has imported everything once.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.streams.removing_process"])


@pytest.mark.parametrize("backend", BACKENDS)
async def test_killed_while_removing_nothing_is_lost_and_nothing_comes_back(tmp_path: Path, backend: Backend) -> None:
    random = Random(5)
    journal: list[Any] = []
    for run in range(KILLS):
        journal += await asyncio.to_thread(
            _run_and_kill, tmp_path, backend, run, random.randrange(2, 6), random.randrange(12)
        )
        log = await open_log(tmp_path, backend)
        gone = await log.removed()
        kept = {record.position: record for record in await collect(log.read_all())}
        await check_chains(log)
        for what, *told in journal:
            if what == "append":
                stream, key, text, position, offset, hash_ = told
                if offset >= gone.get(stream, Gone()).first_offset:
                    assert (kept[position].offset, kept[position].hash) == (offset, hash_)
                    is_forgotten = offset < gone.get(stream, Gone()).forgotten_to
                    assert is_digest(kept[position].event.payload) is is_forgotten
                else:
                    assert position not in kept
                answer = (await log.append([event(key, stream=stream, payload={"text": text})]))[0]
                assert answer.duplicate and (answer.position, answer.hash) == (position, hash_)
            elif what == "prune":
                assert gone[told[0]].first_offset >= told[1]
            else:
                assert gone[told[0]].forgotten_to >= told[1]
        await log.close()
        assert await faults(tmp_path) == []
    assert {entry[0] for entry in journal} == {"append", "prune", "forget"}


def _run_and_kill(store: Path, backend: Backend, run: int, removals: int, more: int) -> list[Any]:
    """What a process told before it was killed: after so many removals, and as many acks more."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=removing_process.run, args=(store, backend, run, theirs))
    process.start()
    theirs.close()
    journal: list[Any] = []
    try:
        while (removals > 0 or more > 0) and ours.poll(30):
            journal.append(json.loads(ours.recv_bytes()))
            if removals > 0:
                removals -= journal[-1][0] != "append"
            else:
                more -= 1
    finally:
        process.kill()
    with suppress(EOFError):
        while True:
            journal.append(json.loads(ours.recv_bytes()))
    process.join(30)
    ours.close()
    return journal


class RenamingDisk(FastDisk):
    """Renames the manifest, and then says that it failed: its name may not be durable."""

    fails = True

    def replace(self, temporary: Path, path: Path) -> None:
        super().replace(temporary, path)
        if path.name == MANIFEST and self.fails:
            self.fails = False
            raise OSError(5, "Input/output error")


@pytest.mark.parametrize("remove", [prune, forget])
async def test_a_manifest_that_took_its_name_counts_though_the_disk_said_no(tmp_path: Path, remove: Remove) -> None:
    """Every reader goes by it, so the writer must not go on with what it said before."""
    log = await open_log(tmp_path, disk=RenamingDisk())
    before = await fill(log)
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        await remove(log)
    reader = LogReader(tmp_path)
    assert await log.removed() == await reader.removed() != {}
    for name in ("ses_0", "ses_1", "ses_2"):
        assert [r.offset for r in await collect(log.read(name))] == [r.offset for r in await collect(reader.read(name))]
    for record in before:
        assert (await log.append([record.event]))[0].duplicate
    await remove(log)
    await check_chains(log)
    await log.close()
    assert await faults(tmp_path) == []
