"""Homes with a log, and processes that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.home import Home
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.sidecar.agents.agents import Counter
from tests.sidecar.agents.support import command, running, steps
from tests.sidecar.cli.helpers import make_home
from tests.sidecar.cli.processes import Process

NAMES = (
    "chat",
    "task_child",
    "tool_throws_read",
    "permission_once",
    "permission_child",
    "http_400",
    "abort_tool",
    "compaction_manual",
    "two_queued",
    "deletion",
)


@pytest.fixture(scope="session")
def recorded_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home shared by all tests that only read: a test that changes a log makes its own."""
    return make_home(tmp_path_factory.mktemp("cli") / "home", *NAMES)


@pytest.fixture
async def counted_home(home: Home) -> Home:
    """A home with a directory for agents, whose log has steps, and commands of the agent ``Counter``."""
    (home.path / "agents").mkdir()
    store = await Log.open(home.store_path, seeded_identity(1))
    async with running(store, Counter) as runtime:
        await store.append(steps("completed"))
        for n in range(5):
            await runtime.command("counter", command(f"k{n}", by=n))
    await store.close()
    return home


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A home that was never used; the directory does not exist."""
    return tmp_path / "home"


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Processes that a test adds; they end with it."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.end()
