"""The service files: accepted by the system's own checkers, careful with others' files, and never idle."""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.home import Home
from sidecar.install.service_files import LABEL, UNIT_NAME, Service, ServiceError, launchd_job, systemd_unit
from tests.real.durable import wait_until
from tests.sidecar.cli.helpers import environment, run

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
    with pytest.raises(ServiceError, match="without quotes"):
        Service.here(world, "linux").install(["/opt/a\\b/durable-stream"], Path("/a"))


def test_the_agent_for_launchd() -> None:
    job: dict[str, Any] = plistlib.loads(Service("launchd", Path("/x")).content(COMMAND, Path("/home/ada")))
    assert job == launchd_job([*COMMAND, "--home", "/home/ada"])
    assert job["ProgramArguments"] == [*COMMAND, "--home", "/home/ada", "serve"]
    assert job["KeepAlive"] == {"SuccessfulExit": False} and job["RunAtLoad"] is True


def test_where_the_files_lie(world: dict[str, str], tmp_path: Path) -> None:
    assert Service.here(world, "linux").path == tmp_path / "config" / "systemd" / "user" / UNIT_NAME
    agents = tmp_path / "user" / "Library" / "LaunchAgents"
    assert Service.here(world, "darwin").path == agents / f"{LABEL}.plist"
    with pytest.raises(ServiceError, match="win32"):
        Service.here(world, "win32")


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
    with pytest.raises(ServiceError, match="was not written by durable-stream"):
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


@pytest.fixture
def started(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Sidecars by name; all are ended with the test."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    yield processes
    for process in processes.values():
        process.kill()
        process.wait()


def test_a_service_stays_where_a_sidecar_of_the_plugin_leaves(
    tmp_path: Path, world: dict[str, str], started: dict[str, subprocess.Popen[bytes]]
) -> None:
    run(tmp_path / "service", "install", "--service", **world)
    unit = Service.here(world, "linux")
    unit.install([sys.executable, "-m", "sidecar.cli"], tmp_path / "service")
    line = next(line for line in unit.path.read_text().splitlines() if line.startswith("ExecStart="))
    commands = {"service": shlex.split(line.removeprefix("ExecStart="))}
    commands["idle"] = [*commands["service"][:-2], str(tmp_path / "idle"), "serve", "--idle-exit"]
    idle = {"DURABLE_STREAM_LINK__IDLE_EXIT_SECONDS": "0.5"}
    started["service"] = subprocess.Popen(commands["service"], env=environment(**idle))
    home = Home(tmp_path / "service")
    first = wait_until(home.running, "the service's sidecar")
    # It has been idle for longer than one that leaves for that.
    started["idle"] = subprocess.Popen(commands["idle"], env=environment(**idle))
    assert started["idle"].wait(30) == 0
    assert home.running() == first
    stop = [*commands["service"][:-1], "stop"]
    assert subprocess.run(stop, env=environment(), capture_output=True, check=False).returncode == 0
    assert started["service"].wait(30) == 0  # a success: systemd does not start it again
