"""Where the tests of background work make worktrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.background.worktrees.worktrees import Worktrees


@pytest.fixture
def worktrees(tmp_path: Path) -> Worktrees:
    return Worktrees(tmp_path / "home/worktrees")
