"""An installation under ``umask 000``: nobody else can change code that OpenCode runs."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.home import Home

INSTALL = [sys.executable, "-m", "sidecar.cli", "install"]
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def install(user: Path, umask: int, *arguments: str) -> None:
    environ = {"HOME": str(user), "XDG_CONFIG_HOME": str(user / "a" / "config"), "PATH": "/usr/bin:/bin"}
    environ["DURABLE_STREAM_HOME"] = str(user / "b" / "c" / "home")
    (user / "work").mkdir(exist_ok=True)
    subprocess.run(
        [*INSTALL, *arguments], cwd=user / "work", env=environ, umask=umask, check=True, capture_output=True, timeout=60
    )


def open_to_others(user: Path) -> list[str]:
    """The paths below the user's directory that others may write."""
    return [str(path) for path in user.rglob("*") if path.lstat().st_mode & OTHERS_MAY_WRITE]


@pytest.fixture
def user(tmp_path: Path) -> Path:
    path = tmp_path / "user"
    path.mkdir(mode=0o755)
    return path


def test_an_installation_lets_nobody_else_write(user: Path) -> None:
    install(user, 0o000)
    files = [path for path in user.rglob("*") if path.is_file()]
    assert "durable-stream.js" in {path.name for path in files}
    assert open_to_others(user) == []


def test_installing_again_takes_the_right_to_write_away(user: Path) -> None:
    install(user, 0o022)
    plugin = next(user.rglob("durable-stream.js"))
    plugin.chmod(0o666)
    install(user, 0o022)
    assert stat.S_IMODE(plugin.stat().st_mode) == 0o644


def test_missing_parents_of_the_home_are_private(tmp_path: Path) -> None:
    script = "import sys; from sidecar.home import Home; Home(sys.argv[1]).create()"
    path = tmp_path / "a" / "b" / "home"
    subprocess.run([sys.executable, "-c", script, path], umask=0, check=True, timeout=60)
    assert Home(path).path == path
    for made in (path, path.parent, path.parent.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700, made
