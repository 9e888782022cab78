"""The sidecar's own headless OpenCode 1, in which phantoms run: ``opencode serve`` on loopback, behind a password.

There is one for each environment (see ``environments.py``), because OpenCode takes rules and secrets from there. It is
started when it is first needed, and it outlives the sidecar: its plugin links back, and the next sidecar finds it
through ``headless.json``. It gets the environment of the OpenCode that asked for the work. Work never runs in another
environment. If environments cannot be read, as on macOS, it gets the environment of the sidecar. It is stopped after
two minutes without work.
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
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sidecar.background.hosts.environments import LINK_SECONDS, Environments, linked, until_linked
from sidecar.background.hosts.host import HostError
from sidecar.components import POLL_SECONDS
from sidecar.home import Home
from sidecar.processes import still_runs
from streams.system.files import write_durably

log = logging.getLogger("sidecar.background")

START_SECONDS: Final = 60.0
_REQUEST_SECONDS: Final = 2.0


class Headless:
    """The headless OpenCodes: one process an environment, which serves all directories. ``links`` returns the open
    links; ``executable`` names the program to use. ``has_plugin`` says whether an OpenCode loads the plugin if it
    starts in a given directory with a given environment.
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
        self._servers: list[dict[str, Any]] | None = None
        self._of: dict[int, str] = {}
        """The environments of the servers, by pid."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._starting = asyncio.Lock()
        self.environments = Environments(home.read_token)
        self._running()  # now, because the environment of a process that ends later is lost

    @property
    def pid(self) -> int | None:
        return next((info["pid"] for info in reversed(self._running())), None)

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(info["pid"] for info in self._running())

    async def link(self, directory: str, environment: str) -> Any:
        """The link to the headless OpenCode of an environment, for a directory; starts that OpenCode if needed.

        Raises:
            HostAbsent: nothing is known of the environment until an OpenCode that has it is open.
            HostError: the headless OpenCode did not start, or did not link back.
        """
        environment = environment or self.usual(directory)
        async with self._starting:
            info = next((each for each in self._running() if self._of[each["pid"]] == environment), None)
            if info is None:
                info = await self._start(environment)
        found = linked(self._links(), info["pid"], directory)
        if found is None:
            await asyncio.to_thread(_ask, info, f"/session?directory={quote(directory, safe='')}&limit=1", directory)
            found = await until_linked(self._links, info["pid"], directory)
        if found is None:
            raise HostError(f"the plugin of the headless OpenCode did not connect to the sidecar for {directory}")
        return found

    def usual(self, directory: str) -> str:
        """The environment for work that no OpenCode asked for: that of the OpenCode that is open in the directory, or
        else the only known one. Empty if none is known, which means the environment of the sidecar.

        Raises:
            HostError: there are several, and none is that of the directory.
        """
        opened = [link for link in reversed(list(self._links())) if link.is_open and not link.identity.service]
        of = [(link.directory, self.environment_of(link.pid) or self.know(link.pid)) for link in opened]
        if near := next((name for where, name in of if name and where == directory), None):
            return near
        names = self.environments.names
        if len(names) > 1:
            raise HostError("OpenCode is used in several environments, and is not open in this directory")
        return names[0] if names else ""

    def environment_of(self, pid: int | None) -> str:
        return self._of.get(pid or 0) or self.environments.of(pid)

    def never_links(self, directory: str) -> bool:
        """Whether no OpenCode is linked and an OpenCode that starts for a directory would not load the plugin."""
        if any(link.is_open for link in self._links()):
            return False
        known = [self.environments.get(name) for name in self.environments.names[-1:]]
        environment = next((each.environment for each in known if each is not None), os.environ)
        return not self._has_plugin(Path(directory), environment)

    def idle(self, wanted: Collection[str]) -> frozenset[str]:
        """The environments whose process is running and of which no work is ``wanted``."""
        return frozenset(self._of[info["pid"]] for info in self._running()).difference(wanted)

    async def stop(self, only: Collection[str] | None = None) -> None:
        ending = [info for info in self._running() if only is None or self._of[info["pid"]] in only]
        for info in ending:
            try:
                os.kill(info["pid"], signal.SIGTERM)
            except ProcessLookupError:
                log.info("the headless OpenCode is no longer running")
        self._servers = [info for info in self._running() if info not in ending]
        if self._servers:
            await asyncio.to_thread(self._write)
        else:
            self._file.unlink(missing_ok=True)

    def _write(self) -> None:
        write_durably(self._file, json.dumps({"servers": self._servers}).encode())

    def _running(self) -> list[dict[str, Any]]:
        if self._servers is None:
            self._servers = self._read()
        for process in self._processes:
            process.poll()  # without ``poll``, a dead child process would stay a zombie
        self._servers = [info for info in self._servers if still_runs(info["pid"], info["started_ms"])]
        pids = [info["pid"] for info in self._servers]
        # Another sidecar may have started some of them.
        self._of = {pid: self._of[pid] if pid in self._of else self.environments.know(pid) for pid in pids}
        return self._servers

    def _read(self) -> list[dict[str, Any]]:
        try:
            return list(json.loads(self._file.read_text())["servers"])
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def variables(self, directory: str, environment: str) -> dict[str, str]:
        """The variables of an environment; see ``link`` for what is raised and when there is none."""
        return self.environments.variables(environment or self.usual(directory))

    async def _start(self, environment: str) -> dict[str, Any]:
        asking = self.environments.of_work(environment)
        found = (asking.executable if asking is not None else None, *self._last())
        executable = self._executable or next(filter(_runs, found), None) or _on_path()
        if executable is None:
            raise HostError("no `opencode` was found; set `executable` in [phantom] in config.toml")
        port, password = _free_port(), self._nonce()
        variables = {
            **(asking.environment if asking is not None else os.environ),
            "OPENCODE_SERVER_PASSWORD": password,
            "DURABLE_STREAM_HOME": str(self._home.path),
            "DURABLE_STREAM_HEADLESS": "1",
        }
        variables.pop("OPENCODE_SERVER_USERNAME", None)
        process = await asyncio.to_thread(
            subprocess.Popen,
            [str(executable), "serve", "--hostname", "127.0.0.1", "--port", str(port)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        self._processes.append(process)
        info = {
            "pid": process.pid,
            "started_ms": self._now_ms(),
            "port": port,
            "password": password,
            "executable": str(executable),
        }
        self._servers = [*self._running(), info]
        self._of[process.pid] = environment
        await asyncio.to_thread(self._write)
        log.info("started a headless OpenCode, pid %d", process.pid)
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while not await asyncio.to_thread(_answers, info):
            if process.poll() is not None:
                raise HostError(f"the headless OpenCode ended with code {process.returncode}")
            if asyncio.get_running_loop().time() > deadline:
                raise HostError("the headless OpenCode did not answer")
            await asyncio.sleep(POLL_SECONDS)
        return info

    def know(self, pid: int) -> str:
        return self._of[pid] if pid in self._of else self.environments.know(pid)

    def _last(self) -> list[Path]:
        """The programs of the last headless OpenCodes, which another sidecar may have started; the newest first."""
        return [Path(str(info.get("executable"))) for info in reversed(self._read())]


def _answers(info: dict[str, Any]) -> bool:
    try:
        _ask(info, "/global/health")
    except HostError:
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
        raise HostError(f"the headless OpenCode does not answer ({type(error).__name__})") from None
    finally:
        connection.close()
    if status != 200:
        raise HostError(f"the headless OpenCode answered with HTTP status {status}")


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
