"""One home shared by all tests that only read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read-only: a test that changes a log makes its own."""
    return make_home(tmp_path_factory.mktemp("cli") / "home", *NAMES)


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
