"""The command line: how long a command takes to start."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import Row

STARTS = 9


async def measure(directory: Path, seconds: float) -> list[Row]:
    """The median of nine starts of ``--help``; the files are in the cache after the first."""
    taken = []
    for _ in range(STARTS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "sidecar.cli", "--help"], check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
    return [Row("start of a command (--help)", statistics.median(taken), None, "s", 0.35, 0.15)]
