"""A migration that fails (damage, a difference, a full disk) changes nothing and leaves nothing behind."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from zlib import crc32

import pytest

from streams.errors import CorruptLog, StoreUnavailable
from streams.event import StreamEvent
from streams.log.migrate import Migration, MigrationFailed
from streams.stores.directory import Manifest, write_manifest
from streams.stores.sqlite.rows import Row, stored_row
from streams.stores.stored import Stored
from tests.streams.builders import event
from tests.streams.moves import files_of, fill, open_log, plain
from tests.streams.opened import collect


async def test_damage_is_not_moved(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    await fill(log, 30)
    segment = sorted((tmp_path / "log").iterdir())[1]
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(bytes(data))
    before = files_of(tmp_path)
    with pytest.raises(CorruptLog, match=r"wrong checksum"):
        await Migration(log, "sqlite").run()
    assert log.backend == "jsonl" and files_of(tmp_path) == before, "nothing of the copy is left"
    assert (await log.append([event("it continues")]))[0].position == log.head
    await log.close()


TAMPERED = {
    "a payload": [
        """UPDATE records SET event = CAST(replace(event, '"n":"k6-', '"n":"k9-') AS BLOB) WHERE position = 15""",
        "UPDATE records SET crc = checksum(event) WHERE position = 15",
    ],
    "the order in a stream": [
        "UPDATE records SET offset = 1000 WHERE position = 15",
        "UPDATE records SET offset = 2 WHERE offset = 3 AND stream = (SELECT stream FROM records WHERE position = 15)",
        "UPDATE records SET offset = 3 WHERE offset = 1000",
    ],
}


"""Record 15 is changed by somebody who knows the format: everything but the chain is right."""


@pytest.mark.parametrize("what", TAMPERED)
async def test_what_was_tampered_with_is_not_moved(tmp_path: Path, what: str) -> None:
    log = await open_log(tmp_path, "sqlite")
    written = await fill(log, 30)
    assert (written[15].offset, written[15].event.idempotency_key[:8]) == (2, "test:k6-")
    await log.close()
    connection = sqlite3.connect(tmp_path / "log.db")
    connection.create_function("checksum", 1, crc32)
    for statement in TAMPERED[what]:
        assert connection.execute(statement).rowcount == 1
    connection.commit()
    connection.close()
    log = await open_log(tmp_path)
    with pytest.raises(MigrationFailed, match="does not continue its stream's hash chain, so the log was not migrated"):
        await Migration(log, "jsonl").run()
    assert log.backend == "sqlite" and log.head == written[-1].position
    await log.close()


async def test_a_copy_that_does_not_hold_what_was_written_to_it_is_not_switched_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a failing disk: the log is read correctly, but the copy returns another record."""
    log = await open_log(tmp_path)
    written = await fill(log, 10)

    def row(record: Stored, event: StreamEvent, stream: int) -> Row:
        last = record.position == written[-1].position
        made = stored_row(record._replace(hash=bytes(32)) if last else record, event, stream)
        return made

    monkeypatch.setattr("streams.stores.sqlite.store.stored_row", row)
    with pytest.raises(MigrationFailed):
        await Migration(log, "sqlite").run()
    assert log.backend == "jsonl"
    await log.append([event("it continues")])
    await log.close()


async def test_a_full_disk_ends_the_migration_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await open_log(tmp_path)
    first = await fill(log, 30)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("streams.stores.sqlite.store.SqliteStore._copy", full)
        before = files_of(tmp_path)
        with pytest.raises(StoreUnavailable, match=r"No space left.*free .* MiB.*run the same command again"):
            await Migration(log, "sqlite").run()
        assert files_of(tmp_path) == before, "the copy takes no space from the records any more"
    assert log.backend == "jsonl"
    await Migration(log, "sqlite").run()
    assert plain(await collect(log.read_all())) == plain(first)
    await log.close()


async def test_a_pointer_that_was_renamed_and_not_synced_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log(tmp_path)
    await fill(log, 30)
    failing = iter([True])

    def renamed(store: Path, manifest: Manifest) -> None:
        write_manifest(store, manifest)
        if next(failing, False):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("streams.log.log.write_manifest", renamed)
    with pytest.raises(OSError, match="Input/output error"):
        await Migration(log, "sqlite").run()
    [record] = await log.append([event("it continues")])
    await log.close()
    log = await open_log(tmp_path)
    assert log.backend == "jsonl" and log.head == record.position, "what was acknowledged since is there"
    await log.close()
