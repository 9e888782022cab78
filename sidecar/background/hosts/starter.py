"""Starts a headless OpenCode 1 as a child of this process: of the sidecar, or of a command in a terminal.

So it may do what this process may do. Until it opens a directory, no plugin runs in it, and nobody could end it: so the
one that starts it opens the first directory, or else kills it. ``plugin-shim/src/headless.js`` does the same in an
OpenCode.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import os
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sidecar.background.hosts.facts import read_facts
from sidecar.background.hosts.host import HostError
from sidecar.background.hosts.identity import digest, environment_lines, kernel_lines
from sidecar.components import POLL_SECONDS

START_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 2.0


def own_keys(token: str) -> tuple[str, str]:
    """The kernel key and the environment key of this process."""
    variables = environment_lines(os.environ, _directory())
    return digest(token, kernel_lines(read_facts(os.getpid()))), digest(token, variables)


def find_program(program: str = "") -> Path | None:
    """The OpenCode to start: ``program`` if it is still there, or else the one on the PATH."""
    found = program if program and os.access(program, os.X_OK) else shutil.which("opencode")
    return Path(found) if found else None


class Started:
    """A headless OpenCode that this process started."""

    def __init__(self, program: Path, name: str, home: Path, password: str) -> None:
        """Start it, with ``name`` as its id. Blocks briefly.

        Raises:
            HostError: the program does not start.
        """
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        own = {"OPENCODE_SERVER_PASSWORD": password, "DURABLE_STREAM_HOME": str(home), "DURABLE_STREAM_HEADLESS": name}
        variables = {**os.environ, **own}
        for other in ("OPENCODE_PID", "OPENCODE_SERVER_USERNAME"):
            variables.pop(other, None)
        self._login = base64.b64encode(f"opencode:{password}".encode()).decode()
        try:
            self.process = subprocess.Popen(  # noqa: S603 - no shell, and the program that the user runs
                [str(program), "serve", "--hostname", "127.0.0.1", "--port", str(self._port)],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(f"{program} does not start: {error.strerror}") from None

    async def open(self, directory: str) -> None:
        """Wait until it serves, and open a directory in it.

        Raises:
            HostError: it ended, or did not open the directory, and was killed.
        """
        try:
            async with asyncio.timeout(START_SECONDS):
                while await self._ask("/global/health", _ANSWER_SECONDS) != 200:
                    if self.process.poll() is not None:
                        raise HostError(f"the headless OpenCode ended with code {self.process.returncode}")
                    await asyncio.sleep(POLL_SECONDS)
            where = {"x-opencode-directory": quote(directory, safe="/")}
            status = await self._ask("/session?limit=1", START_SECONDS, where)
            if status != 200:
                raise HostError(f"the headless OpenCode did not open {directory} (HTTP status {status})")
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            if isinstance(error, TimeoutError):
                raise HostError("the headless OpenCode did not answer") from None
            raise

    async def _ask(self, path: str, seconds: float, headers: dict[str, str] | None = None) -> int:
        """The status of the answer; 0 if there was none. OpenCode may never answer a request that comes too early."""
        given: dict[str, Any] = {"Authorization": f"Basic {self._login}", **(headers or {})}

        def ask() -> int:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=seconds)
            try:
                connection.request("GET", path, headers=given)
                return connection.getresponse().status
            except (OSError, http.client.HTTPException):
                return 0
            finally:
                connection.close()

        return await asyncio.to_thread(ask)


def _directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""  # it was removed
