"""Where the tests of background work make copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.background.copies.copies import Copies


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path / "home/copies")
