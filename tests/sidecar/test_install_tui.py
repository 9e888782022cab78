"""The TUI plugin's two files: written where nobody has a ``tui.json``, and removed where they are still ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.install.plugin import Target, install, shim_path, uninstall
from sidecar.install.tui import CONFIG_NAME, TUI_NAME


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
