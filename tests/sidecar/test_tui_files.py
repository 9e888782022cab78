"""The TUI plugins of both OpenCodes: all of ours comes and goes, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.install.plugin import Target, install, shim_path, uninstall
from sidecar.install.tui import CONFIG_NAME, TUI_NAME
from sidecar.install.tui2 import FILE, SETTINGS_NAME, without


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
