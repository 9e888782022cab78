"""Which git the tests of private copies use, and a home directory of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sidecar.background.projects import newest_git


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home directory."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "user").mkdir()
    return tmp_path / "user"


@pytest.fixture(params=["system", "newest"])
def each_git(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The git that is used."""
    if request.param == "newest":
        monkeypatch.setenv("PATH", f"{newest_git()}{os.pathsep}{os.environ['PATH']}")
    return str(request.param)
