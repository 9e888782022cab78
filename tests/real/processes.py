"""Finding and ending a test's processes by a mark in their environment.

OpenCode's tools and a sidecar that the plugin starts are detached: after a kill -9 of OpenCode nothing
else identifies them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

END_LIMIT_S = 10.0
_POLL_S = 0.02


def marked(name: str, value: str) -> list[int]:
    """The ids of all live processes of this user whose environment has ``name=value``, in no order."""
    needle = f"{name}={value}"
    if sys.platform == "linux":
        return [pid for pid in _proc_ids() if needle.encode() in _proc_environment(pid)]
    listing = subprocess.run(["ps", "-axwwE", "-o", "pid=,command="], capture_output=True, text=True, check=True).stdout
    return [int(line.split(None, 1)[0]) for line in listing.splitlines() if needle in line]


def end_marked(name: str, value: str) -> None:
    """SIGKILL every process with the mark and wait until none is left.

    Raises:
        RuntimeError: some are left after ``END_LIMIT_S`` seconds.
    """
    deadline = time.monotonic() + END_LIMIT_S
    while left := marked(name, value):
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes of a test do not end: {left}")
        for pid in left:
            _kill(pid)
        time.sleep(_POLL_S)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it exited in between


def _proc_ids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _proc_environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # gone, or another user's
