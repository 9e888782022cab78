"""The sidecar's own headless OpenCode 1, in which phantoms run: ``opencode serve`` on loopback, behind a password.

This OpenCode is started when it is first needed, and it outlives the sidecar: its plugin links back, and the next
sidecar finds it through ``headless.json``. The headless OpenCode gets the environment of the OpenCode that asked for
the work, or else of the OpenCode that linked last. If neither environment can be read, as on macOS, the headless
OpenCode gets the environment of the sidecar. It is stopped after two minutes without work.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from sidecar.home import Home
from sidecar.processes import still_runs
from streams.files import write_durably

log = logging.getLogger("sidecar.orchestrator")

START_SECONDS: Final = 60.0
LINK_SECONDS: Final = 30.0
KEPT_PROCESSES: Final = 8
"""How many OpenCode processes are remembered."""
_POLL_SECONDS: Final = 0.05
_REQUEST_SECONDS: Final = 2.0


class HeadlessError(Exception):
    """The headless OpenCode cannot be started or reached; the text says why."""


class OpenCodeProcess(NamedTuple):
    """An OpenCode process: its program (``None`` if it cannot be read) and its environment (empty if it cannot be
    read)."""

    executable: Path | None
    environment: dict[str, str]


class Headless:
    """The headless OpenCode: one process, which serves all directories. ``links`` returns the open links;
    ``executable`` names the program to use. ``has_plugin`` says whether an OpenCode loads the plugin if it starts in a
    given directory with a given environment.
    """

    def __init__(
        self,
        home: Home,
        links: Callable[[], Iterable[Any]],
        nonce: Callable[[], str],
        now_ms: Callable[[], int],
        executable: Path | None = None,
        has_plugin: Callable[[Path, Mapping[str, str]], bool] = lambda _directory, _environ: True,
    ) -> None:
        self._home, self._links, self._nonce, self._now_ms = home, links, nonce, now_ms
        self._executable, self._has_plugin = executable, has_plugin
        self._file = home.path / "headless.json"
        self._info: dict[str, Any] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = asyncio.Lock()
        self._known: dict[int, OpenCodeProcess] = {}

    @property
    def pid(self) -> int | None:
        """The id of the OpenCode process, if that process is running."""
        info = self._running()
        return info["pid"] if info is not None else None

    async def link(self, directory: str, pid: int | None) -> Any:
        """The link to the headless OpenCode for a directory; starts that OpenCode if needed. ``pid`` is the OpenCode
        that asked for the work.

        Raises:
            HeadlessError: the headless OpenCode did not start, or did not link back.
        """
        async with self._starting:
            info = self._running()
            if info is None:
                info = await self._start(pid)
        found = self._linked(info["pid"], directory)
        if found is None:
            await asyncio.to_thread(_ask, info, f"/session?directory={quote(directory, safe='')}&limit=1", directory)
            found = await self._until_linked(info["pid"], directory)
        return found

    def never_links(self, directory: str) -> bool:
        """Whether no OpenCode is linked and an OpenCode that starts for a directory would not load the plugin."""
        if any(link.is_open for link in self._links()):
            return False
        return not self._has_plugin(Path(directory), self._asking(None).environment or os.environ)

    async def stop(self) -> None:
        """End the process, if it is running."""
        info = self._running()
        self._info = None
        if info is not None:
            try:
                os.kill(info["pid"], signal.SIGTERM)
            except ProcessLookupError:
                log.info("the headless OpenCode is no longer running")
        self._file.unlink(missing_ok=True)

    def _running(self) -> dict[str, Any] | None:
        if self._info is None:
            try:
                self._info = json.loads(self._file.read_text())
            except (OSError, ValueError):
                return None
        if self._process is not None:
            self._process.poll()  # without ``poll``, a dead child process would stay a zombie
        if not still_runs(self._info["pid"], self._info["started_ms"]):
            self._info = None
        return self._info

    def _linked(self, pid: int, directory: str) -> Any:
        return next((k for k in self._links() if k.is_open and k.pid == pid and k.directory == directory), None)

    async def _until_linked(self, pid: int, directory: str) -> Any:
        deadline = asyncio.get_running_loop().time() + LINK_SECONDS
        while (found := self._linked(pid, directory)) is None:
            if asyncio.get_running_loop().time() > deadline:
                raise HeadlessError(
                    f"the plugin of the headless OpenCode did not connect to the sidecar for {directory}"
                )
            await asyncio.sleep(_POLL_SECONDS)
        return found

    async def _start(self, pid: int | None) -> dict[str, Any]:
        asking = await asyncio.to_thread(self._asking, pid)
        executable = self._executable or next(filter(_runs, (asking.executable, self._last())), None) or _on_path()
        if executable is None:
            raise HeadlessError("no `opencode` was found; set `executable` in [phantom] in config.toml")
        port, password = _free_port(), self._nonce()
        environment = {
            **(asking.environment or os.environ),
            "OPENCODE_SERVER_PASSWORD": password,
            "DURABLE_STREAM_HOME": str(self._home.path),
            "DURABLE_STREAM_HEADLESS": "1",
        }
        environment.pop("OPENCODE_SERVER_USERNAME", None)
        process = self._process = await asyncio.to_thread(
            subprocess.Popen,
            [str(executable), "serve", "--hostname", "127.0.0.1", "--port", str(port)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        info = {
            "pid": process.pid,
            "started_ms": self._now_ms(),
            "port": port,
            "password": password,
            "executable": str(executable),
        }
        await asyncio.to_thread(write_durably, self._file, json.dumps(info).encode())
        self._info = info
        log.info("started a headless OpenCode, pid %d", process.pid)
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while not await asyncio.to_thread(_answers, info):
            if process.poll() is not None:
                self._info = None
                raise HeadlessError(f"the headless OpenCode ended with code {process.returncode}")
            if asyncio.get_running_loop().time() > deadline:
                raise HeadlessError("the headless OpenCode did not answer")
            await asyncio.sleep(_POLL_SECONDS)
        return info

    def know(self, pid: int) -> None:
        """Remember an OpenCode 1 that linked, because its process may have ended when its background work begins. The
        environment is kept only in memory.
        """
        found = _opencode_process(pid)
        if found.environment and "DURABLE_STREAM_HEADLESS" not in found.environment:
            self._known.pop(pid, None)
            self._known[pid] = found
            while len(self._known) > KEPT_PROCESSES:
                del self._known[next(iter(self._known))]

    def _asking(self, pid: int | None) -> OpenCodeProcess:
        """The OpenCode that asked, or else the one that linked last."""
        if pid in self._known:
            return self._known[pid]
        found = _opencode_process(pid) if pid else OpenCodeProcess(None, {})
        return found if found.environment else next(reversed(self._known.values()), found)

    def _last(self) -> Path | None:
        """The program of the last headless OpenCode, which another sidecar may have started."""
        try:
            return Path(json.loads(self._file.read_text())["executable"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _answers(info: dict[str, Any]) -> bool:
    try:
        _ask(info, "/global/health")
    except HeadlessError:
        return False
    return True


def _ask(info: dict[str, Any], path: str, directory: str | None = None) -> None:
    """Send one request. The request has a time limit, because OpenCode may never answer a request that comes too
    early."""
    login = base64.b64encode(f"opencode:{info['password']}".encode()).decode()
    headers = {"Authorization": f"Basic {login}"}
    if directory is not None:
        headers["x-opencode-directory"] = quote(directory, safe="/")
    seconds = _REQUEST_SECONDS if directory is None else LINK_SECONDS
    connection = http.client.HTTPConnection("127.0.0.1", info["port"], timeout=seconds)
    try:
        connection.request("GET", path, headers=headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise HeadlessError(f"the headless OpenCode does not answer ({type(error).__name__})") from None
    finally:
        connection.close()
    if status != 200:
        raise HeadlessError(f"the headless OpenCode answered with HTTP status {status}")


def _opencode_process(pid: int) -> OpenCodeProcess:
    """Read the program and environment of a process. Only Linux provides them."""
    try:
        executable = Path(f"/proc/{pid}/exe").readlink()
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return OpenCodeProcess(None, {})
    pairs = (entry.decode("utf-8", "surrogateescape").partition("=") for entry in raw.split(b"\0") if entry)
    environment = {name: value for name, equals, value in pairs if equals}
    return OpenCodeProcess(executable if executable.name.startswith("opencode") else None, environment)


def _runs(executable: Path | None) -> bool:
    return executable is not None and os.access(executable, os.X_OK)


def _on_path() -> Path | None:
    found = shutil.which("opencode")
    return Path(found) if found else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
