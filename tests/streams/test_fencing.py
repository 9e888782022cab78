"""A writer that lost its lock file writes nothing more, whatever happened meanwhile: neither in the journal nor in the
database."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streams.errors import StoreFenced, StoreLocked
from streams.identity import system_identity
from streams.log.log import Log
from streams.stores.directory import LOCK, is_being_written
from tests.streams.builders import event
from tests.streams.opened import PLACES, Place, collect, faults, held, put


@pytest.fixture(params=PLACES)
async def log(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Log]:
    """A log with two records, whose mover rests."""
    place: Place = request.param
    with held():
        log = await Log.open(tmp_path / "store", system_identity())
        for name in ("before", "also"):
            await log.append([event(name)])
        await put(log, place)
        yield log
        await log.close()


@pytest.fixture
def no_directory_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on file systems that cannot lock a directory, such as NFS."""
    real = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)


def files(store: Path) -> dict[str, bytes]:
    found = {str(path): path for path in store.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if path.name not in (LOCK, "log.db-shm")}


def in_journal(store: Path) -> dict[str, bytes]:
    """Without the database: whoever closes it last folds its write-ahead file into it."""
    return {name: data for name, data in files(store).items() if "log.db" not in name}


async def keys(store: Path) -> list[str]:
    assert await faults(store) == []
    log = await Log.open(store, system_identity())
    found = [record.event.idempotency_key for record in await collect(log.read_all())]
    await log.close()
    return found


def keys_of(*names: str) -> list[str]:
    return [event(name).idempotency_key for name in names]


@pytest.mark.parametrize("replaced", [False, True])
async def test_without_its_lock_file_it_neither_appends_nor_moves(log: Log, replaced: bool) -> None:
    lock = log.store / LOCK
    lock.unlink()
    if replaced:
        lock.touch()
    before = files(log.store)
    for name in ("a", "b"):
        with pytest.raises(StoreFenced):
            await log.append([event(name)])
    if log.waiting()["records"]:
        with pytest.raises(StoreFenced):
            await asyncio.to_thread(log.mover.drain, log.head)
    for removal in (log.prune({"ses_a": 1}, at_ms=1), log.forget(["ses_a"], at_ms=1)):
        with pytest.raises(StoreFenced):
            await removal
    assert files(log.store) == before
    await log.close()
    assert await keys(log.store) == keys_of("before", "also")


async def test_a_deleted_lock_file_lets_no_second_writer_in(log: Log) -> None:
    (log.store / LOCK).unlink()
    assert is_being_written(log.store)
    with pytest.raises(StoreLocked):
        await Log.open(log.store, system_identity())


@pytest.mark.usefixtures("no_directory_locks")
async def test_after_another_took_over_it_neither_writes_nor_cuts_nor_moves(log: Log) -> None:
    (log.store / LOCK).unlink()
    second = await Log.open(log.store, system_identity())
    await second.append([event("second")])
    with pytest.raises(StoreFenced):
        await log.append([event("first")])
    await second.append([event("third")])
    before = files(log.store)
    if log.waiting()["records"]:
        with pytest.raises(StoreFenced):
            await asyncio.to_thread(log.mover.drain, log.head)
    await log.close()
    assert files(log.store) == before
    await second.append([event("fourth")])
    await second.close()
    assert await keys(log.store) == keys_of("before", "also", "second", "third", "fourth")


@pytest.mark.usefixtures("no_directory_locks")
async def test_one_that_wakes_up_after_all_was_moved_by_another_changes_nothing(log: Log) -> None:
    (log.store / LOCK).unlink()
    second = await Log.open(log.store, system_identity())
    await second.append([event("second")])
    await put(second, "database")
    await second.close()
    before = in_journal(log.store)
    await log.close()
    assert in_journal(log.store) == before
    assert await keys(log.store) == keys_of("before", "also", "second")
