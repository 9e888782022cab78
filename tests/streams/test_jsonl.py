"""The jsonl backend: the contract, with small segments too."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.identity import seeded_identity
from streams.store import StreamStore
from streams.stores.jsonl import JsonlStore
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
