"""Pruning and forgetting on disk: cut off at every step, damaged, beside other processes, moved, and searched for."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from streams.errors import BadStore, CorruptLog, StoreUnavailable
from streams.hashing import is_digest
from streams.identity import seeded_identity
from streams.log import Log, LogReader
from streams.migrate import Migration, discard_kept
from streams.query import Filter
from streams.retention import Forgotten, Gone, Mark, Pruned, Ranges, Removal
from streams.store import Record, Snapshot
from streams.stores import sqlite_removal
from streams.stores.directory import Backend, Manifest, write_manifest
from streams.stores.disk import Disk
from streams.stores.removed_files import MANIFEST
from streams.stores.segments import list_segments
from streams.stores.sqlite_files import STEPS, connect_to_write
from streams.stores.sqlite_search import SearchIndex
from streams.verify import Verification
from tests.streams import removing_process
from tests.streams.builders import event
from tests.streams.disks import FastDisk, FaultyDisk
from tests.streams.other_process import start
from tests.streams.retention_contract import NOW, check_chains, fill, records_of
from tests.streams.sizes import size

SEGMENT_BYTES = 1500
BACKENDS: list[Backend] = ["jsonl", "sqlite"]
KILLS = size("REMOVING_KILLS", 5)

Remove = Callable[[Log], Any]


async def open_log(store: Path, backend: Backend = "jsonl", disk: Disk | None = None) -> Log:
    return await Log.open(
        store, seeded_identity(1), backend=backend, disk=disk or FastDisk(), segment_bytes=SEGMENT_BYTES
    )


async def faults(store: Path) -> list[str]:
    return [str(finding) async for finding in Verification(store).run()]


async def prune(log: Log) -> Pruned:
    return await log.prune({"ses_0": 4, "ses_1": 99}, at_ms=NOW)


async def prune_most(log: Log) -> Pruned:
    return await log.prune({"ses_0": 99, "ses_1": 99, "ses_2": 3}, at_ms=NOW)


async def forget(log: Log) -> Forgotten:
    return await log.forget(["ses_0", "ses_2"], at_ms=NOW)


async def check_images(images: Path, backend: Backend, before: list[Record], after: list[Record]) -> int:
    """Each image opens as if nothing had begun, or as if all were done, and goes on; returns how many there are."""
    seen = set()
    for image in sorted(images.iterdir()):
        reader = LogReader(image)
        read = await records_of(reader.read_all())
        await reader.close()
        # What a reader sees meanwhile is between the two, but never less than what stays.
        assert [r.position for r in after] == [r.position for r in read if r.position in {r.position for r in after}]
        log = await open_log(image, backend)
        found = await records_of(log.read_all())
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
        after = await records_of(log.read_all())
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
        after = await records_of(log.read_all())
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
            found = await records_of(log.read_all())
            await log.close()
            assert await faults(store) == []
            log = await open_log(store)
            assert await records_of(log.read_all()) == found
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
        kept = {record.position: record for record in await records_of(log.read_all())}
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


class TestForgottenBytes:
    @pytest.mark.parametrize("backend", BACKENDS)
    async def test_no_file_of_the_store_holds_them(self, tmp_path: Path, backend: Backend) -> None:
        """Log, write-ahead file, search index, snapshots, what recovery set aside, the copy of an unfinished move."""
        log = await open_log(tmp_path, backend)
        marker = "MARKER-of-what-is-to-be-forgotten"
        for n in range(30):
            payload = {"text": f"{marker} {n} " + "y" * (n * 40)}
            await log.append([event(f"f{n}", stream=f"ses_{n % 2}", payload=payload if n % 2 else {"text": "kept"})])
        await log.put_snapshot("capture", Snapshot(1, 4, marker.encode()))
        (tmp_path / "torn").mkdir(exist_ok=True)
        (tmp_path / "torn" / "x.bin").write_bytes(b'{"payload":"' + marker.encode())
        (tmp_path / "repaired" / "1").mkdir(parents=True, exist_ok=True)
        (tmp_path / "repaired" / "1" / "log.db").write_bytes(marker.encode())
        other: Backend = "jsonl" if backend == "sqlite" else "sqlite"
        moving = Migration(log, other)
        with pytest.raises(RuntimeError, match="stop here"):
            moving.report = lambda progress: _stop_at(progress.phase)
            await moving.run()
        if backend == "sqlite":
            index = SearchIndex(tmp_path)
            index.advance(100)
            assert len(await records_of(log.query(Filter(text=marker)))) == 15
        assert _holders(tmp_path, marker)
        assert (await log.forget(["ses_1"], at_ms=NOW)).records == 15
        assert _holders(tmp_path, marker) == []
        assert await records_of(log.query(Filter(text=marker))) == []
        if backend == "sqlite":
            assert index.advance(100) == 30, "it begins anew"
            assert await records_of(log.query(Filter(text=marker))) == []
            index.close()
            assert _holders(tmp_path, marker) == []
        assert _holders(tmp_path, "kept")
        await log.close()
        assert await faults(tmp_path) == []

    @pytest.mark.parametrize("backend", BACKENDS)
    async def test_pruned_events_are_in_no_file_of_the_log_and_its_room_comes_back(
        self, tmp_path: Path, backend: Backend
    ) -> None:
        log = await open_log(tmp_path, backend)
        for n in range(40):
            await log.append(
                [event(f"p{n}", stream=f"ses_{n % 2}", payload={"text": f"MARKER{n % 2} " + "z" * 20_000})]
            )
        before = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        await log.prune({"ses_0": 20}, at_ms=NOW)
        after = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        assert _holders(tmp_path, "MARKER0") == [] and _holders(tmp_path, "MARKER1")
        assert after < before - 19 * 20_000
        await log.close()

    async def test_a_kept_store_must_be_discarded_first(self, tmp_path: Path) -> None:
        log = await open_log(tmp_path)
        await fill(log)
        await Migration(log, "sqlite").run()
        with pytest.raises(StoreUnavailable, match=r"nothing was forgotten; run .* --discard-old"):
            await log.forget(["ses_0"], at_ms=NOW)
        discard_kept(tmp_path)
        log.reread_manifest()
        assert (await log.forget(["ses_0"], at_ms=NOW)).records == 7
        assert _holders(tmp_path, "secret-k0-") == [] and _holders(tmp_path, "secret-k1-")
        await log.close()


def _stop_at(phase: str) -> None:
    if phase == "switching":
        raise RuntimeError("stop here")


def _holders(store: Path, text: str) -> list[str]:
    """Files that hold a text, found by their bytes."""
    return [str(path) for path in store.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


class TestMoving:
    @pytest.mark.parametrize(("start_", "to"), [("jsonl", "sqlite"), ("sqlite", "jsonl")])
    async def test_a_move_takes_all_that_was_lost_along(self, tmp_path: Path, start_: Backend, to: Backend) -> None:
        log = await open_log(tmp_path, start_)
        before = await fill(log, 60)
        await log.prune({"ses_0": 3, "ses_1": 99}, at_ms=NOW)
        await log.prune({"ses_0": 7}, at_ms=NOW + 1)
        await log.forget(["ses_2", "ses_0"], at_ms=NOW + 2)
        kept, gone, sizes = await records_of(log.read_all()), await log.removed(), await log.sizes()
        for backend in (to, start_):
            await Migration(log, backend).run()
            assert (log.backend, log.head) == (backend, 59)
            assert await records_of(log.read_all()) == kept
            assert (await log.removed(), await log.sizes()) == (gone, sizes)
            for record in before:
                answer = (await log.append([record.event]))[0]
                assert answer.duplicate and answer[1:4] == record[1:4]
            await log.close()
            assert await faults(tmp_path) == []
            log = await open_log(tmp_path)
        record = (await log.append([event("on", stream="ses_1")], expected={"ses_1": 20}))[0]
        assert (record.position, record.offset) == (60, 20)
        await log.close()
        assert await faults(tmp_path) == []

    @pytest.mark.parametrize(("start_", "to"), [("jsonl", "sqlite"), ("sqlite", "jsonl")])
    async def test_a_log_that_was_wholly_pruned_moves(self, tmp_path: Path, start_: Backend, to: Backend) -> None:
        log = await open_log(tmp_path, start_)
        await fill(log)
        await log.prune({f"ses_{n}": 99 for n in range(3)}, at_ms=NOW)
        await Migration(log, to).run()
        assert log.head == 19 and (await log.append([event("on", stream="ses_0")]))[0][1:3] == (7, 20)
        await Migration(log, start_).run()
        await log.close()
        assert await faults(tmp_path) == []

    @pytest.mark.parametrize(("start_", "to"), [("jsonl", "sqlite"), ("sqlite", "jsonl")])
    async def test_a_rollback_does_not_bring_back_what_was_pruned_since(
        self, tmp_path: Path, start_: Backend, to: Backend
    ) -> None:
        log = await open_log(tmp_path, start_)
        await fill(log)
        await Migration(log, to).run()
        await prune(log)
        kept = await records_of(log.read_all())
        await Migration(log, start_).run()
        assert await records_of(log.read_all()) == kept
        await log.close()
        assert await faults(tmp_path) == []

    async def test_a_move_that_was_cut_off_goes_on_over_holes(self, tmp_path: Path) -> None:
        log = await open_log(tmp_path)
        await fill(log, 400)
        await log.prune({"ses_0": 100, "ses_2": 1}, at_ms=NOW)
        for to in ("sqlite", "jsonl"):
            copied: list[int] = []
            moving = Migration(log, to)

            def report(progress: Any, copied: list[int] = copied) -> None:
                copied.append(progress.copied)
                if progress.copied > 150:
                    raise RuntimeError("stop here")

            moving.report = report
            with pytest.raises(RuntimeError), pytest.MonkeyPatch.context() as patch:
                patch.setattr("streams.migrate.CHUNK", 64)
                patch.setattr("streams.stores.sqlite_reader.MAX_BATCH", 8)
                await moving.run()
            again: list[int] = []
            await Migration(log, to, lambda progress, again=again: again.append(progress.copied)).run()
            assert log.backend == to and copied[-1] < 400
            await check_chains(log)
            discard_kept(tmp_path)
        await log.close()
        assert await faults(tmp_path) == []

    async def test_nothing_is_removed_while_the_log_moves(self, tmp_path: Path) -> None:
        log = await open_log(tmp_path)
        await fill(log)
        async with log.moving():
            with pytest.raises(StoreUnavailable, match="being moved to another backend, so nothing was removed"):
                await prune(log)
            with pytest.raises(StoreUnavailable, match="being moved"):
                await forget(log)
        moves = asyncio.gather(prune(log), Migration(log, "sqlite").run(), return_exceptions=True)
        async with asyncio.timeout(30):
            await moves
        assert log.backend == "sqlite"
        await check_chains(log)
        await log.close()
        assert await faults(tmp_path) == []


async def test_a_sqlite_log_of_an_older_version_is_read_verified_and_pruned(tmp_path: Path) -> None:
    """Its file has neither the tables nor free pages to give back."""
    connection = connect_to_write(tmp_path / "log.db", STEPS[:1])
    connection.execute("PRAGMA auto_vacuum = NONE")
    connection.execute("VACUUM")
    connection.close()
    write_manifest(tmp_path, Manifest("sqlite", "01HF7YAT0072TECMQ49PKZ57H0"))
    reader = LogReader(tmp_path)
    assert reader.head == -1 and await records_of(reader.read_all()) == [] and await reader.removed() == {}
    assert await faults(tmp_path) == []
    log = await open_log(tmp_path)
    before = await fill(log, 200)
    size = (tmp_path / "log.db").stat().st_size
    await log.prune({"ses_0": 50, "ses_1": 50, "ses_2": 50}, at_ms=NOW)
    assert await records_of(reader.read_all()) == [r for r in before if r.offset >= 50]
    full = (tmp_path / "log.db").stat().st_size
    await fill(log, 100, "again-")
    await log.close()
    assert (tmp_path / "log.db").stat().st_size <= full + size // 10, "what was free is written again"
    assert await faults(tmp_path) == []
    await reader.close()


class TestDamage:
    @pytest.fixture
    async def store(self, tmp_path: Path) -> Path:
        log = await open_log(tmp_path)
        await fill(log)
        await prune(log)
        await log.forget(["ses_2"], at_ms=NOW)
        await log.close()
        return tmp_path

    async def refused(self, store: Path) -> str:
        with pytest.raises(BadStore) as opening:
            await open_log(store)
        assert await faults(store) != []
        return str(opening.value)

    async def test_every_damaged_byte_of_the_manifest_is_told(self, store: Path) -> None:
        path = store / "log" / MANIFEST
        sound = path.read_bytes()
        for at in range(0, len(sound), 7):
            path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
            assert str(path) in await self.refused(store)
            with pytest.raises(CorruptLog):
                await records_of(LogReader(store).read_all())
        for cut in (0, 1, len(sound) // 2, len(sound) - 1):
            path.write_bytes(sound[:cut])
            assert str(path) in await self.refused(store)

    async def test_a_missing_manifest_is_told(self, store: Path) -> None:
        (store / "log" / MANIFEST).unlink()
        assert "missing" in await self.refused(store) or "must follow" in await self.refused(store)
        with pytest.raises(CorruptLog):
            await records_of(LogReader(store).read_all())

    async def test_damaged_and_missing_digests_are_told(self, store: Path) -> None:
        (path,) = (store / "log").glob("removed-*.keys")
        sound = path.read_bytes()
        for damaged in (sound[:-1], sound[:40] + b"x" + sound[41:], b"", None):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            assert "digests of pruned records" in await self.refused(store)

    async def test_a_missing_record_among_pruned_ones_is_still_told(self, store: Path) -> None:
        for segment in list_segments(store / "log"):
            lines = segment.path.read_bytes().splitlines(keepends=True)
            for n in range(len(lines)):
                segment.path.write_bytes(b"".join(lines[:n] + lines[n + 1 :]))
                await self.refused(store)
                with pytest.raises(CorruptLog):
                    await records_of(LogReader(store).read_all())
            segment.path.write_bytes(b"".join(lines))
        assert await faults(store) == []

    async def test_a_pruned_record_or_payload_that_is_there_all_the_same_is_told(self, tmp_path: Path) -> None:
        log = await open_log(tmp_path / "a")
        await fill(log)
        shutil.copytree(tmp_path / "a" / "log", tmp_path / "before")
        await prune(log)
        await log.forget(["ses_2"], at_ms=NOW)
        await log.close()
        for path in (tmp_path / "before").iterdir():
            shutil.copy(path, tmp_path / "a" / "log")
        found = await faults(tmp_path / "a")
        assert any("it was pruned and is there all the same" in fault for fault in found)
        assert any("its payload was forgotten and is there all the same" in fault for fault in found)

    async def test_pruned_records_beyond_the_end_are_told(self, tmp_path: Path) -> None:
        """As when an older copy of the segments is put beside a newer manifest."""
        log = await open_log(tmp_path)
        await fill(log)
        await log.prune({"ses_1": 99}, at_ms=NOW)
        await log.close()
        for segment in list_segments(tmp_path / "log")[1:]:
            segment.path.unlink()
        (tmp_path / "head").unlink()
        assert "not all of them pruned" in await self.refused(tmp_path)


class TestBesideOthers:
    async def test_a_reader_in_another_process_sees_what_is_kept_at_any_moment(self, tmp_path: Path) -> None:
        log = await open_log(tmp_path)
        before = {record.position: record.hash for record in await fill(log, 300)}
        process = await start("read", tmp_path)
        try:
            assert process.stdin is not None and process.stdout is not None
            async with asyncio.timeout(60):
                for step in range(1, 16):
                    removing = asyncio.gather(
                        log.prune({"ses_0": step * 5, "ses_1": step * 3}, at_ms=NOW), log.forget(["ses_2"], at_ms=NOW)
                    )
                    process.stdin.write(b"read\n")
                    seen = json.loads(await process.stdout.readline())
                    await removing
                    assert (seen["error"], seen["head"]) == (None, 299)
                    read = dict(seen["records"])
                    assert len(read) == len(seen["records"]) and sorted(read) == list(read)
                    assert all(before[position] == hash_ for position, hash_ in read.items())
                    assert {r.position async for r in log.read_all()} <= set(read)
        finally:
            process.kill()
            await process.communicate()
            await log.close()

    @pytest.mark.parametrize("backend", BACKENDS)
    async def test_verify_beside_removals_tells_nothing(self, tmp_path: Path, backend: Backend) -> None:
        log = await open_log(tmp_path, backend)
        await fill(log, 200)
        stop = asyncio.Event()

        async def remove() -> None:
            for step in range(1, 30):
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
        assert (verification.summary.pruned, verification.summary.head) == (58 + 29, 228)
        assert verification.summary.forgotten == 66 + 28

    async def test_a_head_file_lost_after_all_was_pruned(self, tmp_path: Path) -> None:
        log = await open_log(tmp_path)
        await fill(log)
        await log.prune({f"ses_{n}": 99 for n in range(3)}, at_ms=NOW)
        await log.close()
        (tmp_path / "head").unlink()
        assert LogReader(tmp_path).head == 19
        log = await open_log(tmp_path)
        assert (await log.append([event("on")]))[0].position == 20
        await log.close()

    async def test_many_prunes_leave_few_files(self, tmp_path: Path) -> None:
        log = await open_log(tmp_path)
        await fill(log, 90)
        for step in range(1, 30):
            await log.prune({"ses_0": step}, at_ms=NOW)
        assert len(list((tmp_path / "log").glob("removed-*.keys"))) <= 6
        assert await log.find("test:k0") is None
        for n in range(0, 87, 3):
            given = event(f"k{n}", stream="ses_0", payload={"text": f"secret-k{n}-" + "x" * n})
            assert (await log.append([given]))[0].duplicate
        await log.close()


def test_ranges_merge_and_count() -> None:
    random = Random(1)
    for _ in range(200):
        positions = {random.randrange(40) for _ in range(random.randrange(30))}
        ranges = Ranges()
        for part in (sorted(positions)[::2], sorted(positions)[1::2]):
            ranges = ranges.including(part)
        assert {p for first, end in ranges.pairs() for p in range(first, end)} == positions
        assert ranges.count == len(positions) and bool(ranges) is bool(positions)
        assert ranges == Ranges(random.sample(ranges.pairs(), len(ranges.pairs())))
        assert all(b > a for (_, a), (b, _) in zip(ranges.pairs(), ranges.pairs()[1:], strict=False))
        for first in range(42):
            assert ranges.holds(first) is (first in positions)
            assert ranges.following(first) == next(p for p in range(first, 99) if p not in positions)
            for end in range(42):
                lost = set(range(first, end)) - positions
                assert ranges.covers(first, end) is (first <= end and not lost)
                assert ranges.kept(first, end) == len(lost)


def test_a_removal_says_what_is_gone() -> None:
    removal = Removal(marks={"ses_b": Mark(4, 9)})
    assert removal.gone() == {"ses_b": Gone(0, None, 4, 9)} and removal and not Removal()
    assert [removal.is_forgotten("ses_b", n) for n in (3, 4)] == [True, False]
