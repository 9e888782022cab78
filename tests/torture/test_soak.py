"""Everything at once for a while: appends, reads, searches, hints, moves, a full disk, kill -9.

One process after the other works on the same log, and exits or is killed. It journals its acks, and counts its
memory, descriptors and threads, which must not grow. After each life the log must verify and contain every
acknowledged batch, whole and once. ``TORTURE_SOAK_S`` sets how many seconds it takes.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import pickle
import resource
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from signal import SIGKILL

import pytest

from streams.errors import StoreFailed, StoreUnavailable
from streams.event import StreamEvent
from streams.identity import seeded_identity, system_identity
from streams.log.log import Log
from streams.log.migrate import Migration, discard_kept
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.query import Filter
from streams.store import Snapshot
from tests.streams.builders import event
from tests.streams.opened import collect
from tests.streams.sizes import size
from tests.torture.figures import MAX_GROWTH_MIB, note, rss_mib, seeded

SOAK_S = size("SOAK_S", 5)
LIFE_S = min(60, SOAK_S / 2)
LANES = 8
PAUSE_S = 0.02
INDEX_BYTES = 600
"""What a record may cost in memory: jsonl keeps the place and the key of each."""
HANG_S = 120

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.torture.test_soak"])


@dataclass
class Sample:
    records: int
    rss: float
    descriptors: int
    threads: int


@dataclass
class Life:
    """A process's reports: acknowledged batches as (lane, number), samples, and counts of what happened."""

    acked: list[tuple[int, int]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def batch(life: int, lane: int, number: int) -> list[StreamEvent]:
    random = Random(f"{life}:{lane}:{number}")
    identity = seeded_identity(random.randrange(2**32))
    count = random.choice([1, 1, 1, 2, 5])
    return [
        event(
            f"{life}-{lane}-{number}-{n}",
            stream=f"ses_{lane}_{life}",
            type_=random.choice(["execution.step", "agent.error", "human.input"]),
            identity=identity,
            payload={"at": [life, lane, number, n, count], "text": "x" * random.randrange(800)},
        )
        for n in range(count)
    ]


class Worker:
    """The process under test."""

    def __init__(self, store: Path, life: int, seconds: float, told: Connection) -> None:
        self.store, self.life, self.told = store, life, told
        self.ends = time.monotonic() + seconds
        self.random = Random(life)
        self.log: Log | None = None
        self.usable = asyncio.Event()
        self.counts = dict.fromkeys(["appends", "reads", "moves", "full", "reopened"], 0)
        self.known: list[str] = []
        self.busy = asyncio.Lock()
        """Held by what moves or reopens the log: one at a time."""

    def lives(self) -> bool:
        return time.monotonic() < self.ends

    async def run(self) -> None:
        await self.open()
        lanes = [self.append(lane) for lane in range(LANES)]
        async with asyncio.timeout(LIFE_S + HANG_S):
            await asyncio.gather(*lanes, self.read(), self.read(), self.move(), self.fill(), self.sample())
        assert self.log is not None
        await self.log.close()
        self.tell("counts", self.counts)

    def tell(self, what: str, content: object) -> None:
        self.told.send_bytes(pickle.dumps((what, content)))

    async def open(self) -> None:
        self.log = await Log.open(self.store, system_identity(), segment_bytes=400_000)
        self.usable.set()

    async def append(self, lane: int) -> None:
        number = 0
        while self.lives():
            await self.usable.wait()
            assert self.log is not None
            events = batch(self.life, lane, number)
            try:
                records = await self.log.append(events)
            except StoreUnavailable:
                await asyncio.sleep(PAUSE_S)  # the disk is full, or the log is being opened again
                continue
            assert [record.event.idempotency_key for record in records] == [e.idempotency_key for e in events]
            self.tell("acked", (lane, number))
            self.known = [*self.known[-50:], events[0].idempotency_key]
            self.counts["appends"] += 1
            number += 1
            await asyncio.sleep(PAUSE_S)

    async def read(self) -> None:
        while self.lives():
            await self.usable.wait()
            assert self.log is not None
            # Both now: what is appended after this log was closed is in the next one only.
            log, known = self.log, self.known
            try:
                tail = await collect(log.read_all(after=log.head - 200))
                assert [r.position for r in tail] == sorted({r.position for r in tail})
                if known:
                    key = self.random.choice(known)
                    assert await log.find(key) is not None, f"{key} was acknowledged; the log is in {log.backend}"
                stream = f"ses_{self.random.randrange(LANES)}_{self.life}"
                found = await collect(log.query(Filter(types=["agent.*"], streams=[stream])))
                assert all(r.event.type == "agent.error" for r in found)
                if tail:
                    await log.put_snapshot("soak", Snapshot(1, tail[-1].position, b"x" * 10_000))
                    await log.advance("soak", tail[-1].position)
            except (StoreUnavailable, OSError):
                await asyncio.sleep(PAUSE_S)
            self.counts["reads"] += 1
            await asyncio.sleep(PAUSE_S)

    async def move(self) -> None:
        while self.lives():
            await asyncio.sleep(LIFE_S / 20)
            async with self.busy:
                assert self.log is not None
                with suppress(StoreUnavailable):
                    await Migration(self.log, "sqlite" if self.log.backend == "jsonl" else "jsonl").run()
                    self.counts["moves"] += 1
                    if self.random.random() < 0.3:
                        await asyncio.to_thread(discard_kept, self.store)
                        self.log.reread_manifest()

    async def fill(self) -> None:
        """Let no file grow until an append fails; then open the log again."""
        while self.lives():
            await asyncio.sleep(LIFE_S / 12)
            async with self.busy:
                assert self.log is not None
                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
                try:
                    for number in range(500):
                        await self.log.append(
                            [event(f"fill-{self.life}-{self.counts['full']}-{number}", stream="fill")]
                        )
                except StoreFailed:
                    self.counts["full"] += 1
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                self.usable.clear()
                await self.log.close()
                await self.open()
                self.counts["reopened"] += 1

    async def sample(self) -> None:
        while self.lives():
            await asyncio.sleep(LIFE_S / 20)
            async with self.busy:
                gc.collect()
                open_files = len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0
                assert self.log is not None
                self.tell("sample", Sample(self.log.head + 1, rss_mib(), open_files, threading.active_count()))


def _work(store: Path, life: int, seconds: float, told: Connection) -> None:
    asyncio.run(Worker(store, life, seconds, told).run())


def _live(store: Path, number: int, killed_after: float | None) -> Life:
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_work, args=(store, number, LIFE_S, theirs))
    process.start()
    theirs.close()
    life = Life()
    ends = time.monotonic() + (LIFE_S + HANG_S if killed_after is None else killed_after)
    with suppress(EOFError):
        while True:
            left = ends - time.monotonic()
            if left <= 0 or not ours.poll(left):
                if killed_after is None:
                    process.kill()
                    raise AssertionError("the process hangs")
                process.kill()
                ends = time.monotonic() + HANG_S
                killed_after = None if not ours.poll(0) else killed_after
                if not ours.poll(1):
                    break
            what, content = pickle.loads(ours.recv_bytes())
            if what == "acked":
                life.acked.append(content)
            elif what == "sample":
                life.samples.append(content)
            else:
                life.counts = content
    process.join(HANG_S)
    assert process.exitcode in (0, -SIGKILL, 255), f"a life ended with {process.exitcode}"
    assert process.exitcode != 0 or life.counts, "a life that ended well told what it did"
    return life


async def _check(store: Path, acked: set[tuple[int, int, int]]) -> int:
    """Check that every acknowledged batch is there once, whole, in its lane's order; return the number of records."""
    log = await Log.open(store, system_identity())
    await log.close()
    reader = LogReader(store)
    records = await collect(reader.read_all())
    await reader.close()
    assert [record.position for record in records] == list(range(len(records)))
    seen: dict[tuple[int, int], int] = {}
    place = 0
    while place < len(records):
        at = records[place].event.payload.get("at")
        if at is None:
            place += 1
            continue
        life, lane, number, first, count = at
        assert first == 0 and number == seen.get((life, lane), 0), at
        assert [r.event for r in records[place : place + count]] == batch(life, lane, number)
        seen[life, lane] = number + 1
        place += count
    lost = [one for one in acked if one[2] >= seen.get(one[:2], 0)]
    assert lost == [], lost[:10]
    assert [str(finding) async for finding in Verification(store).run()] == []
    return len(records)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows a process's descriptors and memory in /proc")
async def test_a_mixed_load_leaves_everything_whole_and_nothing_behind(tmp_path: Path) -> None:
    random = seeded("soak")
    began, number = time.monotonic(), 0
    acked: set[tuple[int, int, int]] = set()
    totals: dict[str, int] = {}
    lives: list[Life] = []
    records = kills = 0
    while time.monotonic() - began < SOAK_S or number < 2:
        killed_after = random.uniform(LIFE_S / 4, LIFE_S) if number % 2 == 0 else None
        life = await asyncio.to_thread(_live, tmp_path / "store", number, killed_after)
        acked |= {(number, *one) for one in life.acked}
        kills += killed_after is not None
        for name, count in life.counts.items():
            totals[name] = totals.get(name, 0) + count
        lives.append(life)
        records = await _check(tmp_path / "store", acked)
        number += 1
    grown = descriptors = threads = 0.0
    for life in lives:
        if len(life.samples) < 4:
            continue
        # What is imported and cached at first use is there after the first samples.
        first, last = life.samples[2], life.samples[-1]
        grown = max(grown, last.rss - first.rss - (last.records - first.records) * INDEX_BYTES / 2**20)
        descriptors = max(descriptors, min(s.descriptors for s in life.samples[-3:]) - first.descriptors)
        threads = max(threads, min(s.threads for s in life.samples[-3:]) - first.threads)
    note(
        "soak",
        seconds=time.monotonic() - began,
        lives=number,
        kills=kills,
        events=records,
        lost=0,
        grown_mib=grown,
        more_descriptors=descriptors,
        more_threads=threads,
        **totals,
    )
    assert grown < MAX_GROWTH_MIB and descriptors <= 8 and threads <= 8, (grown, descriptors, threads)
    assert totals["full"] and totals["moves"], "each kind of trouble came"
