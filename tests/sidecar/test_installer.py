"""Installing the plugin file: idempotent, careful with others' files, and undone without a trace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pytest import MonkeyPatch

from sidecar.failure import Failure
from sidecar.install import npm
from sidecar.install.npm import settings_with_package
from sidecar.install.plugin import (
    FIRST_LINE,
    LEDGER_NAME,
    Installed,
    Outcome,
    Target,
    executable_command,
    install,
    is_installed,
    is_ours,
    plugin_text,
    read_plugin,
    shim_path,
    uninstall,
)

COMMAND = ["/opt/bin/durable-stream"]


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with its own user home and configuration."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("OPENCODE_CONFIG_DIR", raising=False)
    for name in ("user", "work/.git"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def target() -> Target:
    return Target.everywhere()


def do(target: Target, home: str = "/home/dev/home") -> Outcome:
    return install(target, shim=shim_path(), command=COMMAND, home=Path(home))


def tree(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def test_the_file_is_a_module_with_one_export(target: Target) -> None:
    do(target)
    lines = target.plugin.read_text().splitlines()
    assert lines[0] == FIRST_LINE
    assert lines[1] == f'import {{ plugin }} from "{shim_path()}";'
    options = '{ command: ["/opt/bin/durable-stream"], home: "/home/dev/home" }'
    assert lines[2] == f"export default plugin({options}, import.meta.url);"
    assert len(lines) == 3


def test_odd_characters_in_paths_survive(tmp_path: Path) -> None:
    file = tmp_path / "durable-stream.js"
    file.write_text(plugin_text(Path('/a "b"/\\ü.js'), ["/x y", "-m", "z'"], Path("/h, home: {1}")))
    assert read_plugin(file) == Installed('/a "b"/\\ü.js', ("/x y", "-m", "z'"), "/h, home: {1}")


def test_installing_twice_changes_nothing(target: Target) -> None:
    assert do(target).changed
    before = {path: path.stat().st_mtime_ns for path in target.config.rglob("*")}
    again = do(target)
    assert not again.changed
    assert {path: path.stat().st_mtime_ns for path in target.config.rglob("*")} == before


def test_a_file_of_somebody_else_is_left(target: Target) -> None:
    target.plugin.parent.mkdir(parents=True)
    target.plugin.write_text("export default async () => ({})\n")
    for act in (lambda: do(target), lambda: uninstall(target)):
        with pytest.raises(Failure, match="was not written by durable-stream"):
            act()
    assert target.plugin.read_text() == "export default async () => ({})\n"


def test_a_symbolic_link_is_not_ours(target: Target, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.js"
    elsewhere.write_text(f"{FIRST_LINE}\n")
    target.plugin.parent.mkdir(parents=True)
    target.plugin.symlink_to(elsewhere)
    assert not is_ours(target.plugin)
    with pytest.raises(Failure):
        do(target)


def test_uninstalling_leaves_what_was_there_before(tmp_path: Path, target: Target) -> None:
    before = tree(tmp_path)
    do(target)
    assert uninstall(target).changed
    assert tree(tmp_path) == before | {"config"}  # created with its parents, so its owner is unknown
    assert not uninstall(target).changed

    target.config.mkdir()
    (target.config / "opencode.json").write_text("{}")
    (target.config / "plugin").mkdir()
    before = tree(tmp_path)
    do(target)
    uninstall(target)
    assert tree(tmp_path) == before


def test_a_ledger_of_somebody_else_removes_nothing_outside(target: Target, tmp_path: Path) -> None:
    do(target)
    (tmp_path / "empty").mkdir()
    ledger = target.config / LEDGER_NAME
    ledger.write_text(json.dumps({"plugins": [], "made": {str(tmp_path): ["empty", "../empty", 7, "."], "x": ["."]}}))
    uninstall(target)
    assert (tmp_path / "empty").is_dir()


def test_an_install_that_was_interrupted_is_undone(target: Target, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    before = tree(tmp_path)

    def stop(directory: Path, kind: str) -> bool:
        if kind == "node_modules":
            raise OSError("no space left")
        return real(directory, kind)

    real = npm.make
    monkeypatch.setattr(npm, "make", stop)
    with pytest.raises(OSError):
        do(target)
    assert (target.config / "package-lock.json").is_file()
    uninstall(target)
    assert tree(tmp_path) == before | {"config"}


def test_the_users_directories_stay_prepared_while_one_of_two_plugins_needs_them(work: Path, target: Target) -> None:
    (work / ".opencode").mkdir()
    (work / ".opencode" / "agent.md").write_text("")
    project = Target.project(work)
    do(target)
    do(project)
    uninstall(project)
    assert tree(work / ".opencode") == {"agent.md", "node_modules", "package-lock.json"}
    do(project)
    uninstall(target)
    assert (target.config / "node_modules").is_dir() and not (target.config / "plugin").exists()
    assert (work / ".opencode" / "node_modules").is_dir()
    uninstall(project)
    assert tree(work / ".opencode") == {"agent.md"}
    assert not target.config.exists()


def test_the_settings_that_name_the_npm_package(work: Path, target: Target) -> None:
    target.config.mkdir(parents=True)
    assert settings_with_package(work) == [] and not is_installed(work)
    named = [
        (target.config / "opencode.json", '{"plugins":["a","opencode-durable-stream"]}'),
        (
            target.config / "opencode.jsonc",
            '{"plugin": [ // "a"\n ["opencode-durable-stream@1", {"a": "//,]"},], /* */ ]}',
        ),
        (work / "opencode.json", '{"plugins": [{"package": "opencode-durable-stream@latest", "options": {}}]}'),
    ]
    for path, text in named:
        path.write_text(text)
    below = work / "below"
    below.mkdir()
    assert settings_with_package(below) == [path for path, _ in named] and is_installed(below)
    named[1][0].unlink()
    assert not is_installed(below), "OpenCode 1 does not read the other key"
    for text in (
        '{"plugins": ["opencode-durable-stream-more", "-opencode-durable-stream", 7, []]}',
        '{"plugins": [ // "opencode-durable-stream"\n]}',
        '{"plugins": {"opencode-durable-stream": 1}, "model": "opencode-durable-stream"}',
        '["plugins"]',
        '{"plugins": ["opencode-durable-stream"',
    ):
        for path, _ in named:
            path.write_text(text)
        assert settings_with_package(below) == [], text


def test_the_executable_is_the_script_or_this_python(tmp_path: Path) -> None:
    script = tmp_path / "bin" / "durable-stream"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    assert executable_command(str(script), "py") == ["py", "-m", "sidecar.cli"]  # not executable
    script.chmod(0o755)
    (tmp_path / "durable-stream").symlink_to(script)
    assert executable_command(str(tmp_path / "durable-stream"), "py") == [str(script)]
    assert executable_command(shutil.which("sh") or "sh", "py") == ["py", "-m", "sidecar.cli"]
