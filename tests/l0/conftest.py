"""The implementation that the suite drives, started once, on a server of its own.

``L0_IMPLEMENTATION`` names another one, as ``module:function``: a context manager that takes the server's address and
an empty directory, and returns a ``peer.Implementation``.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import nats
import pytest
from nats.js.errors import NotFoundError

from tests.l0.peer import COMMANDS, EVENTS, HANG_S, Implementation, Peer


@pytest.fixture(scope="session")
def implementation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Implementation]:
    module, _, name = os.environ.get("L0_IMPLEMENTATION", "tests.l0.ours:start").partition(":")
    directory = tmp_path_factory.mktemp("l0")
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
    words = [program, "-js", "-sd", directory / "store", "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", directory]
    server = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        address, deadline = "", time.monotonic() + HANG_S
        while not address and time.monotonic() < deadline:
            for path in directory.glob("*.ports"):
                if text := path.read_text():
                    address = json.loads(text)["nats"][0]
            time.sleep(0.01)
        with getattr(importlib.import_module(module), name)(address, directory) as one:
            asyncio.run(until_it_has_its_streams(one))
            yield one
    finally:
        server.kill()
        server.wait()


async def until_it_has_its_streams(one: Implementation) -> None:
    """An implementation that was just started may still be making them."""
    client = await nats.connect(one.server, connect_timeout=int(HANG_S))
    try:
        async with asyncio.timeout(HANG_S):
            for name in {COMMANDS, EVENTS, *(stream for stream, _ in one.queues)}:
                while True:
                    with suppress(NotFoundError):
                        await client.jsm().stream_info(name)
                        break
                    await asyncio.sleep(0.01)
    finally:
        await client.close()


@pytest.fixture
async def peer(implementation: Implementation) -> AsyncIterator[Peer]:
    one = await Peer.connect(implementation)
    yield one
    await one.client.close()
