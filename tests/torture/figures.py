"""Figures counted by torture tests, for the table of ``make torture``; ``make test`` ignores them.

``TORTURE_FIGURES`` names the file, ``TORTURE_SEED`` the seed of everything random here.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.streams.sizes import size

SEED = size("SEED", 1)

MAX_GROWTH_MIB = 50
"""How much a process's memory may grow during any part."""


def note(part: str, **figures: float) -> None:
    """Add one line of figures to the file. ``rss_*`` are in MiB, ``*_ms`` and ``*_s`` are times."""
    name = os.environ.get("TORTURE_FIGURES")
    if name:
        with Path(name).open("a") as file:
            file.write(json.dumps({"part": part, **{key: round(value, 4) for key, value in figures.items()}}) + "\n")


def seeded(what: str) -> Random:
    """The random generator of one test, the same in every run with the same seed."""
    return Random(f"{what}:{SEED}")


def percentile(values: Sequence[float], part: float) -> float:
    """The quantile ``part`` (0 to 1) of the values; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


def rss_mib(pid: int | None = None) -> float:
    """The memory of a process, by default this one."""
    pid = pid or os.getpid()
    if sys.platform == "linux":
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    found = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(found.stdout) / 1024


def held_mib() -> float:
    """This process's memory after it has returned all free memory to the system."""
    gc.collect()
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return rss_mib()
