"""The jsonl backend: the contract, with small segments too."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.system.files import open_to_read
from tests.streams.builders import events
from tests.streams.opened import collect


async def test_a_reading_that_is_cancelled_while_it_opens_a_file_leaves_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await Log.open(tmp_path, seeded_identity(1))
    await log.append(events(3))
    await log.close()
    begun, go_on = threading.Event(), threading.Event()
    opened: list[int] = []

    def slow(path: str, flags: int = 0) -> int:
        opened.append(open_to_read(path, flags))
        begun.set()
        assert go_on.wait(30)
        return opened[-1]

    monkeypatch.setattr("streams.stores.journal.files.open_to_read", slow)
    reading = asyncio.create_task(collect(LogReader(tmp_path).read_all()))
    await asyncio.to_thread(begun.wait, 30)
    reading.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
