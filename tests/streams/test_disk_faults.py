"""Disks that fail or fill, under both backends and the whole log.

First at the seam of ``calls.py``: the N-th call of a kind fails. Then real faults, in a separate process: a limit on
file sizes and on open files. ``tests/sidecar`` has disks that are full or read-only.

After a fault nothing more is acknowledged, the error says what to do, and acknowledged records stay: readable at once,
and after the next opening without the fault, which then continues.
"""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import resource
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from streams.errors import StoreFailed, StreamError
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.store import Record
from streams.stores.directory import Backend
from tests.streams.builders import event
from tests.streams.calls import Call, ShortWrite, watching
from tests.streams.opened import collect, faults

BATCHES = 40
MANY = 4000
"""More than fits."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.streams.test_disk_faults"])
BOTH = pytest.mark.parametrize("backend", ["jsonl", "sqlite"])


def batch(number: int) -> list[StreamEvent]:
    identity = seeded_identity(number)
    payload = {"n": number, "text": "x" * 3000}
    return [
        event(f"{number}-{n}", stream=f"ses_{n}", identity=identity, payload=payload) for n in range(1 + number % 3)
    ]


async def open_log(store: Path, backend: Backend) -> Log:
    return await Log.open(store, seeded_identity(1), backend=backend, segment_bytes=20_000)


async def append_until_it_fails(log: Log, most: int, first: int = 0) -> tuple[list[Record], StreamError | None]:
    """Return the acknowledged records and the error; every later append must fail in the same way."""
    acked: list[Record] = []
    for number in range(first, most):
        try:
            acked += await log.append(batch(number))
        except StreamError as error:
            for late in range(number, number + 3):
                with pytest.raises(StoreFailed):
                    await log.append(batch(late))
            return acked, error
    return acked, None


async def check_reopened(store: Path, backend: Backend, acked: list[Record], most: int) -> None:
    """Check that acknowledged records, and perhaps the batch in progress, are there once, and the log continues."""
    log = await open_log(store, backend)
    try:
        left = await collect(log.read_all())
        assert left[: len(acked)] == acked
        more = [record.event for record in left[len(acked) :]]
        following = next(n for n in range(most + 1) if sum(len(batch(before)) for before in range(n)) == len(acked))
        assert more in ([], batch(following)), "nothing but the whole batch that was in progress"
        for number in range(following + 5):
            await log.append(batch(number))
        keys = [record.event.idempotency_key for record in await collect(log.read_all())]
        assert keys == [each.idempotency_key for number in range(following + 5) for each in batch(number)]
    finally:
        await log.close()
    assert await faults(store) == []


FAULTS = [
    *(("write", errno.EIO, None, nth) for nth in (1, 9)),
    *(("write", errno.ENOSPC, short, nth) for short, nth in [(None, 2), (0, 30), (100, 9), (100, 30)]),
    *(("sync", errno.EIO, None, nth) for nth in (1, 2, 9, 30)),
    *(("create", errno.ENOSPC, None, nth) for nth in (1, 2)),
    *(("sync directory", errno.EIO, None, nth) for nth in (1, 2)),
]
"""Kind of call, error, how much a failing write still writes, and its how manieth call after opening."""


@BOTH
@pytest.mark.parametrize(("kind", "code", "short", "nth"), FAULTS)
async def test_after_an_error_nothing_is_acknowledged(
    tmp_path: Path, backend: Backend, kind: str, code: int, short: int | None, nth: int
) -> None:
    if backend == "sqlite" and kind in ("create", "sync directory"):
        return  # all its files are there
    calls = failed = 0
    is_open = False

    def fail(call: Call) -> None:
        nonlocal calls, failed
        if not is_open or call.kind != kind:
            return
        calls += 1
        if calls == nth:
            failed += 1
            raise OSError(code, os.strerror(code)) if short is None else ShortWrite(code, min(short, len(call.data)))

    store = tmp_path / "store"
    with watching(tmp_path, fail):
        log = await open_log(store, backend)
        is_open = True
        acked, error = await append_until_it_fails(log, BATCHES)
        assert failed == 1, "a failed call is not repeated"
        assert isinstance(error, StoreFailed)
        assert os.strerror(code) in str(error) and "start the sidecar again" in str(error)
        assert (await collect(log.read_all()))[: len(acked)] == acked, "what was acknowledged stays readable"
        await log.close()
    await check_reopened(store, backend, acked, BATCHES)


# Real faults, in a process of its own


def _fill(store: Path, backend: Backend, limits: dict[int, int], told: Connection) -> None:
    """Append under the limits until it fails; report the error and the acknowledged hashes."""
    told.send(asyncio.run(_filled(store, backend, limits)))


async def _filled(store: Path, backend: Backend, limits: dict[int, int]) -> tuple[str, list[str]]:
    log = await open_log(store, backend)
    acked = await log.append(batch(0))
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))
    more, error = await append_until_it_fails(log, MANY, first=1)
    acked += more
    assert isinstance(error, StoreFailed), error
    await log.close()
    return str(error), [record.hash for record in acked]


async def _records(store: Path) -> list[Record]:
    reader = LogReader(store)
    try:
        return await collect(reader.read_all())
    finally:
        await reader.close()


async def fill(store: Path, backend: Backend, limits: dict[int, int]) -> tuple[str, list[Record]]:
    """Let another process append until it fails; return its error and acks, as a reader then sees them."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_fill, args=(store, backend, limits, theirs))
    process.start()
    theirs.close()
    assert await asyncio.to_thread(ours.poll, 60), "the process hangs"
    try:
        error, hashes = ours.recv()
    except EOFError:
        raise AssertionError("the process that was to fill the disk ended") from None
    process.join(60)
    seen = await _records(store)
    assert [record.hash for record in seen][: len(hashes)] == hashes
    return error, seen[: len(hashes)]


@BOTH
async def test_files_may_not_grow(tmp_path: Path, backend: Backend) -> None:
    """``RLIMIT_FSIZE``: one write is cut short, and the next fails with EFBIG."""
    limit = 17_777 if backend == "jsonl" else 300_000
    error, acked = await fill(tmp_path, backend, {resource.RLIMIT_FSIZE: limit})
    assert "has stopped" in error and "start the sidecar again" in error and acked
    await check_reopened(tmp_path, backend, acked, MANY)


async def test_no_file_can_be_opened(tmp_path: Path) -> None:
    """``RLIMIT_NOFILE``: a new segment needs a file; SQLite keeps its files open."""
    error, acked = await fill(tmp_path, "jsonl", {resource.RLIMIT_NOFILE: 3})
    assert os.strerror(errno.EMFILE) in error and acked
    await check_reopened(tmp_path, "jsonl", acked, MANY)
