"""Logs that migrate between backends, for the tests of migrations."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streams.identity import seeded_identity
from streams.log.log import Log
from streams.store import Record
from streams.stores.directory import Backend
from tests.streams.builders import event

BOTH = pytest.mark.parametrize(("start", "to"), [("jsonl", "sqlite"), ("sqlite", "jsonl")])


HANG_S = 60.0


async def open_log(store: Path, backend: Backend = "jsonl") -> Log:
    return await Log.open(store, seeded_identity(1), backend=backend, segment_bytes=4000)


AT_ONCE = 20


"""Batches that share a sync: still many segments, and a test does not wait for its disk a thousand times."""


async def fill(log: Log, count: int, prefix: str = "k") -> list[Record]:
    """Append ``count`` batches of one to four events, to five streams."""
    batches = [
        [event(f"{prefix}{number}-{n}", stream=f"ses_{(number + n) % 5}") for n in range(1 + number % 4)]
        for number in range(count)
    ]
    records: list[Record] = []
    for first in range(0, count, AT_ONCE):
        for appended in await asyncio.gather(*map(log.append, batches[first : first + AT_ONCE])):
            records += appended
    return records


def plain(records: list[Record]) -> list[dict[str, object]]:
    return [record.as_json() for record in records]


async def stored(log: Log) -> list[object]:
    """Every record with its bytes and its index in its batch."""
    return [record async for records in log.source.copy_out(after=-1, most=7) for record in records]


def files_of(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


class Stopped(Exception):
    """Interrupts a migration."""
