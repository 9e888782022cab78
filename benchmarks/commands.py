"""The command line: how long a command takes, compared with one that does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import Row

STARTS = 15
RECORDING = Path(__file__).parents[1] / "sidecar" / "record" / "recordings" / "demo.jsonl"

COMMANDS = (("streams", 0.64, 0.8), ("log", 0.64, 0.8), ("status", 0.64, 0.8), ("doctor", 0.16, 0.3))
"""Reading commands, each with floor and aim of ``--version``'s time divided by its own: 0.16 s / 0.25 s (``doctor``:
0.16 s / 1 s)."""


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure the best of fifteen alternating runs on a home of ordinary size with its sidecar; all files are cached.

    The best run counts, because other work on the machine can only make a run of a tenth of a second longer.
    """
    home = directory / "ordinary"
    home.mkdir(mode=0o700)
    timed(home, "play", str(RECORDING), "--speed", "max")
    taken: dict[str, list[float]] = {name: [] for name in ("--help", "--version", *(name for name, _, _ in COMMANDS))}
    try:
        for name in taken:
            # The first run of each command is not measured, because it also writes the bytecode.
            timed(home, name)
        for _ in range(STARTS):
            for name, times in taken.items():
                times.append(timed(home, name))
    finally:
        timed(home, "stop")
    best = {name: min(times) for name, times in taken.items()}
    rows = [Row("start of a command (--help)", best["--help"], None, "s", 0.35, 0.15)]
    return rows + [
        Row(f"{name}, an ordinary home", 1 / best[name], 1 / best["--version"], "--version", floor, aim)
        for name, floor, aim in COMMANDS
    ]


def timed(home: Path, *arguments: str) -> float:
    """How many seconds a command takes, whatever its exit code."""
    environment = os.environ | {"DURABLE_STREAM_HOME": str(home), "PYTHONPYCACHEPREFIX": str(home.parent / "bytecode")}
    # Let Python write bytecode, as it does for an installed package, so that only the first run compiles the modules.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "sidecar.cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )  # the exit code is not checked, because `doctor` exits with 1 if no plugin is installed
    return time.perf_counter() - start
