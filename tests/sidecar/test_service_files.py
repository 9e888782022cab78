"""The service files: accepted by the system's own checkers, careful with others' files, and never idle."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.failure import Failure
from sidecar.install.service_files import UNIT_NAME, Service, launchd_job, systemd_unit
from tests.sidecar.cli.helpers import run

COMMAND = ["/opt/odd dir/100%/$HOME/durable-stream"]


@pytest.fixture
def world(tmp_path: Path) -> dict[str, str]:
    """An environment with its own home and configuration."""
    return {"HOME": str(tmp_path / "user"), "XDG_CONFIG_HOME": str(tmp_path / "config")}


def executable(directory: Path) -> Path:
    """A program whose path has characters that are special in a unit file."""
    path = directory / "odd dir" / "100% $HOME" / "durable-stream"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def checked(path: Path, tmp_path: Path) -> str:
    """The complaints of the system's checker about a service file; empty if it is valid."""
    if sys.platform == "darwin":
        return subprocess.run(["plutil", "-lint", "-s", path], capture_output=True, text=True, check=False).stdout
    checker = shutil.which("systemd-analyze")
    if checker is None:
        pytest.fail("systemd-analyze is not installed: on Debian it comes with the package systemd", pytrace=False)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    done = subprocess.run(
        [checker, "--user", "verify", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
        check=False,
    )
    assert done.returncode == 0 or done.stderr
    return done.stderr


def test_the_systems_own_checker_finds_nothing(tmp_path: Path, world: dict[str, str]) -> None:
    service = Service.here(world)
    assert service.install([str(executable(tmp_path))], tmp_path / 'home %h $x "y" \\n')
    assert checked(service.path, tmp_path) == ""
    # And it does find something where there is something.
    service.path.write_bytes(service.path.read_bytes().replace(b"Restart=", b"Rstart=").replace(b"<dict>", b"<dct>"))
    assert checked(service.path, tmp_path) != ""


def test_the_unit_takes_over_restarts_and_never_leaves_when_idle() -> None:
    lines = systemd_unit([*COMMAND, "--home", "/home/ada/d s"]).splitlines()
    quoted = '"/opt/odd dir/100%%/$HOME/durable-stream" "--home" "/home/ada/d s"'
    assert f"ExecStart={quoted} serve" in lines and f"ExecStartPre=-{quoted} stop" in lines
    assert {"Restart=on-failure", "UMask=0077", "WantedBy=default.target"} <= set(lines)
    assert not [line for line in lines if "idle" in line]


def test_a_program_that_systemd_cannot_name_is_refused(world: dict[str, str]) -> None:
    with pytest.raises(Failure, match="without quotes"):
        Service.here(world, "linux").install(["/opt/a\\b/durable-stream"], Path("/a"))


def test_the_agent_for_launchd() -> None:
    job: dict[str, Any] = plistlib.loads(Service("launchd", Path("/x")).content(COMMAND, Path("/home/ada")))
    assert job == launchd_job([*COMMAND, "--home", "/home/ada"])
    assert job["ProgramArguments"] == [*COMMAND, "--home", "/home/ada", "serve"]
    assert job["KeepAlive"] == {"SuccessfulExit": False} and job["RunAtLoad"] is True


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_only_our_own_file_is_replaced_and_removed(world: dict[str, str], platform: str) -> None:
    service = Service.here(world, platform)
    assert not service.uninstall()
    assert service.install(COMMAND, Path("/a")) and not service.install(COMMAND, Path("/a"))
    assert service.install(COMMAND, Path("/b"))
    wants = service.path.parent / "default.target.wants"
    wants.mkdir()
    (wants / UNIT_NAME).symlink_to(service.path)
    (wants / "other.service").symlink_to(service.path)
    assert service.uninstall() and not service.path.exists()
    # The link by which systemd had it enabled goes with the unit, and nothing else; launchd has none.
    there = {"other.service"} | ({UNIT_NAME} if platform == "darwin" else set())
    assert {path.name for path in wants.iterdir()} == there
    service.path.write_text("[Unit]\nDescription=mine\n")
    with pytest.raises(Failure, match="was not written by durable-stream"):
        service.install(COMMAND, Path("/a"))
    assert not service.uninstall() and service.path.exists()


def test_install_prints_how_to_enable_it_and_uninstall_takes_it_away(tmp_path: Path, world: dict[str, str]) -> None:
    home, service = tmp_path / "home", Service.here(world)
    done = run(home, "install", "--service", **world)
    assert done.code == 0 and service.enable in done.out and service.path.is_file()
    assert str(home) in service.path.read_text()
    told = run(home, "install", "--service", "--json", **world).objects()[0]
    assert (told["service"], told["enable"]) == (str(service.path), service.enable)
    done = run(home, "uninstall", "--service", **world)
    assert service.disable in done.out and not service.path.exists()
    assert (tmp_path / "config" / "opencode" / "plugin" / "durable-stream.js").is_file()
    assert "nothing to remove" in run(home, "uninstall", "--service", **world).out
    # Without a plugin there is nothing to serve: a whole uninstall takes the service along.
    run(home, "install", "--service", **world)
    assert str(service.path) in run(home, "uninstall", **world).out
    assert not service.path.exists()
    assert run(home, "uninstall", "--service", "--project", str(tmp_path), **world).code == 2
