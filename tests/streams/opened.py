"""The store for a contract's tests, and reading all of it; what a whole check of a store's directory finds.

A log's records are in its journal, in its database, or in both: ``held`` and ``put`` decide it for a test.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from streams.log.log import Log
from streams.log.verify import Verification
from streams.store import Record, StreamStore
from streams.stores.journal import mover

Place = Literal["journal", "database", "both"]
PLACES: list[Place] = ["journal", "database", "both"]


@contextmanager
def held() -> Iterator[None]:
    """Let the mover rest: records stay in the journal until ``put``, a removal or the end of the log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mover, "PAUSE_SECONDS", 1e6)
        yield


async def put(log: Log, place: Place) -> None:
    """Move the records of a log whose mover rests: all, the older half, or none."""
    if place == "journal":
        return
    until = log.head if place == "database" else log.head // 2
    while log._stored.head < until:
        records, _ = log.mover._next_records(log._stored.head + 1)
        some = [record for record in records if record.position <= until]
        while some[-1].batch_index + 1 != some[-1].batch_count:
            some.append(records[len(some)])
        await asyncio.to_thread(log._stored.move, some)
    await asyncio.to_thread(log._writer.drop, log._stored.head)


async def moved(log: Log) -> None:
    """Wait until the mover has moved everything."""
    async with asyncio.timeout(60):
        while log.waiting()["records"]:
            await asyncio.sleep(0.005)


def left_by_a_kill(store: Path, copy: Path) -> Path:
    """Copy an open log as a killed writer would leave it."""
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns("*-shm", "lock"))
    return copy


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
        raise NotImplementedError("a store's suite says how to open it")

    @pytest.fixture
    async def store(self) -> AsyncIterator[StreamStore]:
        store = await self.open_store()
        yield store
        await store.close()

    async def reopened(self, store: StreamStore) -> StreamStore:
        """The same history after a restart."""
        await store.close()
        return await self.open_store()
