"""The limits that our rates are compared with, and how to measure them side by side.

Machines are noisy and the noise comes in bursts, so the work and its limit
alternate in short slices, and the medians are compared.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from pathlib import Path

ROUNDS = 5
RESAMPLED = 2000
ROW_BYTES = 1024
GROUP = 64


def raw_rate(directory: Path, seconds: float) -> float:
    """R: writes of 1 KiB per second, each followed by its own sync."""
    return _raw(directory / "raw", 1, seconds)


def raw_group_rate(directory: Path, seconds: float) -> float:
    """Lines of 1 KiB per second, 64 in one write with one sync: the upper bound of a group commit."""
    return _raw(directory / "raw-groups", GROUP, seconds)


def _raw(path: Path, group: int, seconds: float) -> float:
    lines = (b"x" * (ROW_BYTES - 1) + b"\n") * group
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    count, start = 0, time.perf_counter()
    try:
        while time.perf_counter() - start < seconds:
            os.write(fd, lines)
            os.fdatasync(fd)
            count += group
        return count / (time.perf_counter() - start)
    finally:
        os.close(fd)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return how quick our work is, as a ratio to theirs, with the interval that holds it with 95% confidence.

    ``ours[n]`` and ``theirs[n]`` are the seconds of a pair, measured soon after each other. The ratio is the median of
    the pairs, and the interval comes from resampling them.
    """
    logs = [math.log(other / own) for own, other in zip(ours, theirs, strict=True)]
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(logs, k=len(logs))) for _ in range(RESAMPLED))
    low, high = medians[RESAMPLED // 40], medians[-1 - RESAMPLED // 40]
    return math.exp(statistics.median(logs)), (math.exp(low), math.exp(high))


async def beside(
    limit: Callable[[float], float | Awaitable[float]], work: Callable[[float], Awaitable[float]], seconds: float
) -> tuple[float, float]:
    """Return (rate, limit), medians over ``ROUNDS`` rounds of alternating slices."""

    async def measured(slice_: float) -> float:
        found = limit(slice_)
        return await found if isawaitable(found) else found

    rates, limits = [], []
    for _ in range(ROUNDS):
        limits.append(await measured(seconds / ROUNDS / 2))
        rates.append(await work(seconds / ROUNDS))
        limits.append(await measured(seconds / ROUNDS / 2))
    return statistics.median(rates), statistics.median(limits)
