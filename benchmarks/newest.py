"""The newest records of a long stream: reading them must not take longer because the stream is longer."""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.commands import timed
from benchmarks.limits import beside
from benchmarks.million import build, records
from benchmarks.report import Row
from sidecar.home import Home
from sidecar.read.find_by_id import newest
from streams.log.reader import LogReader
from streams.query import Filter

SHORT, LONG = 30_000, 150_000
STREAM: Final = "ses_00000000root"
LAST: Final = 5
RUNS = 7


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Compare the newest five records of a stream of 150,000 with those of a stream of 30,000; and ``log --last 5``
    with ``--version``, best of seven alternating runs."""
    scale = int(os.environ.get("BENCH_EVENTS", 1_000_000)) / 1_000_000
    short, long = [await _home(directory, round(n * scale)) for n in (SHORT, LONG)]
    rate, limit = await beside(partial(_rate, short), partial(_rate, long), seconds)
    commands = {"--version": ("--version",), "log": ("log", STREAM, "--last", str(LAST))}
    taken = [{name: timed(long.path, *given) for name, given in commands.items()} for _ in range(RUNS)]
    best = {name: min(each[name] for each in taken) for name in commands}
    for home in (short, long):
        shutil.rmtree(home.path)
    of = f"{LAST} of a stream of {LONG:,}"
    return [
        Row(f"newest {of}", rate, limit, f"of {SHORT:,}", 0.5, 0.9),
        Row(f"log --last {of}", 1 / best["log"], 1 / best["--version"], "--version", 0.4, 0.6),
    ]


async def _home(directory: Path, count: int) -> Home:
    """A home whose log is one stream of ``count`` records."""
    home = Home(directory / f"newest-{count}")
    home.create()
    await build(home.store_path, records(count, turns=count))
    return home


async def _rate(home: Home, seconds: float) -> float:
    """How often in a second the newest records are read."""
    reader = LogReader(home.store_path)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        found, _ = await newest(reader, Filter(streams=(STREAM,)), LAST)
        if len(found) != LAST:
            raise RuntimeError(f"found {len(found)} records of {LAST}")
        count += 1
    taken = time.perf_counter() - start
    await reader.close()
    return count / taken
