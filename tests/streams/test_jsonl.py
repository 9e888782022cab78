"""The jsonl backend: the contract, with small segments too, and with those compressed as soon as they are closed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log import Log
from streams.log_reader import LogReader
from streams.store import Record, StreamStore
from streams.stores.disk import open_to_read
from streams.stores.jsonl import JsonlStore
from tests.streams.builders import events
from tests.streams.opened import collect
from tests.streams.store_contract import StoreContract


class TestJsonlStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "store"

    async def open_store(self) -> StreamStore:
        return await JsonlStore.open(self.directory, seeded_identity(1))


class TestJsonlStoreInManySegments(TestJsonlStore):
    async def open_store(self) -> StreamStore:
        return await JsonlStore.open(self.directory, seeded_identity(1), segment_bytes=900)


class CompressingStore(JsonlStore):
    """Compresses what an append closes before the next one."""

    async def append(self, events: Sequence[StreamEvent], **options: Any) -> list[Record]:
        try:
            return await super().append(events, **options)
        finally:
            while await self.compress() is not None:
                pass


class TestCompressedJsonlStore(TestJsonlStore):
    async def open_store(self) -> StreamStore:
        return await CompressingStore.open(self.directory, seeded_identity(1), segment_bytes=900)

    async def test_it_does_compress(self) -> None:
        store = await CompressingStore.open(self.directory, seeded_identity(1), segment_bytes=900)
        for number in range(6):
            await store.append(events(2, prefix=f"{number}-"))
        found = store.file_sizes()
        assert found.compressed == found.files - 1 > 1
        await store.close()


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

    monkeypatch.setattr("streams.stores.jsonl_reader.open_to_read", slow)
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
