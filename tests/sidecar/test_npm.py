"""Keeping OpenCode from npm: in every config directory, without overriding settings, undone to the byte.

``tests/real/test_startup.py`` shows that the real OpenCode then starts without waiting.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.install.npm import RC_TEXT, ConfigDirectories, starves, waits
from sidecar.install.plugin import LEDGER_NAME, Target, install, prepare, uninstall
from sidecar.install.tui import CONFIG_NAME, TUI_NAME

STUB = {"node_modules", "package-lock.json"}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository as current directory, with the user's home and configuration next to it."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("OPENCODE_CONFIG_DIR", raising=False)
    for name in ("user", "repository/.git", "config/opencode"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repository")
    return tmp_path / "repository"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config" / "opencode"


def do(target: Target | None = None) -> list[str]:
    target = target or Target.everywhere()
    return install(target, shim=Path("/shim.js"), command=["/bin/durable-stream"], home=Path("/home/x")).lines


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def contents(root: Path) -> dict[str, tuple[int, bytes | None]]:
    """Everything below a directory: modes, and the bytes of files."""
    return {
        str(path.relative_to(root)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in root.rglob("*")
    }


def test_every_config_directory_is_prepared_and_put_back(
    tmp_path: Path, project: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = project / "packages" / "one"
    extra = tmp_path / "extra"
    for directory in (project / ".opencode", below / ".opencode", tmp_path / "user" / ".opencode", extra):
        directory.mkdir(parents=True)
    (tmp_path / ".opencode").mkdir()  # above the repository: OpenCode does not look there
    monkeypatch.chdir(below)
    monkeypatch.setenv("OPENCODE_CONFIG_DIR", str(extra))
    before = contents(tmp_path)
    assert ConfigDirectories.of(below).all == (
        config,
        below / ".opencode",
        project / ".opencode",
        tmp_path / "user" / ".opencode",
        extra,
    )
    assert all(waits(directory) for directory in ConfigDirectories.of(below).all)
    do()
    for directory in ConfigDirectories.of(below).all:
        assert names(directory) - OURS == STUB
        assert not waits(directory)
    assert names(tmp_path / ".opencode") == set()
    # From elsewhere, and with another environment.
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENCODE_CONFIG_DIR")
    uninstall(Target.everywhere())
    assert contents(tmp_path) == before


OURS = {"plugin", "plugins", LEDGER_NAME, TUI_NAME, CONFIG_NAME}
USED = {
    "package": ("package.json", '{"dependencies": {"zod": "*"}}'),
    "lock": ("package-lock.json", "{}"),
    "modules": ("node_modules/zod/index.js", ""),
    "plugin": ("plugin/mine.js", ""),
    "plugins": ("plugins/mine.ts", ""),
    "tool": ("tool/mine.ts", ""),
    "named": ("opencode.jsonc", '{\n // mine\n "plugin": ["./mine.js"]}'),
}


@pytest.mark.parametrize("case", USED)
def test_where_packages_are_used_npm_is_told_not_to_retry(tmp_path: Path, config: Path, case: str) -> None:
    name, text = USED[case]
    (config / name).parent.mkdir(parents=True, exist_ok=True)
    (config / name).write_text(text)
    before = contents(tmp_path)
    do()
    assert names(config) - OURS == {name.split("/")[0], ".npmrc"} - OURS
    assert (config / ".npmrc").read_bytes() == RC_TEXT
    assert not waits(config)
    uninstall(Target.everywhere())
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "content",
    [b"", b"//registry.example/:_authToken=abc", b"a=1\r\n[section]\r\nb=2", b"\xef\xbb\xbfregistry=https://x/\n"],
)
def test_lines_of_an_npmrc_are_kept_and_come_back_to_the_byte(tmp_path: Path, config: Path, content: bytes) -> None:
    (config / "package.json").write_text("{}")
    (config / ".npmrc").write_bytes(content)
    (config / ".npmrc").chmod(0o600)
    before = contents(tmp_path)
    do()
    do()
    found = (config / ".npmrc").read_bytes()
    assert found.count(RC_TEXT) == 1 and found.replace(RC_TEXT, b"") == content
    assert found.startswith(b"\xef\xbb\xbf") == content.startswith(b"\xef\xbb\xbf")
    assert (config / ".npmrc").stat().st_mode & 0o777 == 0o600  # it may hold a token
    assert not waits(config)
    uninstall(Target.everywhere())
    assert contents(tmp_path) == before


@pytest.mark.parametrize("setting", ["fetch-retries=5", " fetch-retries = 0 "])
def test_a_setting_of_the_user_is_not_overruled(tmp_path: Path, config: Path, setting: str) -> None:
    (config / "package.json").write_text("{}")
    (config / ".npmrc").write_text(setting)
    before = contents(tmp_path)
    told = " ".join(do())
    assert (config / ".npmrc").read_text() == setting
    assert waits(config) == ("5" in setting) == ("was left unchanged" in told)
    uninstall(Target.everywhere())
    assert contents(tmp_path) == before


def test_an_npmrc_that_is_a_link_is_left(tmp_path: Path, config: Path) -> None:
    (config / "package.json").write_text("{}")
    (tmp_path / "shared").write_text("a=1\n")
    (config / ".npmrc").symlink_to(tmp_path / "shared")
    do()
    assert (config / ".npmrc").is_symlink() and (tmp_path / "shared").read_text() == "a=1\n"


def test_a_stub_gives_way_to_a_tool_that_came_later(tmp_path: Path, config: Path) -> None:
    before = contents(tmp_path)
    do()
    assert not starves(config)
    (config / "tool").mkdir()
    (config / "tool" / "mine.ts").write_text('import { tool } from "@opencode-ai/plugin"')
    assert starves(config)  # OpenCode would take the package for installed
    do()
    assert not starves(config) and not waits(config)
    assert names(config) & {*STUB, ".npmrc"} == {".npmrc"}
    uninstall(Target.everywhere())
    (config / "tool" / "mine.ts").unlink()
    (config / "tool").rmdir()
    assert contents(tmp_path) == before


def test_a_dependency_that_the_lock_does_not_name_makes_it_wait(config: Path) -> None:
    do()
    (config / "package.json").write_text('{"devDependencies": {"zod": "*"}}')
    assert waits(config)


def test_directories_that_appear_later_are_prepared_and_undone(tmp_path: Path, project: Path) -> None:
    do()
    later = project / ".opencode"
    later.mkdir()
    assert waits(later)
    assert prepare(ConfigDirectories.of(project), [later]).changed
    assert not waits(later) and not prepare(ConfigDirectories.of(project), [later]).changed
    uninstall(Target.everywhere())
    assert names(later) == set()


def test_a_directory_nobody_can_write_is_left_as_opencode_leaves_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ".opencode").mkdir()
    # Root writes everywhere, so the answer is given for it.
    monkeypatch.setattr("os.access", lambda path, mode: ".opencode" not in str(path))
    do()
    assert names(project / ".opencode") == set() and not waits(project / ".opencode")
