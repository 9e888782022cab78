"""A jsonl store and other processes: one writer, and readers that see exactly what is durable."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streams.errors import ForeignStore, StoreLocked
from streams.identity import seeded_identity
from streams.query import Filter
from streams.stores.directory import is_being_written
from streams.stores.jsonl.reader import JsonlReader
from streams.stores.jsonl.store import JsonlStore
from tests.streams.builders import event, events
from tests.streams.disks import GatedDisk
from tests.streams.opened import collect
from tests.streams.other_process import start

LIMIT_S = 60


async def open_store(store: Path, **more: Any) -> JsonlStore:
    return await JsonlStore.open(store, seeded_identity(1), **more)


@asynccontextmanager
async def running(mode: str, store: Path) -> AsyncIterator[Process]:
    process = await start(mode, store)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ask(reader: Process) -> tuple[int, list[list[Any]], str | None]:
    """The head, the records as [position, hash], and the error that ended the read."""
    assert reader.stdin is not None and reader.stdout is not None
    reader.stdin.write(b"read\n")
    seen = json.loads(await reader.stdout.readline())
    return seen["head"], seen["records"], seen["error"]


async def durable(log: JsonlStore) -> tuple[int, list[list[Any]], str | None]:
    records = [[r.position, r.hash] async for r in log.read_all()]
    return log.head, records, None


class TestReaderBesideAWriter:
    async def test_it_sees_exactly_what_is_durable(self, tmp_path: Path) -> None:
        disk = GatedDisk(is_open=True)
        log = await open_store(tmp_path, disk=disk, segment_bytes=1500)
        async with running("read", tmp_path) as reader:
            assert await ask(reader) == (-1, [], None)
            for number in range(12):
                await log.append(events(1 + number % 3, prefix=f"b{number}-"))
                assert await ask(reader) == await durable(log)
            assert len(list((tmp_path / "log").iterdir())) > 3, "the log rolled meanwhile"

            before = await durable(log)
            disk.gate.clear()
            disk.entered.clear()
            slow = asyncio.ensure_future(log.append(events(3, prefix="slow")))
            await asyncio.to_thread(disk.entered.wait, LIMIT_S)
            assert await ask(reader) == before, "what is written but not synced is not there yet"
            disk.gate.set()
            await slow
            assert await ask(reader) == await durable(log) != before
        await log.close()

    async def test_it_repairs_nothing(self, tmp_path: Path) -> None:
        log = await open_store(tmp_path)
        await log.append(events(4))
        expected = await durable(log)
        await log.close()
        segment = next((tmp_path / "log").iterdir())
        with segment.open("ab") as file:
            file.write(b'{"crc":"a torn tail')
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        async with running("read", tmp_path) as reader:
            assert await ask(reader) == expected
            (tmp_path / "head").unlink()
            assert await ask(reader) == expected, "without a head file the last whole batch ends the log"
            del before[tmp_path / "head"]
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before

    async def test_it_outlives_the_writer_and_meets_the_next_one(self, tmp_path: Path) -> None:
        async with running("read", tmp_path) as reader:
            for boot in range(3):
                log = await open_store(tmp_path)
                await log.append(events(2, prefix=f"boot{boot}-"))
                expected = await durable(log)
                await log.close()
                assert await ask(reader) == expected

    async def test_a_directory_that_is_not_there_reads_as_empty(self, tmp_path: Path) -> None:
        async with running("read", tmp_path / "nothing") as reader:
            assert await ask(reader) == (-1, [], None)
        assert not (tmp_path / "nothing").exists(), "a reader makes no directory"

    async def test_it_finds_as_the_store_does(self, tmp_path: Path) -> None:
        """Scans search for a key's text in the line; keys that JSON escapes must be found, too."""
        log = await open_store(tmp_path, segment_bytes=2000)
        keys = ["plain", 'a"b', "back\\slash", "é✓", "[1]", "a/b", "😀", "{}"]
        await log.append([event(key, stream=f"ses_{n % 2}") for n, key in enumerate(keys)])
        reader = JsonlReader(tmp_path)
        for key in keys:
            found = await reader.find(f"test:{key}")
            assert found is not None and found == await log.find(f"test:{key}")
            assert await reader.find_event(found.event.id) == found
        for unknown in ("test:", "test:nobody", "", "\ud800", "test:pla"):
            assert await reader.find(unknown) is None and await log.find(unknown) is None
            assert await reader.find_event(unknown) is None
        for wanted in (Filter(streams=["ses_1"]), Filter(streams=["ses_1", "ses_0"]), Filter(streams=["never"])):
            assert await collect(reader.query(wanted)) == await collect(log.query(wanted))
        for after in (-5, -1, 0, 3, 6, 7, 99):
            assert await collect(reader.read_all(after=after)) == await collect(log.read_all(after=after))
        for offset in (-2, 0, 2, 3, 4, 9):
            read = await collect(reader.read("ses_0", from_offset=offset))
            assert read == await collect(log.read("ses_0", from_offset=offset))
        await log.close()


class TestSingleWriter:
    async def test_a_second_writer_in_this_process_is_refused(self, tmp_path: Path) -> None:
        log = await open_store(tmp_path)
        with pytest.raises(StoreLocked, match=rf"process {os.getpid()};.*durable-stream stop"):
            await open_store(tmp_path)
        assert (await log.append([event("a")]))[0].position == 0, "the first one does not notice"
        await log.close()
        again = await open_store(tmp_path)
        assert again.head == 0
        await again.close()

    async def test_a_second_writer_is_refused_while_another_process_writes(self, tmp_path: Path) -> None:
        async with running("hold", tmp_path) as holder:
            assert holder.stdout is not None and await holder.stdout.readline() == b"ready\n"
            assert is_being_written(tmp_path)
            with pytest.raises(StoreLocked, match=f"process {holder.pid};"):
                await open_store(tmp_path)
            holder.send_signal(signal.SIGKILL)
            await holder.wait()
            assert (tmp_path / "lock").read_text() == f"{holder.pid}\n", "a stale lock file stays"
            log = await open_store(tmp_path)
            assert (await log.append([event("a")]))[0].position == 0
            await log.close()

    async def test_a_refused_opening_changes_nothing(self, tmp_path: Path) -> None:
        log = await open_store(tmp_path)
        await log.append([event("a")])
        with next((tmp_path / "log").iterdir()).open("ab") as file:
            file.write(b"what the writer is about to finish")
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(StoreLocked):
            await open_store(tmp_path)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        await log.close()

    async def test_a_failed_opening_gives_the_lock_back(self, tmp_path: Path) -> None:
        log = await open_store(tmp_path)
        await log.close()
        manifest = (tmp_path / "store.json").read_bytes()
        (tmp_path / "store.json").write_bytes(b"[]")
        with pytest.raises(ForeignStore):
            await open_store(tmp_path)
        assert not is_being_written(tmp_path)
        (tmp_path / "store.json").write_bytes(manifest)
        await (await open_store(tmp_path)).close()

    async def test_a_reader_that_looks_at_the_lock_does_not_keep_a_writer_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """``verify`` briefly holds a shared lock to see whether somebody writes."""
        await (await open_store(tmp_path)).close()
        held = os.open(tmp_path / "lock", os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_SH)
        waits: list[float] = []

        def let_go(seconds: float) -> None:
            waits.append(seconds)
            fcntl.flock(held, fcntl.LOCK_UN)

        monkeypatch.setattr("streams.locks.time.sleep", let_go)
        await (await open_store(tmp_path)).close()
        assert len(waits) == 1
        os.close(held)
