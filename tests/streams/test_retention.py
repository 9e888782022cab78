"""Pruning and forgetting on disk: remaining bytes, other processes, and logs that move."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from streams.log.migrate import HoldsRemoved, Migration

from streams.errors import StoreUnavailable
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.query import Filter
from streams.store import Snapshot
from streams.stores.directory import Backend
from streams.stores.sqlite.search import SearchIndex
from tests.streams.builders import event
from tests.streams.opened import collect, faults
from tests.streams.removals import BACKENDS, Remove, forget, open_log, prune
from tests.streams.retention_contract import NOW, check_chains, fill


class TestForgottenBytes:
    @pytest.mark.parametrize("backend", BACKENDS)
    async def test_no_file_of_the_store_holds_them(self, tmp_path: Path, backend: Backend) -> None:
        """Log, write-ahead file, search index, snapshots, tails kept by recovery, the copy of an unfinished move."""
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
            assert index.advance(100) == 30, "it begins again"
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
        await log.prune({"ses_0": 20}, at_ms=NOW)
        after = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        assert _holders(tmp_path, "MARKER0") == [] and _holders(tmp_path, "MARKER1")
        assert after < 20 * 30_000
        await log.close()

    @pytest.mark.parametrize("remove", [prune, forget])
    async def test_a_jsonl_log_moves_to_sqlite_and_its_old_store_is_deleted(
        self, tmp_path: Path, remove: Remove
    ) -> None:
        log = await open_log(tmp_path, "jsonl")
        await fill(log)
        assert (await remove(log)).moved_from == "jsonl"
        assert (log.backend, log.manifest.kept) == ("sqlite", None)
        assert not (tmp_path / "log").exists() and not (tmp_path / "head").exists()
        assert (await remove(log)).moved_from is None
        await log.close()
        assert await faults(tmp_path) == []

    async def test_a_kept_store_is_deleted_before_anything_is_removed(self, tmp_path: Path) -> None:
        log = await open_log(tmp_path, "jsonl")
        await fill(log)
        await Migration(log, "sqlite").run()
        assert (await log.forget(["ses_0"], at_ms=NOW)).records == 7
        assert _holders(tmp_path, "secret-k0-") == [] and _holders(tmp_path, "secret-k1-")
        assert log.manifest.kept is None
        await log.close()


def _stop_at(phase: str) -> None:
    if phase == "switching":
        raise RuntimeError("stop here")


def _holders(store: Path, text: str) -> list[str]:
    """The files whose bytes contain a text."""
    return [str(path) for path in store.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


class TestMoving:
    @pytest.mark.parametrize("remove", [prune, forget])
    async def test_a_log_of_which_something_was_removed_stays_in_sqlite(self, tmp_path: Path, remove: Remove) -> None:
        log = await open_log(tmp_path, "sqlite")
        await fill(log)
        await remove(log)
        kept = await collect(log.read_all())
        with pytest.raises(HoldsRemoved):
            await Migration(log, "jsonl").run()
        assert log.backend == "sqlite" and await collect(log.read_all()) == kept
        assert sorted(path.name for path in tmp_path.iterdir() if path.name in ("log", "head")) == []
        await log.close()
        assert await faults(tmp_path) == []

    async def test_nothing_is_removed_while_the_log_moves(self, tmp_path: Path) -> None:
        log = await open_log(tmp_path)
        await fill(log)
        async with log.moving():
            with pytest.raises(StoreUnavailable, match="migrating to another backend, so nothing was removed"):
                await prune(log)
            with pytest.raises(StoreUnavailable, match="is migrating"):
                await forget(log)
        moves = asyncio.gather(prune(log), Migration(log, "sqlite").run(), return_exceptions=True)
        async with asyncio.timeout(30):
            await moves
        assert log.backend == "sqlite"
        await check_chains(log)
        await log.close()
        assert await faults(tmp_path) == []


class TestBesideOthers:
    async def test_a_reader_sees_what_is_kept_at_any_moment(self, tmp_path: Path) -> None:
        log = await open_log(tmp_path)
        before = {record.position: record.hash for record in await fill(log, 120)}
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
        log = await open_log(tmp_path, "sqlite")
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
