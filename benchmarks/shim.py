"""The shim: how long one hook blocks OpenCode, with the sidecar up, absent and hung."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import orjson

from benchmarks.link import sidecar
from benchmarks.report import Row
from sidecar.home import Home
from tools.install_opencode import binary_path

HERE = Path(__file__).parent
SHIM = HERE.parent / "plugin-shim" / "src" / "plugin.js"
HOOKS = 4000
LIMIT_S = 120


async def cost(home: Path) -> float:
    """Return the mean microseconds per hook."""
    process = await asyncio.create_subprocess_exec(
        str(binary_path()),
        str(HERE / "shim.mjs"),
        str(SHIM),
        str(home),
        str(HOOKS),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "BUN_BE_BUN": "1", "DURABLE_STREAM": ""},
    )
    async with asyncio.timeout(LIMIT_S):
        printed, _ = await process.communicate()
    return float(orjson.loads(printed)["mean"])


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure with the sidecar in three states."""
    taken: dict[str, float] = {}
    up = Home(directory / "shim-up")
    async with sidecar(up):
        taken["up"] = await cost(up.path)
    absent = Home(directory / "shim-absent")
    absent.create()
    taken["absent"] = await cost(absent.path)
    hung = Home(directory / "shim-hung")
    async with sidecar(hung) as process:
        process.send_signal(signal.SIGSTOP)
        taken["hung"] = await cost(hung.path)
    path = "time that a hook blocks OpenCode, sidecar"
    return [Row(f"{path} {state}", us, None, "µs", 13, 8) for state, us in taken.items()]
