"""Starting a sidecar in the background, for commands that need one running."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Final

from sidecar.client import LinkUnavailable
from sidecar.home import Home, SidecarInfo

START_SECONDS: Final = 20.0
"""How long a sidecar may take to open its log and listen."""

_POLL_SECONDS: Final = 0.02


def command(home: Home) -> list[str]:
    """The command line that runs a sidecar for ``home`` with this very installation."""
    return [sys.executable, "-m", "sidecar.cli", "--home", str(home.path), "serve", "--idle-exit"]


def spawn(home: Home) -> subprocess.Popen[bytes]:
    """Start a sidecar that outlives us and leaves when idle. If one runs already, the new one ends at once."""
    return subprocess.Popen(  # noqa: S603 - our own command, no shell
        command(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=Path("/"),
    )


async def ensure_running(home: Home, seconds: float = START_SECONDS) -> SidecarInfo:
    """The running sidecar of ``home``, started if there is none.

    Raises:
        LinkUnavailable: it did not come up in time; the hint names its log.
        HomeError: the home belongs to another user.
    """
    home.check_owner()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    process: subprocess.Popen[bytes] | None = None
    while True:
        info = home.running()
        if info is not None:
            if process is not None:
                process.returncode = 0  # it outlives us on purpose; without this Popen warns when it is collected
            return info
        if process is None or process.poll() not in (None, 0):
            if process is not None:
                raise LinkUnavailable(
                    f"the sidecar for {home.path} ended with exit code {process.returncode} right after its start",
                    f"run `durable-stream serve` to see why, or read {home.log_path}",
                )
            process = spawn(home)
        if loop.time() > deadline:
            raise LinkUnavailable(
                f"the sidecar for {home.path} did not come up within {seconds:g} s", f"read {home.log_path}"
            )
        await asyncio.sleep(_POLL_SECONDS)
