"""A writer that lost its lock file writes nothing more, whatever happened meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streams.errors import StoreFenced, StoreLocked
from streams.identity import system_identity
from streams.log.log import Log
from streams.log.migrate import Migration
from streams.stores.directory import LOCK, MANIFEST, Backend, is_being_written
from tests.streams.builders import event
from tests.streams.opened import collect, faults


@pytest.fixture(params=["jsonl", "sqlite"])
def backend(request: pytest.FixtureRequest) -> Backend:
    chosen: Backend = request.param
    return chosen


@pytest.fixture
async def log(tmp_path: Path, backend: Backend) -> AsyncIterator[Log]:
    """A log with one record."""
    log = await Log.open(tmp_path / "store", system_identity(), backend=backend)
    await log.append([event("before")])
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
    return {str(path): path.read_bytes() for path in store.rglob("*") if path.is_file() and path.name != LOCK}


async def keys(store: Path) -> list[str]:
    assert await faults(store) == []
    log = await Log.open(store, system_identity())
    found = [record.event.idempotency_key for record in await collect(log.read_all())]
    await log.close()
    return found


@pytest.mark.parametrize("replaced", [False, True])
async def test_without_its_lock_file_it_writes_nothing(log: Log, replaced: bool) -> None:
    lock = log.store / LOCK
    lock.unlink()
    if replaced:
        lock.touch()
    before = files(log.store)
    for name in ("a", "b"):
        with pytest.raises(StoreFenced):
            await log.append([event(name)])
    assert files(log.store) == before
    await log.close()
    assert await keys(log.store) == [event("before").idempotency_key]


async def test_a_deleted_lock_file_lets_no_second_writer_in(log: Log) -> None:
    (log.store / LOCK).unlink()
    assert is_being_written(log.store)
    with pytest.raises(StoreLocked):
        await Log.open(log.store, system_identity())


@pytest.mark.usefixtures("no_directory_locks")
async def test_after_another_took_over_it_neither_writes_nor_cuts(log: Log) -> None:
    (log.store / LOCK).unlink()
    second = await Log.open(log.store, system_identity())
    await second.append([event("second")])
    with pytest.raises(StoreFenced):
        await log.append([event("first")])
    await second.append([event("third")])
    await log.close()
    await second.append([event("fourth")])
    await second.close()
    assert await keys(log.store) == [event(name).idempotency_key for name in ("before", "second", "third", "fourth")]


async def test_a_move_that_lost_the_lock_does_not_switch(log: Log, backend: Backend) -> None:
    manifest = (log.store / MANIFEST).read_bytes()

    def lose(progress: Any) -> None:
        if progress.phase == "switching":
            (log.store / LOCK).unlink(missing_ok=True)

    with pytest.raises(StoreFenced):
        await Migration(log, "sqlite" if backend == "jsonl" else "jsonl", lose).run()
    assert (log.store / MANIFEST).read_bytes() == manifest
