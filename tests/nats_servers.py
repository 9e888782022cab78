"""Real NATS servers for tests, the oldest and newest supported; each can be killed, paused, restarted, wiped."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from bridge.nats.headers import MESSAGE_ID
from bridge.nats.jetstream import publishing
from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.options import ConnectOptions
from bridge.nats.jetstream.wire import Message
from sidecar.config import NatsConfig
from sidecar.mirror.settings import server_config
from tools.install_nats_server import binary_path

HANG_SECONDS = 120.0
TOKEN = "t0k3n" * 8

PROGRAMS = {"2.12": binary_path(), "2.15": Path(sys.executable).parent / "nats-server"}
VERSIONS = tuple(PROGRAMS)
OLDEST, NEWEST = VERSIONS

on_both = pytest.mark.parametrize("server", VERSIONS, indirect=True)
own_of_both = pytest.mark.parametrize("own", VERSIONS, indirect=True)
"""Where an old server may do something else than a new one; other tests have the newest."""


def program(version: str) -> Path:
    """The executable of a version. A missing one fails the test and says what to do."""
    path = PROGRAMS[version]
    assert path.exists(), f"{path} is missing: run `make nats-server` (and `make .venv/installed`)"
    return path


class RealServer:
    """One server with its own directory. A restart keeps its port and its store."""

    def __init__(self, directory: Path, version: str, **config: Any) -> None:
        self.directory, self.version, self._more = directory, version, config
        self.port = -1
        self.patience = 20.0
        self.process: subprocess.Popen[bytes] | None = None
        (directory / "ports").mkdir(parents=True, exist_ok=True)

    @property
    def options(self) -> ConnectOptions:
        """Connection options whose times a stalled disk does not exceed; a test of a silent server shortens them."""
        seconds = self.patience
        return ConnectOptions(
            (f"nats://127.0.0.1:{self.port}",),
            token=TOKEN,
            connect_seconds=seconds,
            ping_seconds=seconds / 3,
            request_seconds=seconds,
        )

    async def ask_options(self) -> ConnectOptions:
        return self.options

    def start(self) -> RealServer:
        """Start it and wait until it listens."""
        text = server_config(self.directory, NatsConfig(), token=TOKEN, port=self.port)
        config = self.directory / "server.conf"
        config.write_text(json.dumps(json.loads(text) | self._more))
        self.process = subprocess.Popen(
            [program(self.version), "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        ports = self.directory / "ports"
        deadline = time.monotonic() + HANG_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.process.stderr.read() + self.log()[-2000:].encode()  # type: ignore[union-attr]
            for path in ports.glob(f"*_{self.process.pid}.ports"):
                try:
                    self.port = int(json.loads(path.read_text())["nats"][0].rpartition(":")[2])
                except ValueError:
                    continue
                return self
            time.sleep(0.01)
        raise AssertionError("the NATS server did not start")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Stop it if it is still running."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            self.process.wait(HANG_SECONDS)
            self.process.stderr.close()  # type: ignore[union-attr]
            self.process = None

    def hold(self) -> None:
        """Pause it with SIGSTOP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue it with SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Delete its store; it must not be running."""
        assert self.process is None
        shutil.rmtree(self.directory / "store")

    def log(self) -> str:
        path = self.directory / "server.log"
        return path.read_text() if path.exists() else ""


@contextmanager
def real_server(directory: Path, version: str = NEWEST, **config: Any) -> Iterator[RealServer]:
    """A server for the duration of the block. ``config`` replaces parts of its configuration."""
    server = RealServer(directory, version, **config)
    try:
        yield server.start()
    finally:
        server.kill()


async def reached(client: Client) -> None:
    """Return when the server has everything that the library's own ``client`` sent, such as its subscriptions."""
    await client.flush()  # the library writes the PING of a flush before what is pending
    await client.flush()


async def all_streams(session: JetStream) -> dict[str, dict[str, Any]]:
    """The configuration of each stream of the server, by name."""
    return {each["config"]["name"]: each["config"] for each in await keeping.listed(session, "STREAM.LIST", "streams")}


async def forgets_ids(session: JetStream, *streams: str) -> None:
    """Return when these streams know no message id any more, as after the end of their duplicate window."""
    for name in streams:
        found = await keeping.facts(session, name)
        probe = Message(
            found.config["subjects"][0].replace("*", "p").replace(">", "a.b.probe"), {MESSAGE_ID: "probe"}, b""
        )
        await publishing.publish(session, probe)
        for poll in itertools.count():
            if poll % 25 == 0:  # a slow server may miss a change, and look again only after the window that it had
                shorter = {**found.config, "duplicate_window": 100_000_000 + poll}
                await session.api(f"STREAM.UPDATE.{name}", shorter)
            if not (await publishing.publish(session, probe)).duplicate:
                break
            await asyncio.sleep(0.02)
        await keeping.purge(session, name, subject=probe.subject)


async def until(look: Callable[[], Any], what: str) -> Any:
    """Poll until ``look`` returns something."""
    deadline = time.monotonic() + HANG_SECONDS
    while time.monotonic() < deadline:
        if found := look():
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"{what}: not within {HANG_SECONDS:g} s")


def servers_of(directory: Path) -> list[int]:
    """Pids of all live processes started with the configuration in ``directory``. Linux and macOS."""
    listing = subprocess.run(
        ["ps", "-ww", "-A", "-o", "pid=,stat=,command="], capture_output=True, text=True, check=True
    )
    found = [line.split(None, 2) for line in listing.stdout.splitlines()]
    return [int(pid) for pid, state, command in found if str(directory / "server.conf") in command and state[0] != "Z"]


def is_root() -> bool:
    return os.geteuid() == 0
