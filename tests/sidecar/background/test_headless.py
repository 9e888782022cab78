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

from sidecar.background.hosts.headless import Headless
from sidecar.background.hosts.host import HostAbsent, HostError
from sidecar.home import Home
from sidecar.install.plugin import is_installed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what another process runs")

SLEEP = shutil.which("sleep") or "sleep"


def opencode(directory: Path) -> Path:
    """A program called ``opencode``."""
    directory.mkdir()
    return Path(shutil.copy(SLEEP, directory / "opencode"))


async def started(headless: Headless, home: Path, environment: str) -> str:
    """The program that was started."""
    with pytest.raises(HostError, match="ended with code"):
        await headless.link(str(home), environment)
    return str(json.loads((home / "headless.json").read_text())["servers"][-1]["executable"])


@pytest.fixture
def headless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Headless:
    monkeypatch.setenv("PATH", str(tmp_path))
    return made(tmp_path)


def made(home: Path, *more: Any) -> Headless:
    Home(home).ensure_token(lambda: "5" * 64)
    return Headless(Home(home), lambda: [], lambda: "secret", lambda: 0, *more)


def known(headless: Headless, program: str = SLEEP, **environment: str) -> str:
    """The environment of an OpenCode that linked, and ended."""
    with subprocess.Popen([program, "600"], env={"PATH": "/bin", **environment}) as process:
        while not Path(f"/proc/{process.pid}/environ").read_bytes():
            continue  # The system sets a new program's environment after Popen has returned.
        headless.know(process.pid)
        process.kill()
    return headless.environment_of(process.pid)


async def test_the_program_of_an_opencode_that_ended_is_remembered(headless: Headless, tmp_path: Path) -> None:
    programs = [opencode(tmp_path / name) for name in ("one", "other")]
    with pytest.raises(HostError, match="no `opencode` was found"):
        await headless.link(str(tmp_path), "")
    one, other = (known(headless, str(program), WHOSE=program.parent.name) for program in programs)
    assert await started(headless, tmp_path, one) == str(programs[0])
    assert await started(headless, tmp_path, other) == str(programs[1])
    # It was upgraded meanwhile, and the old program is gone.
    programs[0].unlink()
    assert await started(headless, tmp_path, one) == str(programs[1])


async def test_its_environment_is_that_of_the_one_that_asked_and_never_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "opencode"
    script.write_text('#!/bin/sh\nprintf %s "$WHOSE" > "$0.whose"\n')
    script.chmod(0o755)
    monkeypatch.setenv("WHOSE", "the sidecar's")
    headless = made(tmp_path, script)

    async def whose(environment: str) -> str:
        with pytest.raises(HostError, match="ended with code"):
            await headless.link(str(tmp_path), environment)
        return (tmp_path / "opencode.whose").read_text()

    assert await whose("") == "the sidecar's"
    one = known(headless, WHOSE="one's")
    assert await whose("") == "one's", "the only one that is known"
    other = known(headless, WHOSE="the other's")
    assert await whose(one) == "one's" and await whose(other) == "the other's"
    with pytest.raises(HostError, match="several environments"):
        await headless.link(str(tmp_path), "")
    for name in ("env_of_nobody", made(tmp_path, script).environments.name({"WHOSE": "a third's"})):
        with pytest.raises(HostAbsent):
            await headless.link(str(tmp_path), name)


def test_an_environment_is_the_same_in_every_terminal_and_after_every_restart(tmp_path: Path) -> None:
    headless = made(tmp_path)
    one = known(headless, SECRET="1", TERM="xterm", PWD="/a", TMUX_PANE="%1", SSH_TTY="/dev/pts/1")
    assert one == known(made(tmp_path), SECRET="1", TERM="linux", PWD="/b")
    assert one != known(headless, SECRET="2", TERM="xterm", PWD="/a")
    assert one != known(headless, SECRET="1", OPENCODE_PERMISSION='{"bash":"deny"}')
    assert "SECRET" not in json.dumps([path.read_text() for path in tmp_path.iterdir() if path.is_file()])


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
