"""Disks that fail or fill, under the journal, under the database, and under both.

First at the seam of ``calls.py``: the N-th call of a kind fails. Then real faults, in a separate process: a limit on
file sizes and on open files. ``tests/sidecar`` has disks that are full or read-only.

After a fault of the journal nothing more is acknowledged, the error says what to do, and acknowledged records stay:
readable at once, and after the next opening without the fault, which then continues. A fault of the database lets the
journal grow, and recording goes on.
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
from streams.stores.journal import mover
from streams.stores.journal.segments import list_segments
from tests.streams.builders import event
from tests.streams.calls import Call, ShortWrite, watching
from tests.streams.derivers import Texts, are_right, caught_up
from tests.streams.opened import collect, faults, held, left_by_a_kill, moved

BATCHES = 40
MANY = 4000
"""More than fits."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.streams.test_disk_faults"])


def batch(number: int) -> list[StreamEvent]:
    identity = seeded_identity(number)
    payload = {"n": number, "text": "x" * 3000}
    return [
        event(f"{number}-{n}", stream=f"ses_{n}", identity=identity, payload=payload) for n in range(1 + number % 3)
    ]


async def open_log(store: Path) -> Log:
    return await Log.open(store, seeded_identity(1), segment_bytes=20_000, derived=Texts())


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


async def check_reopened(store: Path, acked: list[Record], most: int) -> None:
    """Check that acknowledged records, and perhaps the batch in progress, are there once, and the log continues."""
    log = await open_log(store)
    try:
        left = await collect(log.read_all())
        assert left[: len(acked)] == acked
        more = [record.event for record in left[len(acked) :]]
        following = next(n for n in range(most + 1) if sum(len(batch(before)) for before in range(n)) == len(acked))
        assert more in ([], batch(following)), "nothing but the whole batch that was in progress"
        for number in range(following + 5):
            await log.append(batch(number))
        await caught_up(log)
        assert await are_right(store) == log.head
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


@pytest.mark.parametrize(("kind", "code", "short", "nth"), FAULTS)
async def test_after_an_error_of_the_journal_nothing_is_acknowledged(
    tmp_path: Path, kind: str, code: int, short: int | None, nth: int
) -> None:
    calls = failed = 0
    is_open = False

    def fail(call: Call) -> None:
        nonlocal calls, failed
        if not is_open or call.kind != kind or call.by != "python":
            return
        calls += 1
        if calls == nth:
            failed += 1
            raise OSError(code, os.strerror(code)) if short is None else ShortWrite(code, min(short, len(call.data)))

    store = tmp_path / "store"
    with held(), watching(tmp_path, fail):
        log = await open_log(store)
        is_open = True
        acked, error = await append_until_it_fails(log, BATCHES)
        assert failed == 1, "a failed call is not repeated"
        assert isinstance(error, StoreFailed)
        assert os.strerror(code) in str(error) and "start the sidecar again" in str(error)
        assert (await collect(log.read_all()))[: len(acked)] == acked, "what was acknowledged stays readable"
        await log.close()
    await check_reopened(store, acked, BATCHES)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize(("kind", "by"), [("write", "sqlite"), ("sync", "sqlite"), ("unlink", "python")])
@pytest.mark.parametrize("ends", ["the disk is well again", "a kill", "a close"])
async def test_an_error_of_the_database_does_not_stop_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, by: str, code: int, ends: str
) -> None:
    monkeypatch.setattr(mover, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(mover, "FIRST_RETRY_SECONDS", 0.01)
    fails = True
    failed = 0

    def fail(call: Call) -> None:
        nonlocal failed
        if fails and (call.kind, call.by) == (kind, by):
            failed += 1
            raise OSError(code, os.strerror(code))

    store = tmp_path / "store"
    await (await open_log(store)).close()
    with watching(tmp_path, fail):
        log = await open_log(store)
        acked, error = await append_until_it_fails(log, BATCHES)
        assert error is None and await collect(log.read_all()) == acked
        async with asyncio.timeout(30):
            while not log.waiting()["fault"]:
                await asyncio.sleep(0.005)
        assert failed and log.waiting()["bytes"]
        assert [record.duplicate for record in await log.append(batch(3))] == [True]
        if ends == "a kill":
            store = left_by_a_kill(store, tmp_path / "killed")
        elif ends == "the disk is well again":
            fails = False
            await moved(log)
            async with asyncio.timeout(60):
                while log.waiting()["fault"] is not None:
                    await asyncio.sleep(0.005)
            assert log.waiting()["files"] == 1
            acked += await log.append(batch(BATCHES))
            assert await collect(log.read_all()) == acked
        await log.close()
    log = await open_log(store)
    assert await collect(log.read_all()) == acked
    await caught_up(log)
    assert await are_right(store) == log.head
    await log.close()
    assert await faults(store) == []
    assert len(list_segments(store / "journal")) == 1


async def test_a_full_disk_stops_recording_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the journal nor the database takes more."""
    monkeypatch.setattr(mover, "PAUSE_SECONDS", 0.0)
    left = 200_000

    def fill(call: Call) -> None:
        nonlocal left
        left -= len(call.data)
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = tmp_path / "store"
    await (await open_log(store)).close()
    with watching(tmp_path, fill):
        log = await open_log(store)
        acked, error = await append_until_it_fails(log, MANY)
        assert isinstance(error, StoreFailed) and acked
        await log.close()
    await check_reopened(store, acked, MANY)


# Real faults, in a process of its own


def _fill(store: Path, limits: dict[int, int], most: int, told: Connection) -> None:
    """Append under the limits until it fails; report the error and the acknowledged hashes."""
    told.send(asyncio.run(_filled(store, limits, most)))


async def _filled(store: Path, limits: dict[int, int], most: int) -> tuple[str, list[str]]:
    pytest.MonkeyPatch().setattr(mover, "PAUSE_SECONDS", 0.0)  # in a process of its own
    log = await open_log(store)
    acked = await log.append(batch(0))
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))
    more, error = await append_until_it_fails(log, most, first=1)
    acked += more
    assert isinstance(error, StoreFailed) is (most == MANY), error
    while error is None and (fault := log.waiting()["fault"]) is None:
        await asyncio.sleep(0.01)
    await log.close()
    return str(error or fault), [record.hash for record in acked]


async def _records(store: Path) -> list[Record]:
    reader = LogReader(store)
    try:
        return await collect(reader.read_all())
    finally:
        await reader.close()


async def fill(store: Path, limits: dict[int, int], most: int = MANY) -> tuple[str, list[Record]]:
    """Let another process append until it fails; return its error and acks, as a reader then sees them."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_fill, args=(store, limits, most, theirs))
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


async def test_files_may_not_grow(tmp_path: Path) -> None:
    """``RLIMIT_FSIZE``: one write is cut short, and the next fails with EFBIG."""
    error, acked = await fill(tmp_path, {resource.RLIMIT_FSIZE: 17_777})
    assert "has stopped" in error and "start the sidecar again" in error and acked
    await check_reopened(tmp_path, acked, MANY)


async def test_the_database_may_not_grow(tmp_path: Path) -> None:
    """``RLIMIT_FSIZE``, larger than a segment: only the files of the database reach it."""
    error, acked = await fill(tmp_path, {resource.RLIMIT_FSIZE: 250_000}, 300)
    assert "SQLite" in error or os.strerror(errno.ENOSPC) in error or os.strerror(errno.EIO) in error
    assert len(acked) > 500 and len(list_segments(tmp_path / "journal")) > 20
    await check_reopened(tmp_path, acked, 300)
    assert len(list_segments(tmp_path / "journal")) == 1


async def test_no_file_can_be_opened(tmp_path: Path) -> None:
    """``RLIMIT_NOFILE``: a new segment needs a file."""
    error, acked = await fill(tmp_path, {resource.RLIMIT_NOFILE: 3})
    assert os.strerror(errno.EMFILE) in error and acked
    await check_reopened(tmp_path, acked, MANY)
