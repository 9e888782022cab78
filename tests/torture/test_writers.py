"""Processes that write one log: killed at random moments, several at once, and for a while with everything else.

- Kills: acknowledged batches are there, others are whole or absent. Each store is killed several times,
  so recovery follows recovery; a writer that moves at once is killed in the mover's transactions, one that does not
  leaves everything to the next start. ``TORTURE_KILLS`` sets how often.
- Several want one store: one writes, the others are refused at once; its stale lock keeps nobody out.
  ``TORTURE_WRITER_ROUNDS`` sets how often.
- A soak: appends, reads, searches, hints, a database that others hold, a full disk, kill -9. Memory, descriptors
  and threads must not grow. ``TORTURE_SOAK_S`` sets how many seconds it takes.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import pickle
import resource
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any, Literal, NamedTuple

import pytest

from streams.errors import StoreFailed, StoreLocked, StoreUnavailable
from streams.event import StreamEvent
from streams.identity import seeded_identity, system_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import Record, Snapshot
from streams.stores.directory import is_being_written
from streams.stores.journal import mover
from tests.streams.builders import event
from tests.streams.opened import collect, faults
from tests.streams.sizes import size
from tests.torture.figures import MAX_GROWTH_MIB, note, rss_mib, seeded

KILLS = size("KILLS", 10)
KILLS_A_STORE = 5
STORES = min(KILLS // KILLS_A_STORE, 4)
"""How many stores are killed in parallel."""
ROUNDS = size("WRITER_ROUNDS", 2)
WRITERS = 4
SOAK_S = size("SOAK_S", 4)
LIFE_S = min(60, SOAK_S / 2)
LANES = 6
PAUSE_S = 0.02
INDEX_BYTES = 600
"""What a record may cost in memory, as long as it is in the journal."""
HANG_S = 120.0
WITH_FIGURES = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux shows a process's descriptors and memory in /proc"
)

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])

Mode = Literal["log", "moving", "resting", "soak"]
"""When the mover works: as in the product, without any pause, or never; ``soak``: as in the product, with everything
else."""

Ack = tuple[int, int, tuple[int, ...], str]
"""Lane, number of the batch in it, positions, hash of the last record."""


class Sample(NamedTuple):
    records: int
    rss: float
    descriptors: int
    threads: int


@cache
def batch_of(run: int, lane: int, number: int) -> list[StreamEvent]:
    """A batch, the same for the same numbers, so that the parent knows what may be in the log."""
    random = Random(run * 1_000_003 + lane * 1_009 + number)
    count = random.choice([1, 1, 2, 3, 8])
    identity = seeded_identity(random.randrange(2**32))
    return [
        event(
            f"{run}-{lane}-{number}-{index}",
            stream=random.choice([f"ses_{lane}", "ses_shared"]),
            type_=random.choice(["execution.step", "agent.error"]),
            identity=identity,
            payload={"batch": [run, lane, number, index, count], "text": "é" * random.randrange(300)},
        )
        for index in range(count)
    ]


class Writer:
    """The process under test. It tells its parent each ack before it continues."""

    log: Log

    def __init__(self, store: Path, mode: Mode, run: int, told: Connection) -> None:
        self.store, self.mode, self.number, self.told = store, mode, run, told
        self.ends = time.monotonic() + (LIFE_S if mode == "soak" else 2 * HANG_S)
        self.random = Random(run)
        self.usable = asyncio.Event()
        self.counts: Counter[str] = Counter()
        self.known: list[str] = []
        self.busy = asyncio.Lock()
        """Held by what moves or reopens the log: one at a time."""

    def lives(self) -> bool:
        return time.monotonic() < self.ends

    def tell(self, what: str, content: object = None) -> None:
        # One message is one write of less than PIPE_BUF: whole or not there, also when we are killed.
        self.told.send_bytes(pickle.dumps((what, content)))

    async def run(self) -> None:
        self.tell("opening")
        try:
            await self.open()
        except StoreLocked as refused:
            self.tell("refused", str(refused))
            return
        work = [self.append(lane) for lane in range(LANES)]
        if self.mode == "soak":
            work += [self.read(), self.read(), self.hold(), self.fill(), self.sample()]
        async with asyncio.timeout(LIFE_S + HANG_S):
            await asyncio.gather(*work)
        await self.log.close()
        self.tell("counts", self.counts)

    async def open(self) -> None:
        pause = {"moving": 0.0, "resting": 1e6}.get(self.mode, mover.PAUSE_SECONDS)
        pytest.MonkeyPatch().setattr(mover, "PAUSE_SECONDS", pause)  # in a process of its own
        segment_bytes = 400_000 if self.mode == "soak" else 12_000
        self.log = await Log.open(self.store, system_identity(), segment_bytes=segment_bytes)
        self.usable.set()

    async def append(self, lane: int) -> None:
        number = 0
        while self.lives():
            await self.usable.wait()
            batch = batch_of(self.number, lane, number)
            try:
                records = await self.log.append(batch)
            except StoreUnavailable:
                assert self.mode == "soak"
                await asyncio.sleep(PAUSE_S)  # the disk is full, or the log is being opened again
                continue
            self.tell("acked", (lane, number, tuple(r.position for r in records), records[-1].hash))
            self.known = [*self.known[-50:], batch[0].idempotency_key]
            self.counts["appends"] += 1
            number += 1
            if self.mode == "soak":
                await asyncio.sleep(PAUSE_S)

    async def hold(self) -> None:
        """Hold the database as another program would, for longer than the mover waits for it."""
        while self.lives():
            await asyncio.sleep(LIFE_S / 20)
            async with self.busy:
                other = sqlite3.connect(
                    self.store / "log.db", isolation_level=None, timeout=30, check_same_thread=False
                )
                with closing(other):
                    await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
                    before = self.log.head
                    while self.log.head < before + 2 * LANES and self.lives():
                        await asyncio.sleep(PAUSE_S)
                self.counts["holds"] += 1

    async def read(self) -> None:
        while self.lives():
            await self.usable.wait()
            # Both now: what is appended after this log was closed is in the next one only.
            log, known = self.log, self.known
            try:
                tail = await collect(log.read_all(after=log.head - 200))
                assert [r.position for r in tail] == sorted({r.position for r in tail})
                if known:
                    key = self.random.choice(known)
                    assert await log.find(key) is not None, f"{key} was acknowledged"
                found = await collect(log.query(Filter(types=["agent.*"], streams=[f"ses_{self.random.randrange(9)}"])))
                assert all(r.event.type == "agent.error" for r in found)
                if tail:
                    await log.put_snapshot("soak", Snapshot(1, tail[-1].position, b"x" * 10_000))
                    await log.advance("soak", tail[-1].position)
            except (StoreUnavailable, OSError):
                await asyncio.sleep(PAUSE_S)
            self.counts["reads"] += 1
            await asyncio.sleep(PAUSE_S)

    async def fill(self) -> None:
        """Let no file grow until an append fails; then open the log again."""
        while self.lives():
            await asyncio.sleep(LIFE_S / 12)
            async with self.busy:
                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
                try:
                    for number in range(500):
                        key = f"fill-{self.number}-{self.counts['full']}-{number}"
                        await self.log.append([event(key, stream="fill")])
                except StoreFailed:
                    self.counts["full"] += 1
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                self.usable.clear()
                await self.log.close()
                await self.open()

    async def sample(self) -> None:
        while self.lives():
            await asyncio.sleep(LIFE_S / 20)
            async with self.busy:
                gc.collect()
                files = len(list(Path("/proc/self/fd").iterdir()))
                self.tell("sample", Sample(self.log.head + 1, rss_mib(), files, threading.active_count()))


def _work(store: Path, mode: Mode, run: int, told: Connection) -> None:
    asyncio.run(Writer(store, mode, run, told).run())


class Life:
    """A writer's process, seen from outside: what it told."""

    def __init__(self, store: Path, mode: Mode, run: int) -> None:
        self.told: dict[str, list[Any]] = {"opening": [], "acked": [], "refused": [], "sample": [], "counts": []}
        self._pipe, theirs = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=_work, args=(store, mode, run, theirs))
        self.process.start()
        theirs.close()

    def take(self, until: Callable[[], object], seconds: float = HANG_S) -> None:
        """Read what it tells until then, or its end."""
        ends = time.monotonic() + seconds
        with suppress(EOFError):
            while not until() and self._pipe.poll(max(ends - time.monotonic(), 0)):
                what, content = pickle.loads(self._pipe.recv_bytes())
                self.told[what].append(content)

    def kill(self) -> list[Ack]:
        """Return all its acks."""
        self.process.kill()
        self.take(lambda: False)  # the pipe still holds what was acknowledged just before
        self.process.join(HANG_S)
        # 255: starting another process, in another thread, may read the code first. A writer that fails ends with 1.
        assert self.process.exitcode in (0, -SIGKILL, 255), f"a writer ended with {self.process.exitcode}"
        assert self.process.exitcode != 0 or self.told["counts"] or self.told["refused"], "it ended before the kill"
        return self.told["acked"]


async def check(store: Path, acked: dict[int, list[Ack]]) -> int:
    """What a reader sees stays, every ack is true, and nothing is invented; return the number of records."""
    reader = LogReader(store)
    seen = await collect(reader.read_all())
    await reader.close()
    check_acked(acked, seen)
    log = await Log.open(store, system_identity())
    records = await collect(log.read_all())
    await log.close()
    assert records[: len(seen)] == seen
    check_acked(acked, records)
    assert [record.position for record in records] == list(range(len(records)))
    following: Counter[tuple[int, int]] = Counter()
    place = 0
    while place < len(records):
        run, lane, number, first, count = records[place].event.payload.get("batch", [None] * 4 + [1])
        if run is not None:  # else it filled the disk
            assert first == 0 and [r.event for r in records[place : place + count]] == batch_of(run, lane, number)
            assert number == following[run, lane], "a lane appends one batch after the other"
            following[run, lane] += 1
        place += count
    assert await faults(store) == []
    return len(records)


def check_acked(acked: dict[int, list[Ack]], records: list[Record]) -> None:
    """Check that every acknowledged batch is where its ack said, with that hash and its content."""
    for run, acks in acked.items():
        for lane, number, positions, hash_ in acks:
            found = [records[position] for position in positions if position < len(records)]
            assert [r.event for r in found] == batch_of(run, lane, number), f"run {run}, lane {lane}, batch {number}"
            assert found[-1].hash == hash_


@pytest.mark.parametrize("seed", range(max(KILLS // (KILLS_A_STORE * STORES), 1)))
@pytest.mark.parametrize("mode", ["log", "moving", "resting"])
async def test_nothing_acknowledged_is_lost_and_nothing_is_invented(tmp_path: Path, mode: Mode, seed: int) -> None:
    async def torment(store: Path, random: Random) -> None:
        acked: dict[int, list[Ack]] = {}
        for run in range(KILLS_A_STORE):
            acks = random.choice([-1, 0, 1, random.randrange(40), random.randrange(150)])
            life = Life(store, mode, run)
            told = life.told["acked"] if acks >= 0 else life.told["opening"]
            await asyncio.to_thread(life.take, lambda told=told, acks=acks: len(told) > max(acks, 0))  # type: ignore[misc]
            acked[run] = await asyncio.to_thread(life.kill)
            await check(store, acked)

    async with asyncio.timeout(300):
        await asyncio.gather(*(torment(tmp_path / str(n), Random(seed * STORES + n)) for n in range(STORES)))


async def test_one_writes_and_its_death_lets_the_next_one_in(tmp_path: Path) -> None:
    acked: dict[int, list[Ack]] = {}
    for number in range(ROUNDS):
        lives = {number * WRITERS + n: Life(tmp_path / "store", "log", number * WRITERS + n) for n in range(WRITERS)}
        for life in lives.values():
            await asyncio.to_thread(life.take, lambda told=life.told: len(told["acked"]) > 9 or told["refused"])  # type: ignore[misc]
        (winner,) = [run for run, life in lives.items() if life.told["acked"]]
        assert is_being_written(tmp_path / "store")
        for life in lives.values():
            for refusal in life.told["refused"]:
                assert "is being written by process" in refusal and "durable-stream stop" in refusal
        for run, life in lives.items():
            found = await asyncio.to_thread(life.kill)
            assert bool(found) is (run == winner)
            acked |= {run: found} if found else {}
        assert not is_being_written(tmp_path / "store")
        await check(tmp_path / "store", acked)
    note("two-writers", kills=ROUNDS, inputs=ROUNDS * WRITERS, events=sum(map(len, acked.values())))


@WITH_FIGURES
async def test_a_mixed_load_leaves_everything_whole_and_nothing_behind(tmp_path: Path) -> None:
    random, began = seeded("soak"), time.monotonic()
    acked: dict[int, list[Ack]] = {}
    lives: list[Life] = []
    totals: Counter[str] = Counter()
    records = 0
    while time.monotonic() - began < SOAK_S or len(lives) < 2:
        life = Life(tmp_path / "store", "soak", len(lives))
        is_killed = len(lives) % 2 == 0
        seconds = random.uniform(LIFE_S / 4, LIFE_S) if is_killed else LIFE_S + HANG_S
        await asyncio.to_thread(life.take, lambda life=life: life.told["counts"], seconds)  # type: ignore[misc]
        assert is_killed or life.told["counts"], "the process hangs"
        acked[len(lives)] = await asyncio.to_thread(life.kill)
        totals.update(*life.told["counts"])
        lives.append(life)
        records = await check(tmp_path / "store", acked)
    grown = descriptors = threads = 0.0
    for samples in [life.told["sample"] for life in lives if len(life.told["sample"]) > 3]:
        # What is imported and cached at first use is there after the first samples.
        first, last = samples[2], samples[-1]
        grown = max(grown, last.rss - first.rss - (last.records - first.records) * INDEX_BYTES / 2**20)
        descriptors = max(descriptors, min(s.descriptors for s in samples[-3:]) - first.descriptors)
        threads = max(threads, min(s.threads for s in samples[-3:]) - first.threads)
    figures = {"grown_mib": grown, "more_descriptors": descriptors, "more_threads": threads, "events": records}
    seconds = time.monotonic() - began
    note("soak", seconds=seconds, lives=len(lives), kills=(len(lives) + 1) // 2, lost=0, **figures, **totals)
    assert grown < MAX_GROWTH_MIB and descriptors <= 8 and threads <= 8, figures
    assert totals["full"] and totals["holds"], "each kind of trouble came"
