"""The log: appends compared with raw writes, how long the database lags behind, appends on a slow disk, and replay
compared with ``orjson.loads``.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import orjson

from benchmarks.limits import GROUP, ROUNDS, beside, raw_group_rate, raw_rate
from benchmarks.report import Row
from streams.event import StreamEvent
from streams.hashing import GENESIS, encode
from streams.identity import system_identity
from streams.log.log import Log
from streams.store import StreamStore
from streams.stores.disk import Disk
from streams.stores.journal.lines import format_line, parse_keys, parse_record
from streams.stores.plan import Placed

IDENTITY = system_identity()
PAYLOAD = {"session": "ses_bench", "text": "x" * 560, "tokens": {"input": 10, "output": 5}}
CHUNK = 2000
SLOW_CHUNK = 50
SLOWER_SECONDS = 0.005

BURST: Final = 10_000
"""Events of a burst, which the journal takes before the mover works."""

ENDLESS: Final = 100_000
"""Events without a pause, so that the mover has long had to keep up."""

ENDLESS_ROUNDS: Final = 3
REPLAYED: Final = 2000


class SlowDisk(Disk):
    """A disk whose syncs take 5 ms longer."""

    def sync(self, fd: int) -> None:
        time.sleep(SLOWER_SECONDS)
        super().sync(fd)


def an_event(number: int) -> StreamEvent:
    """An event that takes about 1 KiB in the log."""
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


async def appended(store: StreamStore, events: Iterable[StreamEvent], in_flight: int, a_call: int = 1) -> float:
    """Append events with this many calls waiting at a time, each with ``a_call`` events. Return the seconds."""
    left = iter(events)

    async def one() -> None:
        while some := list(islice(left, a_call)):
            await store.append(some)

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(in_flight)))
    return time.perf_counter() - start


async def append_rate(
    store: StreamStore, in_flight: int, seconds: float, chunk: int | None = None, *, a_call: int = 1
) -> float:
    """Events per second; includes encoding the events, but not making them. See ``appended``."""
    chunk = chunk or CHUNK // a_call * a_call
    done, spent = 0, 0.0
    while spent < seconds:
        spent += await appended(store, [an_event(done + n) for n in range(chunk)], in_flight, a_call)
        done += chunk
    return done / spent


async def burst_rate(log: Log, in_flight: int, seconds: float) -> float:
    """As ``append_rate``, in bursts of ``BURST`` events; before each of them, everything is in the database."""
    done, spent = 0, 0.0
    while spent < seconds:
        await all_moved(log)
        spent += await appended(log, [an_event(done + n) for n in range(BURST)], in_flight)
        done += BURST
    await all_moved(log)  # the mover must not work beside what is measured next
    return done / spent


async def all_moved(log: Log) -> float:
    """Wait until every record is in the database. Return the seconds."""
    start = time.perf_counter()
    while log.waiting()["records"]:
        await asyncio.sleep(0.005)
    return time.perf_counter() - start


def _rate(lines: list[bytes], read: Callable[[bytes], object], seconds: float) -> float:
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        for line in lines:
            read(line)
        count += len(lines)
    return count / spent


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure the rows of the log."""
    log = await Log.open(directory / "store", IDENTITY)
    rows = [*await _appends(log, directory, seconds), *await _endless(log, directory, seconds)]
    await log.close()
    return [*rows, *await _slow_disk(directory, seconds), *await _replay(seconds)]


async def _appends(log: Log, directory: Path, seconds: float) -> list[Row]:
    await append_rate(log, GROUP, seconds / ROUNDS)  # warm up before measuring
    await all_moved(log)

    async def raw(s: float) -> float:
        return raw_rate(directory, s)

    async def raw_groups(s: float) -> float:
        return raw_group_rate(directory, s)

    async def one(s: float) -> float:
        rate = await append_rate(log, 1, s)
        await all_moved(log)
        return rate

    async def bursts(s: float) -> float:
        return await burst_rate(log, GROUP, s)

    rows = []
    for label, work, *promise in (
        ("raw file, 64 lines a sync", raw_groups),
        ("append, 1 in flight", one, 0.5, 0.6),
        (f"append, 64 in flight, a burst of {BURST:,}", bursts, 5, 6),
    ):
        rate, limit = await beside(raw, work, seconds)
        rows.append(Row(label, rate, limit, "R", *promise))
    return rows


async def _endless(log: Log, directory: Path, seconds: float) -> list[Row]:
    """Appends without a pause, which is longer than a slice; R is measured before and after, while nothing moves."""
    rates, limits, waits = [], [], []
    for _ in range(ENDLESS_ROUNDS):
        limits.append(raw_rate(directory, seconds / ROUNDS))
        rates.append(ENDLESS / await appended(log, [an_event(n) for n in range(ENDLESS)], GROUP))
        waits.append(await all_moved(log))
        limits.append(raw_rate(directory, seconds / ROUNDS))
    rate, limit = statistics.median(rates), statistics.median(limits)
    return [
        Row("append, 64 in flight, without end", rate, limit, "R", 3.5, 4.5),
        Row("after the last of them, until all are in the database", statistics.median(waits), None, "s", 2, 0.5),
    ]


async def _slow_disk(directory: Path, seconds: float) -> list[Row]:
    log = await Log.open(directory / "slow", IDENTITY, disk=SlowDisk())
    rate, limit = await beside(
        lambda s: append_rate(log, 1, s, SLOW_CHUNK), lambda s: append_rate(log, GROUP, s), seconds
    )
    await log.close()
    return [Row("disk 5 ms slower, 64 in flight", rate, limit, "1 in flight", 50, 60)]


async def _replay(seconds: float) -> list[Row]:
    lines = list(_lines(REPLAYED))
    rows = []
    for label, read, floor, aim in (
        ("replay, raw records", parse_keys, 0.75, 1.2),
        ("replay, typed records", parse_record, 0.35, 0.6),
    ):

        async def work(s: float, read: Callable[[bytes], object] = read) -> float:
            return _rate(lines, read, s)

        rate, limit = await beside(lambda s: _rate(lines, orjson.loads, s), work, seconds)
        rows.append(Row(label, rate, limit, "orjson.loads", floor, aim))
    return rows


def _lines(count: int) -> Iterator[bytes]:
    """Lines of a journal, without their newlines."""
    for number in range(count):
        yield format_line(Placed(encode(an_event(number)), number, number, GENESIS), 0, 1).rstrip(b"\n")
