"""The log in its directory: the contract on both backends, and across a migration."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.errors import MissingLog
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.migrate import Migration
from streams.log.reader import LogReader
from streams.log.repair import RepairRun, examine
from streams.log.repair_plan import decide
from streams.log.verify import Verification
from streams.store import Snapshot, StreamStore
from streams.stores.directory import Backend, read_manifest
from streams.stores.journal import mover
from tests.streams.builders import event, events
from tests.streams.opened import collect
from tests.streams.retention_contract import RetentionContract
from tests.streams.store_contract import StoreContract


class TestLogOnJsonl(StoreContract, RetentionContract):
    backend: Backend = "jsonl"

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "store"

    async def open_store(self) -> StreamStore:
        return await Log.open(self.directory, seeded_identity(1), backend=self.backend, segment_bytes=900)


class TestLogOnSqlite(TestLogOnJsonl):
    backend: Backend = "sqlite"


class TestLogOnJournal(TestLogOnJsonl):
    backend: Backend = "journal"


class TestLogOnJournalThatMovesAtOnce(TestLogOnJournal):
    @pytest.fixture(autouse=True)
    def _no_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mover, "PAUSE_SECONDS", 0.0)


class TestLogOnJournalThatNeverMoves(TestLogOnJournal):
    @pytest.fixture(autouse=True)
    def _long_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mover, "PAUSE_SECONDS", 1e6)


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
class TestDirectory:
    async def test_a_new_directory_gets_the_backend_asked_for_and_keeps_it(
        self, tmp_path: Path, backend: Backend
    ) -> None:
        log = await Log.open(tmp_path / "store", seeded_identity(1), backend=backend)
        await log.append(events(3))
        await log.close()
        manifest = read_manifest(tmp_path / "store")
        assert manifest is not None and manifest.backend == backend and manifest.kept is None
        again = await Log.open(tmp_path / "store", seeded_identity(2), backend="jsonl")
        assert (again.backend, again.head) == (backend, 2)
        await again.close()
        assert LogReader(tmp_path / "store").head == 2

    async def test_records_without_a_manifest_are_refused(self, tmp_path: Path, backend: Backend) -> None:
        log = await Log.open(tmp_path, seeded_identity(1), backend=backend)
        await log.append([event("a")])
        await log.close()
        (tmp_path / "store.json").unlink()
        with pytest.raises(MissingLog, match="repair"):
            await Log.open(tmp_path, seeded_identity(1), backend=backend)


async def test_a_reader_follows_the_log_to_its_new_place(tmp_path: Path) -> None:
    reader = LogReader(tmp_path)
    assert reader.head == -1 and await collect(reader.read_all()) == []
    log = await Log.open(tmp_path, seeded_identity(1))
    await log.append(events(5))
    assert len(await collect(reader.read_all())) == 5
    await Migration(log, "sqlite").run()
    await log.append(events(2, prefix="later-"))
    assert await collect(reader.read_all()) == await collect(log.read_all())
    assert reader.head == 6
    await log.close()
    await reader.close()


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
async def test_hints_of_records_that_were_lost_never_speak_of_others(tmp_path: Path, backend: Backend) -> None:
    """For example after a deleted WAL or a restored older copy: the new records are not those they read."""
    log = await Log.open(tmp_path, seeded_identity(1), backend=backend)
    await log.append(events(3))
    await log.advance("mirror", 1)
    await log.put_snapshot("capture", Snapshot(1, 5, b"{}"))
    await log.close()
    for _ in range(2):
        log = await Log.open(tmp_path, seeded_identity(1))
        assert [(lost.after, lost.until) for lost in log.lost] == [(2, 5)]
        await log.append(events(4, prefix="other"))
        assert await log.cursor("mirror") == 1 and await log.snapshot("capture", 1) is None
        await log.close()
        found = [finding async for finding in Verification(tmp_path).run()]
        assert [(f.kind, f.position) for f in found] == [("missing", 3)] and "records 3 to 5 were" in found[0].reason
    (item,) = decide(await examine(tmp_path), log_id="new")
    await RepairRun(tmp_path).carry_out(item)
    assert [finding async for finding in Verification(tmp_path).run()] == []
