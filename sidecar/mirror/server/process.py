"""One process of the embedded server: starts it, learns its port, and ends it.

This module also ends a process that a dead sidecar left behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from sidecar.mirror.server.executable import StartFailed
from sidecar.private_files import HomeError, check_file, check_tree, open_file, private_directory
from streams.system.files import write_durably
from streams.system.locks import is_held, take

LOCK_FILE: Final = "server.lock"
CONFIG_FILE: Final = "server.conf"
LOG_FILE: Final = "server.log"
PORTS: Final = "ports"
STORE: Final = "store"

_LOOK_SECONDS: Final = 0.02
_KILL_SECONDS: Final = 10.0
_SAID_BYTES: Final = 8192
_TROUBLE: Final = re.compile(r"\[(?:FTL|ERR)\] (.*)")
_PLAIN: Final = re.compile(r"^(?!\[)\S.*", re.MULTILINE)
"""A line that the program printed before it opened its log, or when it crashed."""


class ServerProcess:
    """A running process, its directory, and the size that its log had before."""

    def __init__(self, process: asyncio.subprocess.Process, directory: Path, log_offset: int) -> None:
        self._process, self._directory, self._log_offset = process, directory, log_offset

    @classmethod
    async def start(cls, executable: Path, directory: Path, config: str) -> ServerProcess:
        """Write the configuration and start the program. The directory must exist and be used by no other server.

        Raises:
            StartFailed: a file cannot be written or is a link, or the program cannot be run.
        """
        ports, log_file, lock_file = directory / PORTS, directory / LOG_FILE, directory / LOCK_FILE
        try:
            private_directory(ports)
            private_directory(directory / STORE)
            # Check these files, because the server opens them by name and follows links. Nobody else can add a link
            # later, because the directories have mode 0700.
            check_tree(directory / STORE)
            check_file(log_file)
            check_file(lock_file)
            for stale in ports.iterdir():
                stale.unlink()
            write_durably(directory / CONFIG_FILE, config.encode())
            with _appending(log_file) as said, _appending(lock_file) as lock:
                if not take(lock.fileno()):
                    raise StartFailed("another NATS server of this home is running")
                offset = said.tell()
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-I",
                    "-S",
                    Path(__file__).with_name("child.py"),
                    str(os.getpid()),
                    str(lock.fileno()),
                    executable,
                    "-c",
                    directory / CONFIG_FILE,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=said,
                    pass_fds=(lock.fileno(),),
                    cwd="/",
                    env={name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ},
                    start_new_session=True,
                    umask=0o077,
                )
        except HomeError as error:
            raise StartFailed(str(error)) from None
        except OSError as error:
            raise StartFailed(f"{error.filename or executable}: {error.strerror}") from None
        return cls(process, directory, offset)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def port(self) -> int:
        """Wait until the server listens; return the port.

        Raises:
            StartFailed: the server exited instead; the text is the reason that the server gave.
        """
        while not await self.exits(_LOOK_SECONDS):
            for path in (self._directory / PORTS).glob(f"*_{self.pid}.ports"):
                with suppress(ValueError, LookupError, TypeError), os.fdopen(open_file(path), "rb") as file:
                    # If the server has not written the whole file yet, parsing fails and the loop looks again.
                    return int(json.loads(file.read())["nats"][0].rpartition(":")[2])
        raise StartFailed(self.last_words())

    async def exits(self, seconds: float) -> bool:
        """Whether the process ends within this time. Cancelling is safe."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._process.wait()
        return self._process.returncode is not None

    async def end(self, patience_seconds: float) -> None:
        """End the process with SIGTERM, and after a while with SIGKILL. Idempotent; a cancellation kills the process at
        once."""
        try:
            with suppress(ProcessLookupError):
                self._process.terminate()
                await self.exits(patience_seconds)
        finally:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def last_words(self) -> str:
        """The reason for exiting that the server gave, in one line; without one, the exit code or the signal."""
        code = self._process.returncode
        if code == -signal.SIGKILL:
            return "killed by signal 9"  # the server's earlier output cannot explain a kill
        said = _tail(self._directory / LOG_FILE, self._log_offset)
        found = _TROUBLE.findall(said)[-1:] or _PLAIN.findall(said)[:1]
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return f"{found[0][:300]} ({how})" if found else how


async def clear_orphan(directory: Path, patience_seconds: float) -> int | None:
    """End the server that a dead sidecar left running in ``directory``; return the server's pid, or ``None`` if there
    was none.

    A server holds the lock of ``server.lock``, which says its pid. The caller holds the home's lock.

    Raises:
        StartFailed: the old server does not end, and two servers would damage the store.
    """
    pid = None
    try:
        lock = open_file(directory / LOCK_FILE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartFailed(f"{error.filename}: {error.strerror}") from None
    try:
        for number, patience in ((signal.SIGTERM, patience_seconds), (signal.SIGKILL, _KILL_SECONDS)):
            if not is_held(lock):
                return pid
            with suppress(ValueError, ProcessLookupError):
                pid = int(os.pread(lock, 20, 0))
                os.kill(pid, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    while is_held(lock):  # noqa: ASYNC110 - another process frees it
                        await asyncio.sleep(_LOOK_SECONDS)
        if not is_held(lock):
            return pid
    finally:
        os.close(lock)
    raise StartFailed(f"an older NATS server (pid {pid}) of this home does not exit; stop it with `kill`")


def _appending(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600), "ab")


def _tail(path: Path, offset: int) -> str:
    try:
        with os.fdopen(open_file(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            # If the file is smaller than the offset, it was rotated, so read it from its beginning.
            file.seek(max(offset if offset <= size else 0, size - _SAID_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
