"""Start a sidecar in the background, for commands that need one."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from sidecar.home import Home, SidecarInfo
from sidecar.link.client import LinkUnavailable

START_SECONDS: Final = 20.0
"""How long a sidecar may take to open its log and listen."""

_POLL_SECONDS: Final = 0.02

_CODE: Final = re.compile(r" \[[a-z-]+\]$")


def command(home: Home) -> list[str]:
    """The command line that runs a sidecar for ``home`` from this installation."""
    return [sys.executable, "-m", "sidecar.cli", "--home", str(home.path), "serve", "--idle-exit"]


class LastWords:
    """The stderr of the sidecars that this process starts.

    The text says why a sidecar ended, even if a full disk keeps the reason out of its log.

    The methods block briefly. The text stays empty if no temporary file can be created.
    """

    def __init__(self) -> None:
        self.file: IO[bytes] | None = None
        with suppress(OSError):
            self.file = tempfile.TemporaryFile()  # noqa: SIM115 - a running sidecar keeps it open too

    def __str__(self) -> str:
        """The last line, without the program's name and code; empty if there is none."""
        if self.file is None:
            return ""
        self.file.seek(0)
        lines = self.file.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "").strip()
        return _CODE.sub("", last.removeprefix("durable-stream: "))  # the error that quotes this line has its own code

    @property
    def size(self) -> int:
        """How many bytes the sidecars have written so far."""
        return 0 if self.file is None else os.fstat(self.file.fileno()).st_size

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def spawn(home: Home, words: LastWords) -> subprocess.Popen[bytes]:
    """Start a sidecar that outlives this process. It exits when idle, or at once if another one runs."""
    return subprocess.Popen(  # noqa: S603 - our own command, no shell
        command(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=words.file or subprocess.DEVNULL,
        start_new_session=True,
        cwd=Path("/"),
    )


async def ensure_running(home: Home, seconds: float | None = None, words: LastWords | None = None) -> SidecarInfo:
    """Return the running sidecar of ``home``; start one if there is none. ``words`` collects the stderr of a started
    sidecar.

    Raises:
        LinkUnavailable: the sidecar did not start in time, or ended; the error gives its reason or names its log.
        HomeError: the path belongs to another user or is not a home, or a process that is not a sidecar holds it.
    """
    home.check_owner()
    home.check_kind()
    seconds = START_SECONDS if seconds is None else seconds
    if words is not None:
        return await _up(home, seconds, words)
    words = LastWords()
    try:
        return await _up(home, seconds, words)
    finally:
        words.close()


async def _up(home: Home, seconds: float, words: LastWords) -> SidecarInfo:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    process: subprocess.Popen[bytes] | None = None
    while True:
        info = home.running()
        if info is not None:
            _let_live(process)
            return info
        if process is None or process.poll() not in (None, 0):
            if process is not None:
                raise LinkUnavailable(*ended(home, f"right after it started (exit code {process.returncode})", words))
            process = spawn(home, words)
        if loop.time() > deadline:
            _let_live(process)
            home.refuse_locked()  # a sidecar that hangs may hold the lock
            raise LinkUnavailable(
                f"the sidecar for {home.path} did not start within {seconds:g} s", f"read {home.log_path} to see why"
            )
        await asyncio.sleep(_POLL_SECONDS)


def _let_live(process: subprocess.Popen[bytes] | None) -> None:
    """Keep Popen from warning when it is garbage-collected, because the sidecar outlives this process on purpose."""
    if process is not None:
        process.returncode = 0


def ended(home: Home, when: str, words: LastWords) -> tuple[str, str]:
    """The reason and the hint for the error about a sidecar that ended."""
    said = str(words)
    if said:
        reason, _, hint = said.partition("; ")
        return f"the sidecar for {home.path} ended {when}: {reason}", hint or f"read {home.log_path}"
    hint = f"run `durable-stream serve` to see why, or read {home.log_path}"
    return f"the sidecar for {home.path} ended {when}", hint
