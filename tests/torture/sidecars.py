"""Real sidecars for torture tests: started, killed, queried, measured."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from bridge.opencode.link.frames import HookItem, ShimIdentity
from sidecar.home import Home
from sidecar.link.client import ControlClient, ShimClient
from streams.identity import system_identity
from tests.sidecar.cli.helpers import command
from tests.sidecar.support import running
from tests.torture.figures import percentile, rss_mib

HANG_S = 60.0
"""After so long without an answer the sidecar hangs; far above what a busy machine needs."""


class RunningSidecar:
    """A sidecar process with its own home. ``link`` and the other sections go into its ``config.toml``."""

    def __init__(self, path: Path, **sections: dict[str, Any]) -> None:
        self.home = Home(path)
        self.home.create()
        lines = []
        for name, fields in sections.items():
            lines += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in fields.items())]
        self.home.config_path.write_text("\n".join(lines) + "\n")
        self._output = (path / "output.txt").open("a+")
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.token = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def spawn(self) -> None:
        """Start it and return at once."""
        self._process = subprocess.Popen(
            command(self.home.path, "serve"), stdout=self._output, stderr=self._output, text=True, cwd="/"
        )

    def start(self) -> None:
        """Start it and return when it serves."""
        self.spawn()
        info = running(self.home)
        self.port, self.token = info.port, self.home.read_token()

    @property
    def is_up(self) -> bool:
        """True if the process that was started last reports where it listens."""
        info = self.home.read_info()
        return info is not None and self._process is not None and info.pid == self._process.pid

    @property
    def lives(self) -> bool:
        """True if the process has not ended."""
        return self._process is not None and self._process.poll() is None

    def leave(self) -> subprocess.Popen[str]:
        """Give the process away: the next ``spawn`` starts another one beside it."""
        assert self._process is not None
        process, self._process = self._process, None
        return process

    def kill(self) -> None:
        """``kill -9``."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(HANG_S)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(HANG_S)

    def close(self) -> None:
        """Kill it if it is still alive."""
        if self.lives:
            self.kill()
        self._output.close()

    def rss(self) -> float:
        """Its memory, in MiB."""
        return rss_mib(self.pid)

    def descriptors(self) -> int:
        """The number of its open files and sockets; 0 if the system does not say."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir())) if sys.platform == "linux" else 0

    def complaints(self) -> list[str]:
        """Its output, and the lines of its log that report a failure in it."""
        self._output.flush()
        printed = (self.home.path / "output.txt").read_text().splitlines()
        logged = self.home.log_path.read_text().splitlines()
        bad = ("Traceback", "Error", "ERROR", "failed")
        return [line for line in printed if not line.startswith("serving ")] + [
            line for line in logged if any(word in line for word in bad)
        ]


def _toml(value: Any) -> str:
    if isinstance(value, Path):
        return f'["{value}"]'
    return f'"{value}"' if isinstance(value, str) else str(value)


@contextmanager
def sidecar(path: Path, **sections: dict[str, Any]) -> Iterator[RunningSidecar]:
    """A serving sidecar, which must not log errors and must exit with 0 when stopped."""
    one = RunningSidecar(path, **sections)
    try:
        one.start()
        yield one
        assert one.lives, one.complaints()
        assert one.stop() == 0, one.complaints()
        assert one.complaints() == [], one.complaints()
    finally:
        one.close()


def shim(number: int = 0, directory: str = "/d") -> ShimIdentity:
    """The identity of a shim; different numbers are different processes."""
    return ShimIdentity("0.1", f"{number:032x}", f"{number:016x}", 0, "", directory, "", "torture", 0)


def text_hook(session: str, number: int) -> HookItem:
    """One hook that makes one event at once: a bus event of an unknown type."""
    event = {"id": f"evt_{session}_{number}", "type": "torture.note", "properties": {"session": session, "n": number}}
    return HookItem("event", 1_795_000_000_000 + number, {"event": event})


@asynccontextmanager
async def shim_link(one: RunningSidecar, identity: ShimIdentity) -> AsyncIterator[ShimClient]:
    """A well-behaved link."""
    client = await ShimClient.connect(one.home, identity=identity, nonce=system_identity().nonce, open_seconds=HANG_S)
    async with client:
        yield client


async def ask(one: RunningSidecar, request: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer to a request, over a new link. Raises ``RequestError``."""
    nonce = system_identity().nonce
    async with (
        asyncio.timeout(HANG_S),
        await ControlClient.connect(one.home, version="1", nonce=nonce, open_seconds=HANG_S) as client,
    ):
        found: dict[str, Any] = await client.request(request, args)
        return found


async def status(one: RunningSidecar) -> dict[str, Any]:
    """The status that ``durable-stream status`` would show, over a new link."""
    return await ask(one, "status")


async def unlinked(one: RunningSidecar) -> dict[str, Any]:
    """Wait until the sidecar knows that every shim is gone, and return its status."""
    async with asyncio.timeout(HANG_S):
        while (told := await status(one))["links"]:
            await asyncio.sleep(0.01)
    return told


class Neighbour:
    """A well-behaved link beside bad ones; measures the time until its hooks are acknowledged, in ms."""

    def __init__(self, client: ShimClient, name: str) -> None:
        self._client, self._name = client, name
        self.sent = 0

    async def measure(self, count: int) -> list[float]:
        """Send ``count`` hooks, each after the ack of the one before."""
        took = []
        for _ in range(count):
            began = time.perf_counter()
            async with asyncio.timeout(HANG_S):
                await self._client.send([text_hook(self._name, self.sent)])
                await self._client.drained()
            took.append((time.perf_counter() - began) * 1000)
            self.sent += 1
        return took


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return percentile(values, 0.99)
