"""``kill -9`` at random moments: acknowledged batches are there, others are whole or absent.

``TORTURE_KILLS`` sets the number of kills of each kind. Each store is killed several times, so recovery follows
recovery; a store that migrates between backends is killed during its migrations.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Literal

import pytest

from streams.event import StreamEvent
from streams.identity import seeded_identity, system_identity
from streams.log.log import Log
from streams.log.migrate import Migration
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.store import Record
from streams.stores.directory import Backend
from streams.stores.sqlite import keys as sqlite_keys
from tests.streams.builders import event
from tests.streams.opened import collect
from tests.streams.sizes import size

KILLS = size("KILLS", 10)
KILLS_A_STORE = 5
STORES = min(KILLS // KILLS_A_STORE, 4)
"""How many stores are killed in parallel."""
LANES = 6

# Writers are forked from a clean process that has imported everything once.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])

Ack = tuple[int, int, tuple[int, ...], str]
"""Lane, number of the batch in it, positions, hash of the last record."""


# The process that is killed: it appends endlessly and journals each ack through a pipe.

SEGMENT_BYTES = 12_000

Mode = Literal["jsonl", "sqlite", "moving"]
"""Which backend is written; ``moving`` goes from one backend to the other and back, without end."""


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
            identity=identity,
            payload={"batch": [run, lane, number, index, count], "text": "é" * random.randrange(300)},
        )
        for index in range(count)
    ]


def write(store: Path, mode: Mode, number: int, lanes: int, journal: Connection) -> None:
    """Append in ``lanes`` tasks at once until killed."""
    sqlite_keys.FOLDED = 50  # so that a kill may come while keys are written
    asyncio.run(_write(store, mode, number, lanes, journal))


async def _write(store: Path, mode: Mode, number: int, lanes: int, journal: Connection) -> None:
    # One message is one write of less than PIPE_BUF: whole or not there, also when we are killed.
    journal.send_bytes(b"opening")
    backend: Backend = "sqlite" if mode == "sqlite" else "jsonl"
    log = await Log.open(store, system_identity(), backend=backend, segment_bytes=SEGMENT_BYTES)

    async def append(lane: int) -> None:
        batch = 0
        while True:
            records = await log.append(batch_of(number, lane, batch))
            journal.send_bytes(json.dumps([lane, batch, [r.position for r in records], records[-1].hash]).encode())
            batch += 1

    async def move() -> None:
        while mode == "moving":
            await Migration(log, "sqlite" if log.backend == "jsonl" else "jsonl").run()

    await asyncio.gather(move(), *(append(lane) for lane in range(lanes)))


@pytest.mark.parametrize("seed", range(max(KILLS // (KILLS_A_STORE * STORES), 1)))
@pytest.mark.parametrize("mode", ["jsonl", "sqlite", "moving"])
async def test_nothing_acknowledged_is_lost_and_nothing_is_invented(tmp_path: Path, mode: Mode, seed: int) -> None:
    async with asyncio.timeout(300):
        await asyncio.gather(*(_torment(tmp_path / str(n), mode, Random(seed * STORES + n)) for n in range(STORES)))


async def _torment(store: Path, mode: Mode, random: Random) -> None:
    acked: dict[int, list[Ack]] = {}
    for run in range(KILLS_A_STORE):
        acked[run] = await asyncio.to_thread(
            _write_and_kill, store, mode, run, random.choice([-1, 0, 1, random.randrange(40), random.randrange(150)])
        )
        reader = LogReader(store)
        seen = await collect(reader.read_all())
        await reader.close()
        _check_acked(acked, seen)
        log = await Log.open(store, seeded_identity(run), segment_bytes=SEGMENT_BYTES)
        try:
            records = await collect(log.read_all())
        finally:
            await log.close()
        assert records[: len(seen)] == seen, "what a reader saw stays"
        _check_acked(acked, records)
        _check_whole(records)
        assert [str(finding) async for finding in Verification(store).run()] == []


def _write_and_kill(store: Path, mode: Mode, run: int, acks: int) -> list[Ack]:
    """Kill a writer after about ``acks`` acks, which are returned; -1 kills it while it opens the log."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=write, args=(store, mode, run, LANES, theirs))
    process.start()
    theirs.close()
    journal: list[bytes] = []
    try:
        assert ours.poll(30) and ours.recv_bytes() == b"opening", "the writer did not start"
        while len(journal) <= acks and ours.poll(30):
            journal.append(ours.recv_bytes())
    finally:
        process.kill()
    with suppress(EOFError):  # the pipe still holds what was acknowledged just before
        while True:
            journal.append(ours.recv_bytes())
    process.join(30)
    # 255: starting another process, in another thread, may read the code first. A writer that fails ends with 1.
    assert process.exitcode in (-SIGKILL, 255), "the writer exited before the kill"
    ours.close()
    return [
        (lane, number, tuple(positions), hash_) for lane, number, positions, hash_ in (json.loads(a) for a in journal)
    ]


def _check_acked(acked: dict[int, list[Ack]], records: list[Record]) -> None:
    """Check that every acknowledged batch is where its ack said, with that hash and its content."""
    for run, acks in acked.items():
        for lane, number, positions, hash_ in acks:
            batch = batch_of(run, lane, number)
            found = [records[position] for position in positions if position < len(records)]
            assert [r.event for r in found] == batch, f"run {run}, lane {lane}, batch {number}"
            assert found[-1].hash == hash_


def _check_whole(records: list[Record]) -> None:
    """Check that nothing is invented, batches are whole, and each lane's batches are in order without a gap."""
    assert [record.position for record in records] == list(range(len(records)))
    following: dict[tuple[int, int], int] = {}
    place = 0
    while place < len(records):
        run, lane, number, _, count = records[place].event.payload["batch"]
        assert [r.event for r in records[place : place + count]] == batch_of(run, lane, number)
        assert number == following.get((run, lane), 0), "a lane appends one batch after the other"
        following[run, lane] = number + 1
        place += count
