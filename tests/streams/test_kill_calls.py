"""``kill -9`` at every change to the disk: each write, sync, rename, unlink, truncation, new file.

A script of 200 operations (appends over several segments, cursors, snapshots, a torn tail, moves between the backends,
discarding the old one, pruning and forgetting on both) is played in a process that dies just before its
N-th change, or between two pages of it.
For a killed process a sync changes nothing, but the moments before and after it are tested like any other.

``TORTURE_KILL_CHUNKS`` = n tests every change, in n parts; otherwise one of each kind, and some in between.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIGKILL

import pytest

from streams.store import Record
from streams.stores.directory import Backend
from tests.streams.calls import Call, kill_at, watching
from tests.streams.script import play
from tests.streams.sizes import is_set, size
from tests.streams.survivors import check
from tests.torture.figures import note

CHUNKS = size("KILL_CHUNKS", 1)
LENGTH = 200 if is_set("KILL_CHUNKS") else 48
"""Operations of the script; the short one has all kinds of them too."""
BETWEEN = 4
HANG_S = 120
REMOVED = "removed"

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])


def _play_until_killed(home: Path, start: Backend, number: int, torn: bool, journal: Connection) -> None:
    """The process that is killed; it journals each acknowledged append before it continues."""

    def told(records: list[Record]) -> None:
        journal.send_bytes(json.dumps([record.hash for record in records]).encode())

    def removed() -> None:
        journal.send_bytes(json.dumps([REMOVED]).encode())

    with watching(home, kill_at(number, torn=torn)):
        asyncio.run(play(home / "store", start, told, LENGTH, removed=removed))


def _killed_at(home: Path, start: Backend, number: int, torn: bool) -> list[str]:
    """The acks before the process died: the hashes of records, and ``REMOVED`` for each removal."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_play_until_killed, args=(home, start, number, torn, theirs))
    process.start()
    theirs.close()
    acked: list[str] = []
    with suppress(EOFError):
        while ours.poll(HANG_S):
            acked += json.loads(ours.recv_bytes())
    process.join(HANG_S)
    # As in test_kill.py: another thread may have taken the exit code, never a normal end's.
    assert process.exitcode in (-SIGKILL, 255), f"it was to be killed at change {number}: {process.exitcode}"
    ours.close()
    return acked


def _changes(home: Path, start: Backend) -> list[Call]:
    calls: list[Call] = []
    home.mkdir()
    with watching(home, calls.append):
        asyncio.run(play(home / "store", start, lambda records: None, LENGTH))
    return calls


def _wanted(calls: Sequence[Call], chunk: int) -> list[int]:
    """The changes to die at, from 1."""
    if is_set("KILL_CHUNKS"):
        return list(range(1 + chunk, len(calls) + 1, CHUNKS))
    kinds: dict[tuple[str, ...], int] = {}
    for number, call in enumerate(calls, 1):
        # The last of each kind: the log holds something then.
        kinds[call.kind, call.by, "pointer" if "store.json" in call.path else ""] = number
    evenly = range(1, len(calls), len(calls) // BETWEEN)
    return sorted({*kinds.values(), *evenly})


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is one: a killed process's writes survive there, too."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("start", ["jsonl", "sqlite"])
async def test_killed_at_any_change_nothing_acknowledged_is_lost(place: Path, start: Backend, chunk: int) -> None:
    calls = await asyncio.to_thread(_changes, place / "counted", start)
    wanted = _wanted(calls, chunk)
    torn = 0
    for count, number in enumerate(wanted):
        home = place / str(number)
        home.mkdir()
        acked = await asyncio.to_thread(_killed_at, home, start, number, number % 2 == 0)
        removed = acked.count(REMOVED)
        _, was_torn = await check(
            home / "store", start, LENGTH, len(acked) - removed, removed, power_lost=False, again=count % 4 == 0
        )
        torn += was_torn
        shutil.rmtree(home)
    note(f"call-kills {start}", kills=len(wanted), of=len(calls), torn=torn, lost=0)
