"""Which program the headless OpenCode is, and which environment it has, when the OpenCode that asked has ended.

No real OpenCode: a copy of ``sleep`` with its name, or a script; both end at once when they are to serve.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.home import Home
from sidecar.install.plugin import is_installed
from sidecar.orchestrator.headless import Headless, HeadlessError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what another process runs")

SLEEP = shutil.which("sleep") or "sleep"


def opencode(directory: Path) -> Path:
    """A program called ``opencode``."""
    directory.mkdir()
    return Path(shutil.copy(SLEEP, directory / "opencode"))


async def started(headless: Headless, home: Path, pid: int | None) -> str:
    """The program that was started."""
    with pytest.raises(HeadlessError, match="ended with code"):
        await headless.link(str(home), pid)
    return str(json.loads((home / "headless.json").read_text())["executable"])


@pytest.fixture
def headless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Headless:
    monkeypatch.setenv("PATH", str(tmp_path))
    return Headless(Home(tmp_path), lambda: [], lambda: "secret", lambda: 0)


async def test_the_program_of_an_opencode_that_ended_is_remembered(headless: Headless, tmp_path: Path) -> None:
    programs = [opencode(tmp_path / name) for name in ("one", "other")]
    with pytest.raises(HeadlessError, match="no `opencode` was found"):
        await headless.link(str(tmp_path), None)
    pids = []
    for program in programs:
        with subprocess.Popen([str(program), "600"]) as process:
            while not Path(f"/proc/{process.pid}/environ").read_bytes():
                continue  # The system sets a new program's environment after Popen has returned.
            headless.know(process.pid)
            pids.append(process.pid)
            process.kill()
    assert await started(headless, tmp_path, pids[0]) == str(programs[0])
    assert await started(headless, tmp_path, pids[1]) == str(programs[1])
    # A person asked, or an OpenCode that this sidecar has never met: the one that linked last.
    assert await started(headless, tmp_path, None) == str(programs[1])
    # It was upgraded meanwhile, and the old program is gone.
    programs[0].unlink()
    assert await started(headless, tmp_path, pids[0]) == str(programs[1])


async def test_another_sidecar_knows_the_program_of_the_last_headless_opencode(
    headless: Headless, tmp_path: Path
) -> None:
    program = opencode(tmp_path / "one")
    (tmp_path / "headless.json").write_text(json.dumps({"pid": 1, "started_ms": 0, "executable": str(program)}))
    assert await started(headless, tmp_path, None) == str(program)


async def test_its_environment_is_that_of_the_one_that_asked_else_of_the_last_one_else_the_sidecars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "opencode"
    script.write_text('#!/bin/sh\nprintf %s "$WHOSE" > "$0.whose"\n')
    script.chmod(0o755)
    monkeypatch.setenv("WHOSE", "the sidecar's")
    headless = Headless(Home(tmp_path), lambda: [], lambda: "secret", lambda: 0, script)

    async def whose(pid: int | None) -> str:
        with pytest.raises(HeadlessError, match="ended with code"):
            await headless.link(str(tmp_path), pid)
        return (tmp_path / "opencode.whose").read_text()

    assert await whose(None) == "the sidecar's"
    pids = [known(headless, "one's"), known(headless, "the other's")]
    assert await whose(pids[0]) == "one's"
    assert await whose(None) == "the other's"


async def test_work_never_begins_only_if_nothing_is_linked_and_the_plugin_is_in_none_of_its_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    links: list[Any] = []
    headless = Headless(Home(tmp_path), lambda: links, lambda: "secret", lambda: 0, has_plugin=is_installed)
    project = tmp_path / "project"
    assert headless.never_links(str(project))
    links = [SimpleNamespace(is_open=True)]
    assert not headless.never_links(str(project))
    links = []
    for config in (project / ".opencode", tmp_path / "config" / "opencode"):
        plugin = config / "plugin" / "durable-stream.js"
        plugin.parent.mkdir(parents=True)
        plugin.write_text("")
        assert not headless.never_links(str(project))
        assert headless.never_links(str(tmp_path / "other")) == (config.name == ".opencode")
        plugin.unlink()


def known(headless: Headless, whose: str) -> int:
    """The process of an OpenCode that linked, and ended."""
    with subprocess.Popen([SLEEP, "600"], env={"WHOSE": whose}) as process:
        while f"WHOSE={whose}".encode() not in Path(f"/proc/{process.pid}/environ").read_bytes():
            continue
        headless.know(process.pid)
        process.kill()
    return process.pid
