"""One process of the embedded server: starts it, learns its port, and ends it.

This module also ends a process that a dead sidecar left behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from sidecar.home import is_alive
from sidecar.private_files import HomeError, check_file, check_tree, open_file, private_directory
from streams.system.files import write_durably

PID_FILE: Final = "server.json"
CONFIG_FILE: Final = "server.conf"
LOG_FILE: Final = "server.log"
PORTS: Final = "ports"
STORE: Final = "store"

_LOOK_SECONDS: Final = 0.02
_SAID_BYTES: Final = 8192
_TROUBLE: Final = re.compile(r"\[(?:FTL|ERR)\] (.*)")


class StartFailed(Exception):
    """The server did not start, or exited before it was ready; the text says why."""

    code: ClassVar[str] = "nats-start-failed"


class ServerProcess:
    """A running process, its directory, and the output that it printed before opening its log."""

    def __init__(self, process: asyncio.subprocess.Process, directory: Path, log_offset: int) -> None:
        self._process, self._directory, self._log_offset = process, directory, log_offset
        self._said: deque[bytes] = deque(maxlen=16)
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, executable: Path, directory: Path, config: str) -> ServerProcess:
        """Write the configuration and start the program. The directory must exist and be used by no other server.

        Raises:
            StartFailed: a file cannot be written or is a link, or the program cannot be run.
        """
        ports, log_file = directory / PORTS, directory / LOG_FILE
        try:
            private_directory(ports)
            private_directory(directory / STORE)
            # Check these files, because the server opens them by name and follows links. Nobody else can add a link
            # later, because the directories have mode 0700.
            check_tree(directory / STORE)
            check_file(log_file)
            for stale in ports.iterdir():
                stale.unlink()
            write_durably(directory / CONFIG_FILE, config.encode())
            offset = log_file.stat().st_size if log_file.exists() else 0
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                Path(__file__).with_name("child.py"),
                str(os.getpid()),
                executable,
                "-c",
                directory / CONFIG_FILE,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                cwd="/",
                env={name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ},
                start_new_session=True,
                umask=0o077,
            )
        except HomeError as error:
            raise StartFailed(str(error)) from None
        except OSError as error:
            name = error.filename or executable
            raise StartFailed(f"{name}: {error.strerror}") from None
        made = cls(process, directory, offset)
        try:
            write_durably(directory / PID_FILE, json.dumps({"pid": process.pid}).encode() + b"\n")
        except OSError as error:
            await made.end(0)
            raise StartFailed(f"{error.filename}: {error.strerror}") from None
        return made

    @property
    def pid(self) -> int:
        return self._process.pid

    async def port(self) -> int:
        """Wait until the server listens; return the port.

        Raises:
            StartFailed: the server exited instead; the text is the reason that the server gave.
        """
        while True:
            if self._process.returncode is not None:
                raise StartFailed(await self.last_words())
            for path in (self._directory / PORTS).glob(f"*_{self.pid}.ports"):
                with suppress(ValueError, LookupError, TypeError), os.fdopen(open_file(path), "rb") as file:
                    # If the server has not written the whole file yet, parsing fails and the loop looks again.
                    return int(json.loads(file.read())["nats"][0].rpartition(":")[2])
            await asyncio.sleep(_LOOK_SECONDS)

    async def exited(self) -> None:
        """Return when the process has ended, for any reason. Cancelling is safe."""
        await self._process.wait()

    async def end(self, patience_seconds: float) -> None:
        """End the process with SIGTERM, and after a while with SIGKILL. Idempotent; a cancellation kills the process at
        once."""
        try:
            if patience_seconds > 0 and self._process.returncode is None:
                with suppress(ProcessLookupError):
                    self._process.terminate()
                with suppress(TimeoutError):
                    async with asyncio.timeout(patience_seconds):
                        await self._process.wait()
        finally:
            if self._process.returncode is None:
                with suppress(ProcessLookupError):
                    self._process.kill()
            await self._process.wait()
            self._listening.cancel()
            (self._directory / PID_FILE).unlink(missing_ok=True)

    async def last_words(self) -> str:
        """The reason for exiting that the server gave, in one line; without one, the exit code or the signal."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.shield(self._listening)
        said = b"".join(self._said).decode("utf-8", "replace")
        code = self._process.returncode
        if code == -signal.SIGKILL:
            return "killed by signal 9"  # the server's earlier output cannot explain a kill
        found = _TROUBLE.findall(_tail(self._directory / LOG_FILE, self._log_offset)) or said.strip().splitlines()[:1]
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return f"{found[-1][:300]} ({how})" if found else how

    async def _listen(self) -> None:
        # The server writes its first few lines to stderr, then to its log file. An unread pipe would block it.
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(1024):
            self._said.append(chunk)


def clear_orphan(directory: Path, patience_seconds: float) -> int | None:
    """End the server that a dead sidecar left running in ``directory``; return the server's pid, or ``None`` if there
    was none.

    Ends only a process of this user that was started with this directory's configuration file, because the system may
    have reused the pid. The caller holds the home's lock. Blocks.

    Raises:
        StartFailed: the old server does not end, and two servers would damage the store.
    """
    path = directory / PID_FILE
    try:
        with os.fdopen(open_file(path), "rb") as file:
            pid = json.loads(file.read())["pid"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError):
        pid = 0
    if type(pid) is not int or pid <= 1 or not _is_ours(pid, directory):
        path.unlink(missing_ok=True)
        return None
    for number, patience in ((signal.SIGTERM, patience_seconds), (signal.SIGKILL, 10.0)):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        if _gone(pid, directory, patience):
            path.unlink(missing_ok=True)
            return pid
    raise StartFailed(f"an older NATS server (pid {pid}) of this home does not exit; stop it with `kill`")


def _gone(pid: int, directory: Path, seconds: float) -> bool:
    import time

    deadline = time.monotonic() + seconds
    while is_alive(pid) and _is_ours(pid, directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _is_ours(pid: int, directory: Path) -> bool:
    config = str(directory / CONFIG_FILE)
    if sys.platform == "linux":
        try:
            place = Path("/proc") / str(pid)
            words = (place / "cmdline").read_bytes().split(b"\0")
            # A zombie process has no command line, so it does not count as a running server.
            return place.stat().st_uid == os.geteuid() and os.fsencode(config) in words
        except OSError:
            return False
    command = ["/bin/ps", "-ww", "-o", "uid=,command=", "-p", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603 - a list, no shell
    except (OSError, subprocess.TimeoutExpired):
        return False
    uid, _, line = done.stdout.strip().partition(" ")
    return uid == str(os.geteuid()) and line.rstrip().endswith(f"-c {config}")


def _tail(path: Path, offset: int) -> str:
    try:
        with os.fdopen(open_file(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            # If the file is smaller than the offset, it was rotated, so read it from its beginning.
            file.seek(max(offset if offset <= size else 0, size - _SAID_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
