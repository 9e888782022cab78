"""A clock that jumps: positions give the log's order, whatever the times.

``tests/sidecar/test_clock.py`` does the same to a whole sidecar and its commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, count, cycle, repeat
from pathlib import Path
from random import Random

import pytest

from streams.identity import Identity
from streams.log.log import Log
from streams.query import Filter
from tests.streams.builders import event
from tests.streams.opened import collect, faults, moved

NOW = 1_795_000_000_000
YEAR = 365 * 86_400_000
HOUR = 3_600_000

CLOCKS: dict[str, Callable[[], Iterator[int]]] = {
    "frozen": lambda: repeat(NOW),
    "a year forward": lambda: chain(range(NOW, NOW + 20), count(NOW + YEAR)),
    "a year back": lambda: chain(range(NOW, NOW + 20), count(NOW - YEAR)),
    "summer time ends": lambda: chain(range(NOW, NOW + 20), range(NOW + 20 - HOUR, NOW + 30), count(NOW + 30)),
    "back and forth": lambda: (NOW + jump for jump in cycle([0, YEAR, -YEAR, 1, -HOUR, HOUR])),
    "backwards": lambda: count(NOW, -1000),
    "1970": lambda: repeat(0),
}


def identity(clock: str, seed: int = 1) -> Identity:
    ticks = CLOCKS[clock]()
    return Identity(lambda: next(ticks), Random(seed).randbytes)


@pytest.mark.parametrize("clock", CLOCKS)
async def test_order_is_that_of_positions(tmp_path: Path, clock: str) -> None:
    jumping = identity(clock)
    written = []
    log = await Log.open(tmp_path, jumping, segment_bytes=3000)
    for number in range(30):
        written += await log.append([event(f"{number}-{n}", stream=f"ses_{n}", identity=jumping) for n in range(2)])
        if number == 15:
            # The next process begins with the clock of this one's first moment.
            await log.close()
            log = await Log.open(tmp_path, identity(clock, 2), segment_bytes=3000)
    assert [record.position for record in written] == list(range(60))
    ids = [record.event.id for record in written]
    assert ids == sorted(set(ids)), "ids of one process ascend, whatever the clock does"
    assert await collect(log.read_all()) == written
    assert [record.offset for record in await collect(log.read("ses_1"))] == list(range(30))
    times = sorted({record.event.ts for record in written})
    for since, until in [(times[0], times[-1]), (times[len(times) // 2], None), (None, times[len(times) // 2])]:
        wanted = Filter(since_ms=since, until_ms=until)
        expected = [record for record in written if wanted.matches(record.event)]
        assert await collect(log.query(wanted)) == expected, "by time, in the order of positions"
    await moved(log)
    assert await collect(log.read_all()) == written
    await log.close()
    assert await faults(tmp_path) == []
