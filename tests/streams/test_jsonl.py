"""The jsonl backend: the contract, with small segments too, and with those compressed as soon as they are closed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.store import Record, StreamStore
from streams.stores.jsonl import JsonlStore
from tests.streams.builders import events
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
