"""The implementation that the suite drives, started once, on a server of its own.

``L0_IMPLEMENTATION`` names another one, as ``module:function``: a context manager that takes the server's address and
an empty directory, and returns a ``peer.Implementation``.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.l0.peer import HANG_S, Implementation, Peer


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
            yield one
    finally:
        server.kill()
        server.wait()


@pytest.fixture
async def peer(implementation: Implementation) -> AsyncIterator[Peer]:
    one = await Peer.connect(implementation)
    yield one
    await one.client.close()
