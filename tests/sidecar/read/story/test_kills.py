"""The tables are right after any kill of the process that writes them. ``TORTURE_STORY_KILLS`` sets how often."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random

from sidecar.read.story.writing import StoryTables
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.sidecar.read.story.playing import content, everything, tables_of
from tests.streams.derivers import caught_up
from tests.streams.sizes import size

KILLS = size("STORY_KILLS", 5)


async def test_after_a_kill_the_tables_are_those_of_the_records(tmp_path: Path) -> None:
    records, random, store, killed = everything(), Random(KILLS), tmp_path / "0", 0
    while killed < KILLS:
        # A killed writer has said less than it has written, so the moment of its death is anywhere in its work.
        await asyncio.to_thread(_write, store, random.randrange(1, len(records) // 4))
        killed += 1
        log = await Log.open(store, seeded_identity(1), derived=StoryTables())
        head = log.head
        await caught_up(log)
        await log.close()
        with closing(sqlite3.connect(store / "log.db")) as db:
            assert content(db) == content(tables_of(records[: head + 1]))
        if head == len(records) - 1:
            store = tmp_path / f"{killed}"


def _write(store: Path, appends: int) -> None:
    """Let a process write, and kill it after some appends."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.sidecar.read.story.writer", str(store)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        for _ in range(appends):
            if not process.stdout.readline():
                break
        process.kill()
