"""A slow disk and group commit, at the ``Disk`` seam. ``test_disk_faults.py``: disks that fail."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from streams.errors import StoreFailed
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.store import Record
from streams.stores.commit import MAX_COMMIT_BYTES
from streams.stores.disk import Disk
from tests.streams.builders import event
from tests.streams.disks import GatedDisk
from tests.streams.opened import collect


async def open_store(store: Path, disk: Disk | None = None) -> Log:
    return await Log.open(store, seeded_identity(1), disk=disk)


class TestFailingDisk:
    async def test_an_unexpected_error_stops_the_writer_too(self, tmp_path: Path) -> None:
        class Broken(Disk):
            def write(self, fd: int, data: bytes) -> None:
                raise ZeroDivisionError

        log = await open_store(tmp_path, Broken())
        for _ in range(2):
            with pytest.raises(StoreFailed, match="ZeroDivisionError"):
                await log.append([event("a")])
        await log.close()

    def test_short_writes_of_the_system_are_completed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
        path = tmp_path / "file"
        fd = Disk().create(path)
        Disk().write(fd, bytes(range(100)))
        os.close(fd)
        assert path.read_bytes() == bytes(range(100))
        assert path.stat().st_mode & 0o777 == 0o600

    def test_a_deleted_file_does_not_come_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """After a power loss it would contain forgotten text again."""
        path, synced = tmp_path / "old", list[tuple[int, bool]]()
        path.write_bytes(b"pruned")
        monkeypatch.setattr(os, "fsync", lambda fd: synced.append((os.fstat(fd).st_ino, path.exists())))
        Disk().unlink(path)
        assert synced == [(tmp_path.stat().st_ino, False)]


async def _waiting(disk: GatedDisk) -> None:
    """Wait until a sync has begun."""
    assert await asyncio.to_thread(disk.entered.wait, 30)


async def _submitted(tasks: Sequence[asyncio.Future[list[Record]]]) -> None:
    """Wait until the writer has each append: an append first waits when it is queued."""
    assert tasks
    for _ in range(3):
        await asyncio.sleep(0)


class TestGroupCommit:
    async def test_what_arrives_during_a_sync_forms_the_one_next_commit(self, tmp_path: Path) -> None:
        disk = GatedDisk()
        log = await open_store(tmp_path, disk)
        async with asyncio.timeout(30):
            first = asyncio.ensure_future(log.append([event("first")]))
            await _waiting(disk)
            others = [asyncio.ensure_future(log.append([event(f"k{n}")])) for n in range(64)]
            await _submitted(others)
            disk.gate.set()
            await asyncio.gather(first, *others)
        assert disk.syncs == 2
        assert [data.count(b"\n") for data in disk.writes] == [1, 64]
        await log.close()

    async def test_a_slow_sync_stops_no_reader_and_acknowledges_nothing_early(self, tmp_path: Path) -> None:
        disk = GatedDisk(is_open=True)
        log = await open_store(tmp_path, disk)
        await log.append([event("before")])
        disk.gate.clear()
        disk.entered.clear()
        async with asyncio.timeout(30):
            slow = asyncio.ensure_future(log.append([event("slow")]))
            await _waiting(disk)
            # The lines are in the file, and yet nobody sees them: they are not durable.
            assert b"test:slow" in next((tmp_path / "journal").glob("*.jsonl")).read_bytes()
            for reader in (log, LogReader(tmp_path)):
                assert [r.event.idempotency_key for r in await collect(reader.read_all())] == ["test:before"]
                assert [r.offset for r in await collect(reader.read("ses_a"))] == [0]
                assert await reader.find("test:slow") is None
                assert reader.head == 0
            assert not slow.done()
            disk.gate.set()
            assert (await slow)[0].position == 1
        assert log.head == 1
        await log.close()

    async def test_of_a_commit_that_fails_each_caller_is_told(self, tmp_path: Path) -> None:
        disk = GatedDisk()
        log = await open_store(tmp_path, disk)
        async with asyncio.timeout(30):
            tasks = [asyncio.ensure_future(log.append([event("first")]))]
            await _waiting(disk)
            tasks += [asyncio.ensure_future(log.append([event(f"k{n}")])) for n in range(9)]
            await _submitted(tasks)
            disk.fails = True
            disk.gate.set()
            errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, StoreFailed) for each in errors) and len({id(each) for each in errors}) == 10
        assert disk.syncs == 1 and log.head == -1, "a failed sync is not repeated"
        await log.close()

    async def test_a_key_of_the_commit_under_way_is_known_and_waits_for_it(self, tmp_path: Path) -> None:
        disk = GatedDisk()
        log = await open_store(tmp_path, disk)
        async with asyncio.timeout(30):
            first = asyncio.ensure_future(log.append([event("same")]))
            await _waiting(disk)
            second = asyncio.ensure_future(log.append([event("same")]))
            await _submitted([second])
            assert not second.done()
            disk.gate.set()
            assert not (await first)[0].duplicate and (await second)[0].duplicate
        await log.close()

    async def test_a_commit_keeps_to_its_size_and_a_larger_append_goes_alone(self, tmp_path: Path) -> None:
        disk = GatedDisk()
        log = await open_store(tmp_path, disk)
        sizes = [700_000] * 9 + [MAX_COMMIT_BYTES + 1] + [700_000] * 3
        async with asyncio.timeout(60):
            first = asyncio.ensure_future(log.append([event("first")]))
            await _waiting(disk)
            tasks = [
                asyncio.ensure_future(log.append([event(f"k{n}", payload={"text": "x" * length})]))
                for n, length in enumerate(sizes)
            ]
            await _submitted(tasks)
            disk.gate.set()
            answers = await asyncio.gather(first, *tasks)
        assert [records[0].position for records in answers] == list(range(len(sizes) + 1)), "in the order submitted"
        assert [data.count(b"\n") for data in disk.writes] == [1, 5, 4, 1, 3]
        assert all(len(data) <= MAX_COMMIT_BYTES for data in disk.writes if data.count(b"\n") > 1)
        await log.close()

    async def test_closing_finishes_what_was_submitted(self, tmp_path: Path) -> None:
        disk = GatedDisk()
        log = await open_store(tmp_path, disk)
        async with asyncio.timeout(30):
            tasks = [asyncio.ensure_future(log.append([event(f"k{n}")])) for n in range(20)]
            await _waiting(disk)
            closing = asyncio.ensure_future(log.close())
            await asyncio.sleep(0)
            assert not closing.done()
            disk.gate.set()
            assert [records[0].position for records in await asyncio.gather(*tasks)] == list(range(20))
            await closing
