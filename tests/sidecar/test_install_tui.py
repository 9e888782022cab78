"""The TUI plugin's two files: written where nobody has a ``tui.json``, and removed where they are still ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.install.plugin import Target, install, shim_path, uninstall
from sidecar.install.tui import CONFIG_NAME, COPY_NAME, TUI_NAME, without


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


def test_the_entry_that_opencode_2_copied_goes_with_ours(config: Path) -> None:
    do(config)
    copy, entry = config / COPY_NAME, (config / TUI_NAME).as_uri()
    theirs = '{"theme": {"name": "nord"},\n "plugins": [\n  "./mine", OURS\n ] }'
    copy.write_text(theirs.replace("OURS", f'"{entry}"'))
    copy.chmod(0o600)
    assert f"removed {TUI_NAME} from {copy}" in undo(config)
    assert copy.read_text() == theirs.replace(", OURS", "") and copy.stat().st_mode & 0o777 == 0o600
    assert not any(COPY_NAME in line for line in undo(config)), "a repeat changes nothing"


def test_a_copy_of_our_file_alone_is_removed(config: Path) -> None:
    do(config)
    (config / COPY_NAME).write_text(json.dumps({"plugins": [(config / TUI_NAME).as_uri()]}, indent=2) + "\n")
    assert f"removed {config / COPY_NAME}" in undo(config)
    assert not (config / COPY_NAME).exists()


def test_a_copy_that_cannot_be_changed_safely_is_named(config: Path) -> None:
    """A comment, other options, or a link: then only its owner knows what it means."""
    copy, entry = config / COPY_NAME, (config / TUI_NAME).as_uri()
    for text in ('{ // mine\n "plugins": ["OURS"]}', '{"plugins": [{"package": "OURS", "options": {}}]}'):
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
        ('{"plugins": ["x"]}', ""),
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
