"""One long life of a log, the same in every run: appends, hints, rolled and moved segments, a torn tail, pruning and
forgetting, and tables derived from the records, of which there are new versions.

It is played once to find every change to the disk, and then cut off at each of them. Keys and ids of appended events
are derived from their numbers, so playing the script again after a cut adds only what is missing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple

from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.store import Record, Snapshot
from streams.stores.journal import mover
from streams.stores.journal.segments import list_segments
from streams.stores.sqlite import deriving
from streams.stores.sqlite import removed as sqlite_removed
from tests.streams.builders import event
from tests.streams.derivers import Texts

SEGMENT_BYTES: Final = 6_000
CURSOR, SNAPSHOT, VERSION = "mirror", "capture", 7


class Remove(NamedTuple):
    """Prune or forget some streams, each up to an offset, which for ``forget`` is the stream's next one."""

    how: Literal["prune", "forget"]
    upto: dict[str, int]


Do = Literal["hint", "reopen", "tear"]
"""``hint``: save a cursor and a snapshot at the head. ``tear``: what a writer leaves that dies in a write."""

Step = tuple[StreamEvent, ...] | Remove | Do
"""Events are appended together."""

Told = Callable[[list[Record]], None]
"""Called with the records of each acknowledged append."""

REMOVALS: Final[tuple[Literal["prune", "forget", ""], ...]] = (
    *("prune", "forget", "", "", "prune", "forget", "prune", "forget"),
)
"""One in each eighth of the script, but not in all."""


@cache
def steps(length: int = 200) -> tuple[Step, ...]:
    """A script of ``count`` operations that begins on ``start``."""
    random = Random(f"{length}")
    found: list[Step] = []
    counts: Counter[str] = Counter()
    for number in range(length):
        at = number / length
        removal = REMOVALS[number * 8 // length] if number % (length // 8) == length // 16 else ""
        if removal == "prune":
            # Half of one stream, the whole of another, and nothing of the next.
            found.append(Remove("prune", {"ses_a": counts["ses_a"] // 2, "ses_b": counts["ses_b"]}))
        elif removal == "forget":
            found.append(Remove("forget", {stream: counts[stream] for stream in ("ses_a", "ses_1")}))
        elif number and number % (length // 4) == 0:
            found.append("reopen")
        elif number and number % (length // 8) == 0:
            found.append("tear" if at < 0.5 else "reopen")
        elif number % 9 == 8:
            found.append("hint")
        else:
            batch = _batch(number, random)
            counts.update(each.stream_id for each in batch)
            found.append(batch)
    return tuple(found)


def _batch(number: int, random: Random) -> tuple[StreamEvent, ...]:
    identity = seeded_identity(number)
    return tuple(
        event(
            f"{number}-{index}",
            stream=random.choice(["ses_a", "ses_b", f"ses_{number % 7}"]),
            identity=identity,
            payload={"n": number, "text": f"word-{number}-{index}." + "é" * random.choice([0, 0, 10, 200, 700])},
        )
        for index in range(random.choice([1, 1, 2, 3]))
    )


def state_at(position: int) -> bytes:
    """The snapshot kept at a position."""
    return b'{"position":%d,"filling":"%b"}' % (position, b"x" * 600)


async def open_log(store: Path, version: int = 1) -> Log:
    return await Log.open(store, seeded_identity(5), segment_bytes=SEGMENT_BYTES, derived=Texts(version))


async def play(store: Path, told: Told, length: int = 200, *, removed: Callable[[], None] = lambda: None) -> None:
    """Play the script to its end; parts already in the log are duplicates.

    ``removed`` is called after each removal.
    """
    with _small_steps():
        await _play(store, told, length, removed)


@contextmanager
def _small_steps() -> Iterator[None]:
    """Remove, and move records to the database, in several transactions; move without waiting for a pause."""
    before = sqlite_removed.CHUNK, mover.PAUSE_SECONDS, mover.MOST_BYTES, deriving.MOST
    sqlite_removed.CHUNK, mover.PAUSE_SECONDS, mover.MOST_BYTES, deriving.MOST = 6, 0.0, 2000, 6
    try:
        yield
    finally:
        sqlite_removed.CHUNK, mover.PAUSE_SECONDS, mover.MOST_BYTES, deriving.MOST = before


async def _play(store: Path, told: Told, length: int, removed: Callable[[], None]) -> None:
    log, version = await open_log(store), 1
    try:
        for step in steps(length):
            if isinstance(step, Remove):
                await _remove(log, step)
                removed()
            elif isinstance(step, tuple):
                told(await log.append(step))
            elif step == "hint":
                await log.advance(CURSOR, log.head)
                await log.put_snapshot(SNAPSHOT, Snapshot(VERSION, log.head, state_at(log.head)))
            else:
                await log.close()
                if step == "tear":
                    tear(store)
                version += step == "reopen"
                log = await open_log(store, version)
    finally:
        await log.close()


async def _remove(log: Log, step: Remove) -> None:
    if step.how == "prune":
        await log.prune(step.upto, at_ms=1)
    else:
        await log.forget(list(step.upto), at_ms=1)


def tear(store: Path) -> None:
    """Append half a line to a log's last segment."""
    segments = list_segments(store / "journal")
    if segments:
        fd = os.open(segments[-1].path, os.O_WRONLY | os.O_APPEND)
        os.write(fd, b'{"crc":"00000000","event":{"half')
        os.close(fd)


def removals(length: int = 200) -> list[tuple[int, Remove]]:
    """The script's removals in order, each with the number of records appended before it."""
    found, appended = [], 0
    for step in steps(length):
        if isinstance(step, Remove):
            found.append((appended, step))
        elif isinstance(step, tuple):
            appended += len(step)
    return found


def batches(length: int = 200) -> list[tuple[StreamEvent, ...]]:
    """The batches that the script appends, in order."""
    return [s for s in steps(length) if isinstance(s, tuple) and not isinstance(s, Remove)]
