"""Reading the log as a person does, next to the real client: my project, my conversation, what waits for me.

Two projects in OpenCode's own terminal; each command is read off a terminal of 80 and of 200 columns.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.terminal import ENTER, READY, Terminal
from tests.sidecar.cli.test_terminal import ANSI, on_terminal

pytestmark = pytest.mark.real_opencode

# Without an agent for titles a session keeps the one it was made with.
CONFIG = {"snapshot": False, "permission": {"bash": "ask"}, "agent": {"title": {"disable": True}}}
ASKS = 'CALL:bash {"command": "echo x; ls", "description": "d"} THEN: SAY:done'
WIDTH = 80


@pytest.fixture(scope="module")
def opencode(
    opencode_binary: Path, model: ModelServer, durable: DurableStream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealOpenCode]:
    with RealOpenCode(
        opencode_binary,
        model.port,
        config=CONFIG,
        plugins={PLUGIN: durable.plugin()},
        plugin_scope="global",
        root=tmp_path_factory.mktemp("reading"),
        serve=False,
    ) as client:
        yield client


@pytest.fixture(scope="module")
def blog(opencode: RealOpenCode) -> Path:
    """A second project, with a first commit of its own."""
    directory = opencode.root / "blog"
    directory.mkdir()
    (directory / "post.md").write_text("A post.\n")
    who = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "post.md"], [*who, "commit", "-q", "-m", "blog"]):
        subprocess.run(["git", *arguments], cwd=directory, env=opencode.environment(), check=True)
    return directory


@pytest.fixture
def windows() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def window(windows: ExitStack, opencode: RealOpenCode, directory: Path, *arguments: str) -> Terminal:
    environment = opencode.environment() | {"PWD": str(directory)}
    return windows.enter_context(Terminal([str(opencode.binary), *arguments], directory, environment))


def shown(durable: DurableStream, cwd: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints on a terminal, without colours, its lines joined."""
    # No plugin of this user's own OpenCode is looked at.
    own = {"XDG_CONFIG_HOME": str(durable.home)}
    text = on_terminal(durable.home, *arguments, width=WIDTH, cwd=cwd, code=code, **own)
    return " ".join(ANSI.sub("", text).split())


def test_a_permission_a_shell_command_and_an_undo(
    windows: ExitStack, opencode: RealOpenCode, durable: DurableStream
) -> None:
    shop = opencode.project
    terminal = window(windows, opencode, shop)
    terminal.wait_for(READY)
    terminal.press(ASKS.encode())
    terminal.wait_for("SAY:done")
    terminal.press(ENTER)
    terminal.wait_for("Permission required")
    wait_until(lambda: "waiting" in durable.cli("streams"), "the ask")
    for command in (["streams"], ["log"]):
        assert " asks for permission: bash echo x; ls" in shown(durable, shop, *command)
    # no plugin is installed for this user
    assert " asks for permission: bash echo x; ls" in shown(durable, shop, "status", code=1)

    terminal.press(ENTER)
    terminal.wait_until(lambda lines: any("Mock 1 · " in line for line in lines), "the end of the turn")
    terminal.press(b"!")
    terminal.wait_for("Shell")
    terminal.press(b"ls")
    terminal.press(ENTER)
    terminal.wait_for("$ ls")
    terminal.prompt("SAY:second", "second")
    terminal.press(b"/undo")
    terminal.wait_for("Undo previous message")
    terminal.press(ENTER)
    terminal.wait_for("1 message reverted")
    wait_until(lambda: "session.reverted" in durable.cli("log"), "what was undone, at once")
    assert "undone later" in durable.cli("read")
    terminal.press(b"\x15")  # the undone prompt is there again
    terminal.prompt("SAY:third", "third")
    wait_until(lambda: "says: third" in durable.cli("log"), "the last answer")
    screen = shown(durable, shop, "log")
    assert "waiting for you" not in screen
    assert re.search(r"user +answer +once", screen) and re.search(r"user +input +!ls", screen)
    assert "undone SAY:second" in screen and "aborted" not in screen and "unknown" not in screen
    assert terminal.quit() == 0


def test_two_projects_a_kill_and_a_resume(
    windows: ExitStack, opencode: RealOpenCode, durable: DurableStream, blog: Path, model: ModelServer
) -> None:
    terminal = window(windows, opencode, blog)
    terminal.wait_for(READY)
    terminal.prompt("SAY:in the blog", "in the blog")
    terminal.press(b"HOLD:long SAY:never")
    terminal.wait_for("SAY:never")
    terminal.press(ENTER)
    model.wait_held("long")
    wait_until(lambda: "\tactive\t" in durable.cli("streams", "--project", str(blog)), "the open turn")
    os.kill(terminal.process.pid, signal.SIGKILL)
    wait_until(lambda: "interrupted" in durable.cli("log", "--project", str(blog)), "the end of the dead turn")
    assert "\tidle\t" in durable.cli("streams", "--project", str(blog))
    model.release("long")

    again = window(windows, opencode, blog, "--continue")
    again.wait_for("in the blog")
    again.prompt("SAY:resumed", "resumed")
    wait_until(lambda: "says: resumed" in durable.cli("log", "--project", str(blog)), "the resumed session")
    [row] = [line.split("\t") for line in durable.cli("streams", "--project", str(blog)).splitlines() if "ses_" in line]
    assert str(blog) in row and row[-1].startswith("New session"), "it keeps its title"
    for cwd, others, mine, theirs in (
        (blog, opencode.project, "SAY:resumed", "SAY:third"),
        (opencode.project, blog, "SAY:third", "SAY:resumed"),
    ):
        screen = shown(durable, cwd, "log")
        assert mine in screen and theirs not in screen
        screen = shown(durable, cwd, "streams")
        assert screen.index(cwd.name) < screen.index(others.name), "its own come first"
    assert again.quit() == 0
