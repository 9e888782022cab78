"""One home shared by all tests that only read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sidecar.cli.helpers import make_home

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
