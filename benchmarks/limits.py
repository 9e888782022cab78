"""The limits that ratios are held against, and how to measure beside them.

Machines are noisy and their noise comes in spells, so the work and its limit
take turns in short slices and the medians are compared.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

ROUNDS = 5


def raw_rate(directory: Path, seconds: float) -> float:
    """R: writes of 1 KiB a second, each followed by its own sync."""
    line = b"x" * 1023 + b"\n"
    fd = os.open(directory / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    count, start = 0, time.perf_counter()
    try:
        while time.perf_counter() - start < seconds:
            os.write(fd, line)
            os.fdatasync(fd)
            count += 1
        return count / (time.perf_counter() - start)
    finally:
        os.close(fd)


async def beside(
    limit: Callable[[float], float], work: Callable[[float], Awaitable[float]], seconds: float
) -> tuple[float, float]:
    """(rate, limit): medians of ``ROUNDS`` slices each, taken in turns."""
    rates, limits = [], []
    for _ in range(ROUNDS):
        limits.append(limit(seconds / ROUNDS / 2))
        rates.append(await work(seconds / ROUNDS))
        limits.append(limit(seconds / ROUNDS / 2))
    return statistics.median(rates), statistics.median(limits)
