"""The log in its directory: the contract, wherever a record is, and the files next to the records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from streams.errors import CorruptLog, ForeignStore, MissingLog
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.store import StreamStore
from streams.stores.directory import read_manifest
from streams.stores.journal import mover
from tests.streams.builders import event, events
from tests.streams.opened import collect
from tests.streams.retention_contract import RetentionContract
from tests.streams.store_contract import StoreContract


class TestLog(StoreContract, RetentionContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "store"

    async def open_store(self) -> StreamStore:
        return await Log.open(self.directory, seeded_identity(1), segment_bytes=900)


class TestLogThatMovesAtOnce(TestLog):
    @pytest.fixture(autouse=True)
    def _no_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mover, "PAUSE_SECONDS", 0.0)


class TestLogThatNeverMoves(TestLog):
    @pytest.fixture(autouse=True)
    def _long_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mover, "PAUSE_SECONDS", 1e6)


async def test_a_directory_keeps_its_log_and_names_it(tmp_path: Path) -> None:
    log = await Log.open(tmp_path / "store", seeded_identity(1))
    await log.append(events(3))
    await log.close()
    manifest = read_manifest(tmp_path / "store")
    assert manifest is not None and manifest.log_id
    again = await Log.open(tmp_path / "store", seeded_identity(2))
    assert (again.manifest, again.head) == (manifest, 2)
    await again.close()
    assert LogReader(tmp_path / "store").head == 2


@pytest.mark.parametrize("moves", [True, False])
async def test_records_without_a_manifest_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    if not moves:
        monkeypatch.setattr(mover.Mover, "drain", lambda self, until: None)
        monkeypatch.setattr(mover, "PAUSE_SECONDS", 1e6)
    log = await Log.open(tmp_path, seeded_identity(1))
    await log.append([event("a")])
    await log.close()
    (tmp_path / "store.json").unlink()
    with pytest.raises(MissingLog):
        await Log.open(tmp_path, seeded_identity(1))


async def test_a_log_of_an_older_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text('{"format":2,"backend":"sqlite","log_id":"x"}')
    with pytest.raises(ForeignStore, match="import"):
        await Log.open(tmp_path, seeded_identity(1))


async def test_a_log_whose_end_was_cut_away_is_found_and_refused(tmp_path: Path) -> None:
    """For example after an older copy of the database was restored: the head file knows more."""
    log = await Log.open(tmp_path / "store", seeded_identity(1))
    await log.append(events(3))
    await log.close()
    shutil.copy(tmp_path / "store" / "log.db", tmp_path / "older")
    log = await Log.open(tmp_path / "store", seeded_identity(1))
    await log.append(events(3, prefix="more"))
    await log.advance("mirror", 5)
    await log.close()
    shutil.rmtree(tmp_path / "store" / "journal")
    shutil.copy(tmp_path / "older", tmp_path / "store" / "log.db")
    found = [finding async for finding in Verification(tmp_path / "store").run()]
    assert [(each.kind, each.position) for each in found] == [("missing", 3)]
    with pytest.raises(CorruptLog):
        await Log.open(tmp_path / "store", seeded_identity(1))


async def test_a_reader_of_a_directory_follows_a_log_that_begins_there(tmp_path: Path) -> None:
    reader = LogReader(tmp_path)
    assert reader.head == -1 and await collect(reader.read_all()) == []
    log = await Log.open(tmp_path, seeded_identity(1))
    await log.append(events(5))
    assert len(await collect(reader.read_all())) == 5
    await log.close()
    assert reader.head == 4 and len(await collect(reader.read_all())) == 5
    await reader.close()
