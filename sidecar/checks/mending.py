"""What ``doctor --fix`` does: one small repair for each action that a check may name."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from sidecar.checks.check import Fix
from sidecar.home import Home, HomeError
from sidecar.install.npm import Places
from sidecar.install.plugin import Target, install, prepare, shim_path


async def mend(home: Home, command: Sequence[str], fix: Fix) -> str:
    """Do it; what was done, as a line for a person. Doing it again changes nothing.

    Raises:
        HomeError, InstallError, ClientError, OSError: it cannot be done; what was wrong still is.
    """
    places = Places.of(Path.cwd())
    match fix.action:
        case "install":
            home.check_kind()  # a plugin would write its spool there
            target = Target("global" if fix.path == places.user else "project", fix.path)
            done = install(target, shim=shim_path(), command=command, home=home.path)
            return "; ".join([*done.lines, "restart OpenCode"])
        case "prepare":
            done = prepare(places, [fix.path])
            if not done.lines:
                raise HomeError(fix.path, "nothing could be done there", "see docs/operations.md")
            return "; ".join(done.lines)
        case "close":
            fix.path.chmod(0o700)
            return f"closed {fix.path} to others"
        case "unlock":
            return _unlock(fix.path)
        case "renew token":
            return _renew_token(home)
        case "take spools":
            return await _take_spools(home)


def _unlock(path: Path) -> str:
    path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IRWXU)
    return f"made {path} writable"


def _renew_token(home: Home) -> str:
    if home.running() is not None:
        # It holds the old one: plugins and sidecar would no longer know each other.
        raise HomeError(home.token_path, "a sidecar runs with it", "run `durable-stream stop`, then doctor --fix again")
    if os.path.lexists(home.token_path):
        home.token_path.unlink()
    return f"removed {home.token_path}; the next start of the sidecar writes a new one"


async def _take_spools(home: Home) -> str:
    from sidecar.launch import ensure_running

    info = await ensure_running(home)
    return f"started a sidecar (pid {info.pid}), which takes in what waits and leaves when idle"
