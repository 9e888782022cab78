"""The store for a contract's tests, and reading all of it; what a whole check of a store's directory finds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streams.log.verify import Verification
from streams.store import Record, StreamStore


async def collect(records: AsyncIterator[Record]) -> list[Record]:
    return [record async for record in records]


async def faults(store: Path) -> list[str]:
    """Everything that verifying the store finds, in words; empty if the store is sound."""
    return [str(finding) async for finding in Verification(store).run()]


async def everything(store: StreamStore) -> list[dict[str, Any]]:
    return [record.as_json() for record in await collect(store.read_all())]


class Opened:
    """``open_store`` opens the same history each time it is called within one test."""

    async def open_store(self) -> StreamStore:
        raise NotImplementedError("a backend's suite says how to open it")

    @pytest.fixture
    async def store(self) -> AsyncIterator[StreamStore]:
        store = await self.open_store()
        yield store
        await store.close()

    async def reopened(self, store: StreamStore) -> StreamStore:
        """The same history after a restart."""
        await store.close()
        return await self.open_store()
