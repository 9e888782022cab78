"""docs/operations.md shows what the commands really print, and all settings; numbers may differ."""

from __future__ import annotations

import ast
import asyncio
import re
import tomllib
from pathlib import Path

import pytest

from sidecar.config import Config
from sidecar.home import Home
from streams.identity import seeded_identity
from tests.sidecar.cli.helpers import append, run
from tests.streams.builders import events

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations.md"
LINKED = "2026-11-22 01:53:48,183 INFO sidecar: link opened: pid 7, instance 12ab, OpenCode 1.18.33\n"


def shown() -> dict[str, str]:
    """The output that the page shows, by command."""
    blocks = re.findall(r"```console\n\$ durable-stream ([^\n]*)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return dict(blocks)


def test_the_page_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ada = tmp_path / "ada"
    for name in ("shop/.git", "shop/.opencode", "bin"):
        (ada / name).mkdir(parents=True)
    (ada / "bin" / "opencode").write_text("#!/bin/sh\necho 1.18.33\n")
    (ada / "bin" / "opencode").chmod(0o755)
    monkeypatch.chdir(ada / "shop")
    for name in ("XDG_CONFIG_HOME", "OPENCODE_CONFIG_DIR", "OPENCODE_PURE", "DURABLE_STREAM"):
        monkeypatch.delenv(name, raising=False)
    environ = {"HOME": str(ada), "PATH": f"{ada / 'bin'}:/usr/bin:/bin"}
    home = Home(ada / ".local/share/durable-stream")
    home.create()
    home.ensure_token(seeded_identity(1).nonce)
    home.log_path.write_text(LINKED)
    asyncio.run(append(home.store_path, [events(43)]))

    pages = shown()
    assert list(pages) == ["install", "uninstall", "doctor --fix", "repair --dry-run"]
    printed = {"install": run(home.path, "install", **environ).out}
    (ada / ".opencode").mkdir()
    home.path.chmod(0o755)
    printed["doctor --fix"] = run(home.path, "doctor", "--fix", **environ).out
    (home.store_path / "store.json").unlink()
    with next((home.store_path / "log").iterdir()).open("ab") as segment:
        segment.write(b'{"crc":"half a line')
    printed["repair --dry-run"] = run(home.path, "repair", "--dry-run", **environ).out
    assert run(home.path, "repair", **environ).code == 0
    printed["uninstall"] = run(home.path, "uninstall", **environ).out
    for command, text in printed.items():
        told = re.sub(r"\d+ MiB", "N MiB", text.replace(str(ada), "/home/ada"))
        # A line of the page that says … stands for lines that it leaves out.
        wanted = re.escape(re.sub(r"\d+ MiB", "N MiB", pages[command])).replace("…\\\n", "(?:.*\n)+")
        assert re.fullmatch(wanted, told), (command, told)


def test_the_page_lists_every_setting_with_its_default() -> None:
    (block,) = re.findall(r"^```toml\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    listed = Config.model_validate(tomllib.loads(block))
    assert listed == Config()
    # A setting without a default is in a comment, with an example.
    written = tomllib.loads(re.sub(r"^# (?=\w+ = )", "", block, flags=re.MULTILINE))
    assert {(section, key) for section, keys in written.items() for key in keys} == {
        (section, key) for section, field in Config.model_fields.items() for key in type(field.default).model_fields
    }


def test_the_page_lists_every_check_of_doctor() -> None:
    section = PAGE.read_text().partition("\n## Doctor\n")[2].partition("\n## ")[0]
    listed = {
        name for row in re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE) for name in re.findall("`([^`]+)`", row)
    }
    calls = [call for path in (ROOT / "sidecar").rglob("*.py") for call in ast.walk(ast.parse(path.read_text()))]
    named = {
        str(call.args[0].value)
        for call in calls
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Check"
        if isinstance(call.args[0], ast.Constant)
    }
    assert named and named - listed == set()
