"""Pruning and forgetting on disk: what is left of the bytes, beside other processes, and in a log that moves."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streams.errors import StoreUnavailable
from streams.log_reader import LogReader
from streams.migrate import Migration, MigrationFailed, discard_kept
from streams.query import Filter
from streams.store import Snapshot
from streams.stores import sqlite_removed
from streams.stores.directory import Backend, Manifest, write_manifest
from streams.stores.sqlite_files import STEPS, connect_to_write
from streams.stores.sqlite_search import SearchIndex
from streams.verify import Verification
from tests.streams.builders import event
from tests.streams.opened import collect
from tests.streams.other_process import start
from tests.streams.removals import BACKENDS, faults, forget, open_log, prune
from tests.streams.retention_contract import NOW, check_chains, fill


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
            assert len(await collect(log.query(Filter(text=marker)))) == 15
        assert _holders(tmp_path, marker)
        assert (await log.forget(["ses_1"], at_ms=NOW)).records == 15
        assert _holders(tmp_path, marker) == []
        assert await collect(log.query(Filter(text=marker))) == []
        if backend == "sqlite":
            assert index.advance(100) == 30, "it begins anew"
            assert await collect(log.query(Filter(text=marker))) == []
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
        await discard_kept(tmp_path)
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
        kept, gone, sizes = await collect(log.read_all()), await log.removed(), await log.sizes()
        for backend in (to, start_):
            await Migration(log, backend).run()
            assert (log.backend, log.head) == (backend, 59)
            assert await collect(log.read_all()) == kept
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
        kept = await collect(log.read_all())
        await Migration(log, start_).run()
        assert await collect(log.read_all()) == kept
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
            await discard_kept(tmp_path)
        await log.close()
        assert await faults(tmp_path) == []

    @pytest.mark.parametrize(("start_", "to"), [("jsonl", "sqlite"), ("sqlite", "jsonl")])
    async def test_what_a_forget_that_was_cut_off_left_is_not_copied(
        self, tmp_path: Path, start_: Backend, to: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is listed as forgotten and its payloads are still there: the move forgets them before it copies."""
        log = await open_log(tmp_path, start_)
        await fill(log)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("streams.stores.jsonl_removal.JsonlRemover._apply", full)
            patch.setattr("streams.stores.sqlite_removal.SqliteRemover._digests", full)
            with pytest.raises(StoreUnavailable, match="could not be forgotten as a whole"):
                await log.forget(["ses_0"], at_ms=NOW)
        assert _holders(tmp_path, "secret-k0-")
        copied: list[str] = []

        def look(progress: Any) -> None:
            if progress.phase != "opening":
                copied.extend(_holders(tmp_path, "secret-k0-"))

        await Migration(log, to, look).run()
        assert copied == [] and _holders(tmp_path, "secret-k0-") == [] and _holders(tmp_path, "secret-k1-")
        await log.close()
        assert await faults(tmp_path) == []

    @pytest.mark.parametrize("what", ["digests of pruned records", "what was forgotten"])
    async def test_a_copy_that_does_not_know_all_that_was_removed_is_not_switched_to(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        """A late resend would be recorded anew, or a payload that is only a digest be taken for damage."""
        log = await open_log(tmp_path)
        await fill(log)
        await log.prune({"ses_0": 3}, at_ms=NOW)
        await log.forget(["ses_1"], at_ms=NOW)
        adopt, adopt_entries = sqlite_removed.adopt, sqlite_removed.adopt_entries
        if what == "what was forgotten":
            patched = "streams.stores.sqlite.adopt"
            monkeypatch.setattr(patched, lambda connection, removal: adopt(connection, replace(removal, marks={})))
        else:
            patched = "streams.stores.sqlite.adopt_entries"
            monkeypatch.setattr(patched, lambda connection, packed: adopt_entries(connection, packed[:-1]))
        with pytest.raises(MigrationFailed, match="does not know of the same pruned and forgotten records"):
            await Migration(log, "sqlite").run()
        assert log.backend == "jsonl"
        await log.append([event("it goes on")])
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

    @pytest.mark.parametrize(("start_", "to"), [("jsonl", "sqlite"), ("sqlite", "jsonl")])
    @pytest.mark.parametrize("phase", ["opening", "copying", "switching"])
    async def test_in_each_phase_of_a_move_nothing_is_removed(
        self, tmp_path: Path, start_: Backend, to: Backend, phase: str
    ) -> None:
        log = await open_log(tmp_path, start_)
        before = await fill(log)
        removing: list[asyncio.Task[Any]] = []

        def begin(progress: Any) -> None:
            if progress.phase == phase and not removing:
                removing.extend([asyncio.ensure_future(prune(log)), asyncio.ensure_future(forget(log))])

        moving = Migration(log, to, begin)
        # So that there is something to copy before the switch, too.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("streams.migrate.CLOSE_ENOUGH", 0)
            await moving.run()
        assert len(removing) == 2
        for outcome in await asyncio.gather(*removing, return_exceptions=True):
            assert isinstance(outcome, StoreUnavailable) and "being moved" in str(outcome)
        assert await collect(log.read_all()) == before and log.backend == to
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
    assert reader.head == -1 and await collect(reader.read_all()) == [] and await reader.removed() == {}
    assert await faults(tmp_path) == []
    log = await open_log(tmp_path)
    before = await fill(log, 200)
    size = (tmp_path / "log.db").stat().st_size
    await log.prune({"ses_0": 50, "ses_1": 50, "ses_2": 50}, at_ms=NOW)
    assert await collect(reader.read_all()) == [r for r in before if r.offset >= 50]
    full = (tmp_path / "log.db").stat().st_size
    await fill(log, 100, "again-")
    await log.close()
    assert (tmp_path / "log.db").stat().st_size <= full + size // 10, "what was free is written again"
    assert await faults(tmp_path) == []
    await reader.close()


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
