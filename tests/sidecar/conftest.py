"""Homes for tests with sidecars: none outlives its test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.home import Home
from tests.sidecar import life
from tests.sidecar.checking import make_healthy
from tests.sidecar.cli.helpers import MAY_REMOVE, ROOT, run

AGENTS = ROOT / "tests" / "sidecar" / "agents" / "agents.py"


@pytest.fixture
def home(home: Home) -> Iterator[Home]:
    """A home that exists and is still empty; its sidecars are killed at the end."""
    yield home
    life.end_sidecars(home)


@pytest.fixture
def healthy_home(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home in which ``doctor`` finds nothing to say."""
    make_healthy(home, tmp_path, monkeypatch)
    return home


@pytest.fixture
def counter_home(home: Home) -> Iterator[Home]:
    """A home whose configured agent is ``Counter``; its sidecar is stopped at the end."""
    home.config_path.write_text(f'{MAY_REMOVE}[worker]\nagents = ["{AGENTS}:Counter"]\n')
    yield home
    assert run(home.path, "stop").code == 0
