"""Stores: appends against raw writes, replay against ``orjson.loads`` of the same lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson

from benchmarks.limits import ROUNDS, beside, raw_rate
from benchmarks.report import Row
from streams.event import StreamEvent
from streams.identity import system_identity
from streams.stores.jsonl import JsonlStore
from streams.stores.segments import parse_keys, parse_record

IDENTITY = system_identity()
PAYLOAD = {"session": "ses_bench", "text": "x" * 560, "tokens": {"input": 10, "output": 5}}
CHUNK = 2000


def an_event(number: int) -> StreamEvent:
    """An event of about 1 KiB as it is stored."""
    return IDENTITY.stamp(
        {
            "type": "execution.output",
            "stream_id": f"ses_{number % 8}",
            "actor": "build",
            "source": {"agent": "build", "adapter": "opencode"},
            "idempotency_key": f"bench:{IDENTITY.ulid()}",
            "payload": PAYLOAD,
        }
    )


async def append_rate(store: JsonlStore, in_flight: int, seconds: float) -> float:
    """Appends a second with so many waiting at a time; encoding is included, making the events is not."""
    done, spent = 0, 0.0
    while spent < seconds:
        batch = iter([an_event(done + n) for n in range(CHUNK)])

        async def one(events: Iterator[StreamEvent] = batch) -> None:
            for event in events:
                await store.append([event])

        start = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(in_flight)))
        spent += time.perf_counter() - start
        done += CHUNK
    return done / spent


def _rate(lines: list[bytes], read: Callable[[bytes], object], seconds: float) -> float:
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        for line in lines:
            read(line)
        count += len(lines)
    return count / spent


async def measure(directory: Path, seconds: float) -> list[Row]:
    """The rows of the jsonl store."""
    rows: list[Row] = []
    store = await JsonlStore.open(directory / "store", IDENTITY)
    await append_rate(store, 64, seconds / ROUNDS)  # warm
    for in_flight, floor, aim in ((1, 0.45, 0.85), (64, 5, 14)):
        rate, limit = await beside(
            lambda s: raw_rate(directory, s),
            lambda s, n=in_flight: append_rate(store, n, s),
            seconds,  # type: ignore[misc]
        )
        rows.append(Row(f"jsonl append, {in_flight} in flight", rate, limit, "R", floor, aim))
    await store.close()

    path = min((directory / "store" / "log").iterdir())
    lines = path.read_bytes().split(b"\n")[:-1][:2000]
    for label, read, floor, aim in (
        ("replay, raw records", parse_keys, 0.6, 1.2),
        ("replay, typed records", parse_record, 0.35, 0.6),
    ):

        async def work(s: float, read: Callable[[bytes], object] = read) -> float:
            return _rate(lines, read, s)

        rate, limit = await beside(lambda s: _rate(lines, orjson.loads, s), work, seconds)
        rows.append(Row(label, rate, limit, "orjson.loads", floor, aim))
    return rows
