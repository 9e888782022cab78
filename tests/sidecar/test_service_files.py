"""The service files and the TUI plugins of both OpenCodes: all of ours comes and goes, and nothing else changes."""

from __future__ import annotations

import json
import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.failure import Failure
from sidecar.install.plugin import Target, install, shim_path, uninstall
from sidecar.install.service_files import UNIT_NAME, Service, launchd_job, systemd_unit
from sidecar.install.tui import CONFIG_NAME, TUI_NAME
from sidecar.install.tui2 import FILE, SETTINGS_NAME, without
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


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """OpenCode's config directory of a user."""
    made = tmp_path / "config" / "opencode"
    made.mkdir(parents=True)
    return made


def do(config: Path) -> list[str]:
    environ = {"HOME": str(config.parents[1]), "XDG_CONFIG_HOME": str(config.parent)}
    target = Target.everywhere(environ)
    home = config.parents[1] / "home"
    return install(target, shim=shim_path(), command=["d-s"], home=home, cwd=home.parent, environ=environ).lines


def undo(config: Path) -> list[str]:
    environ = {"HOME": str(config.parents[1]), "XDG_CONFIG_HOME": str(config.parent)}
    return uninstall(Target.everywhere(environ), environ=environ).lines


def test_the_plugin_comes_and_goes(config: Path) -> None:
    assert any(str(config / FILE) in line for line in do(config))
    text = (config / FILE).read_text()
    assert str(shim_path().with_name("tui2.js")) in text and '["d-s"]' in text
    assert not (config / SETTINGS_NAME).exists(), "OpenCode 2 finds it by itself"
    assert not any(str(config / FILE) in line for line in do(config)), "a repeat changes nothing"
    (config / FILE).write_text(text.replace("d-s", "old"))
    do(config)
    assert (config / FILE).read_text() == text
    assert f"removed {config / FILE}" in undo(config)
    assert not (config / FILE.parts[0]).exists()


def test_what_somebody_else_has_there_stays(config: Path) -> None:
    (config / FILE).parent.mkdir(parents=True)
    (config / FILE).write_text("mine")
    (config / FILE).with_name("server.js").write_text("mine, too")
    do(config)
    undo(config)
    assert (config / FILE).read_text() == "mine"
    (config / FILE).unlink()
    do(config)
    undo(config)
    assert [path.name for path in (config / FILE).parent.iterdir()] == ["server.js"]


def test_a_plugin_for_one_project_has_none(config: Path, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(config.parent)}
    target = Target.project(tmp_path / "project")
    install(target, shim=shim_path(), command=["d-s"], home=tmp_path / "home", environ=environ)
    assert not list(tmp_path.rglob(FILE.name))


def test_the_entry_that_opencode_2_copied_goes_with_ours(config: Path) -> None:
    do(config)
    copy, entry = config / SETTINGS_NAME, (config / TUI_NAME).as_uri()
    theirs = '{"theme": {"name": "nord"},\n "plugins": [\n  "./mine", OURS\n ] }'
    copy.write_text(theirs.replace("OURS", f'"{entry}"'))
    copy.chmod(0o600)
    assert f"removed {TUI_NAME} from {copy}" in undo(config)
    assert copy.read_text() == theirs.replace(", OURS", "") and copy.stat().st_mode & 0o777 == 0o600
    assert not any(SETTINGS_NAME in line for line in undo(config)), "a repeat changes nothing"


def test_a_copy_of_our_file_alone_is_removed(config: Path) -> None:
    do(config)
    copy = config / SETTINGS_NAME
    copied = {"$schema": "https://example.org/cli.json", "plugins": [(config / TUI_NAME).as_uri()]}
    copy.write_text(json.dumps(copied, indent=2) + "\n")
    assert f"removed {TUI_NAME} from {copy}" in do(config)
    assert json.loads(copy.read_bytes())["plugins"] == [], "without the file, OpenCode 2 would copy the entry again"
    assert not any(SETTINGS_NAME in line for line in do(config))
    assert f"removed {copy}" in undo(config)
    assert not copy.exists()


def test_a_copy_that_cannot_be_changed_safely_is_named(config: Path) -> None:
    """Another form, or a link: then only its owner knows what it means."""
    copy, entry = config / SETTINGS_NAME, (config / TUI_NAME).as_uri()
    for text in ('{"plugins": ["OURS" /* mine */]}', '{"plugins": [{"package": "OURS", "options": {}}]}'):
        do(config)
        copy.write_text(text.replace("OURS", entry))
        assert any(str(copy) in line and "yourself" in line for line in undo(config)), text
        assert copy.read_text() == text.replace("OURS", entry)
    copy.rename(config / "elsewhere")
    (config / "elsewhere").write_text(json.dumps({"plugins": [entry, "mine"]}))
    copy.symlink_to(config / "elsewhere")
    assert any(str(copy) in line for line in undo(config)) and copy.is_symlink()
    assert entry in (config / "elsewhere").read_text()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"plugins": ["x"], "theme": {"name": "x"}}', '{"plugins": [], "theme": {"name": "x"}}'),
        ('{"plugins": ["x", "y"]}', '{"plugins": ["y"]}'),
        ('{"plugins": [\n  "y",\n  "x"\n]}', '{"plugins": [\n  "y"\n]}'),
        ('{"plugins": ["y", "x", "z", "x"]}', '{"plugins": ["y", "z"]}'),
        ('{"note": "say \\"x\\"", "plugins": ["x", 1]}', '{"note": "say \\"x\\"", "plugins": [1]}'),
        ('{"plugins": ["x"]}', '{"plugins": []}'),
        ('{ // "x", mine\n "plugins": ["y", "x",], /* "z" */ }', '{ // "x", mine\n "plugins": ["y",], /* "z" */ }'),
        ('{"note": "// /* \\" x", "plugins": ["x"]}', '{"note": "// /* \\" x", "plugins": []}'),
        ('{"plugins": ["x" /* mine */]}', None),
        ('{"plugins": ["x"] /* ["x"] */}', None),
        ('{"plugins": ["x"] /*', None),
        ('{"plugins": ["y"]}', None),
        ('{"plugins": "x"}', None),
        ('{"mine": ["x"], "plugins": ["x", "y"]}', None),
        ('["x"]', None),
        ("[" * 100_000, None),
    ],
)
def test_one_entry_is_taken_out_of_a_list_and_nothing_else(text: str, left: str | None) -> None:
    for ends in ("\n", "\r\n"):
        told, wanted = (each if each is None else each.replace("\n", ends).encode() for each in (text, left))
        assert told is not None and without(told, "x") == wanted


def test_what_is_not_text_stays_as_it_is() -> None:
    assert without(b'{"plugins": ["x", "\xff"]}', "x") is None


# --- OpenCode 1 ---
def test_both_files_come_and_go(config: Path) -> None:
    assert any(CONFIG_NAME in line for line in do(config))
    assert (config / TUI_NAME).as_uri() in (config / CONFIG_NAME).read_text()
    assert str(shim_path().with_name("tui.js")) in (config / TUI_NAME).read_text()
    assert not any(CONFIG_NAME in line for line in do(config)), "a repeat changes nothing"
    undo(config)
    assert not (config / TUI_NAME).exists() and not (config / CONFIG_NAME).exists()


def test_a_config_of_somebody_else_stays_as_it_is(config: Path) -> None:
    (config / CONFIG_NAME).write_text("{ // mine\n}")
    do(config)
    assert not (config / TUI_NAME).exists()
    undo(config)
    assert (config / CONFIG_NAME).read_text() == "{ // mine\n}"


def test_a_config_that_was_changed_since_is_named(config: Path) -> None:
    do(config)
    changed = (config / CONFIG_NAME).read_text().replace("{", '{"theme": "nord",')
    (config / CONFIG_NAME).write_text(changed)
    do(config)
    assert (config / CONFIG_NAME).read_text() == changed
    assert any(str(config / CONFIG_NAME) in line for line in undo(config))
    assert (config / CONFIG_NAME).read_text() == changed and not (config / TUI_NAME).exists()


def test_a_plugin_file_of_somebody_else_is_not_removed(config: Path) -> None:
    (config / TUI_NAME).write_text("mine")
    undo(config)
    assert (config / TUI_NAME).read_text() == "mine"
