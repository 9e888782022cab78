"""docs/operations.md shows what the commands really print; numbers may differ."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from sidecar.home import Home
from streams.identity import seeded_identity
from tests.sidecar.cli.helpers import append, run
from tests.streams.builders import events

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
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
    assert list(pages) == ["install", "uninstall", "doctor --fix", "repair --dry-run", "repair"]
    printed = {"install": run(home.path, "install", **environ).out}
    (ada / ".opencode").mkdir()
    home.path.chmod(0o755)
    printed["doctor --fix"] = run(home.path, "doctor", "--fix", **environ).out
    (home.store_path / "store.json").unlink()
    with next((home.store_path / "log").iterdir()).open("ab") as segment:
        segment.write(b'{"crc":"half a line')
    for command in ("repair --dry-run", "repair"):
        printed[command] = run(home.path, *command.split(), **environ).out
    printed["uninstall"] = run(home.path, "uninstall", **environ).out
    for command, text in printed.items():
        told = re.sub(r"\d+ MiB", "N MiB", text.replace(str(ada), "/home/ada"))
        assert told == re.sub(r"\d+ MiB", "N MiB", pages[command]), command
