"""The repairs of ``doctor --fix``: one for each action that a check may name."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from sidecar.care.checks.check import Fix
from sidecar.home import Home
from sidecar.install.npm import ConfigDirectories
from sidecar.install.plugin import RESTART, Target, install, prepare, shim_path
from sidecar.private_files import HomeError


async def mend(home: Home, command: Sequence[str], fix: Fix) -> str:
    """Apply a fix and return one line that says what was done. Idempotent.

    Raises:
        HomeError, Failure, ClientError, OSError: the fix failed; the fault remains.
    """
    config_directories = ConfigDirectories.of(Path.cwd())
    match fix.action:
        case "install":
            # Refuse a directory that is not a home, because the installed plugin would write its spool there.
            home.check_kind()
            target = Target("global" if fix.path == config_directories.user else "project", fix.path)
            done = install(target, shim=shim_path(), command=command, home=home.path)
            return "; ".join([*done.lines, RESTART])
        case "prepare":
            done = prepare(config_directories, [fix.path])
            if not done.lines:
                raise HomeError(fix.path, "there was nothing to mend", "see docs/operations.md")
            return "; ".join(done.lines)
        case "close":
            fix.path.chmod(0o700)
            return f"made {fix.path} accessible only to you"
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
        # The sidecar keeps the old token in memory, so plugins that read the new token could not connect.
        raise HomeError(
            home.token_path,
            "a running sidecar is using it",
            "run `durable-stream stop`, then `durable-stream doctor --fix` again",
        )
    if os.path.lexists(home.token_path):
        home.token_path.unlink()
    return f"removed {home.token_path}; the next start of the sidecar creates a new one"


async def _take_spools(home: Home) -> str:
    from sidecar.link.launch import ensure_running

    info = await ensure_running(home)
    return f"started a sidecar (pid {info.pid}), which records the spool and exits when idle"
