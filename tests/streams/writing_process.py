"""The process that ``test_kill.py`` kills: it appends endlessly and journals each ack through a pipe."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Literal

from streams.event import StreamEvent
from streams.identity import seeded_identity, system_identity
from streams.log.log import Log
from streams.log.migrate import Migration
from streams.stores.directory import Backend
from streams.stores.sqlite import keys as sqlite_keys
from tests.streams.builders import event

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


def run(store: Path, mode: Mode, number: int, lanes: int, journal: Connection) -> None:
    """Append in ``lanes`` tasks at once until killed."""
    sqlite_keys.FOLDED = 50  # so that a kill may come while keys are written
    asyncio.run(_run(store, mode, number, lanes, journal))


async def _run(store: Path, mode: Mode, number: int, lanes: int, journal: Connection) -> None:
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
