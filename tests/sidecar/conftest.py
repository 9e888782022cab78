"""Homes for tests with sidecars: none outlives its test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.home import Home
from tests.sidecar import life


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home that exists and is still empty."""
    home = Home(tmp_path / "home")
    home.create()
    yield home
    life.end_sidecars(home)
