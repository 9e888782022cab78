"""Find out whether a process that wrote to us still runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_SLACK_MS: Final = 2000
"""Slack for a process whose start looks later than the time it reported."""


def still_runs(pid: int, told_ms: int) -> bool:
    """True if the process that had this pid at ``told_ms`` (ms since 1970) still runs.

    A process of another user, or one that started later, merely has the same pid. A zombie does not run.
    If the system reports neither (macOS), any process with the pid counts.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError, OverflowError):
        return False
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(
            int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime")
        )
        started_ms = int((boot + int(fields[18]) / os.sysconf("SC_CLK_TCK")) * 1000)
    except (OSError, StopIteration, IndexError, ValueError):
        return True
    return state != "Z" and started_ms <= told_ms + _SLACK_MS
