"""Reading the log as a person does, next to the real client in its own terminal: my conversation, what waits for me."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.real.background import window
from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.terminal import ENTER, READY, Terminal
from tests.sidecar.cli.test_terminal import ANSI, on_terminal

pytestmark = pytest.mark.real_opencode

# Without an agent for titles a session keeps the one it was made with.
CONFIG = {"permission": {"bash": "ask"}, "agent": {"title": {"disable": True}}}
ASKS = 'CALL:bash {"command": "echo x; ls", "description": "d"} THEN: SAY:done'
WIDTH = 80


def shown(durable: DurableStream, cwd: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints on a terminal, without colours, its lines joined."""
    # No plugin of this user's own OpenCode is looked at.
    own = {"XDG_CONFIG_HOME": str(durable.home)}
    text = on_terminal(durable.home, *arguments, width=WIDTH, cwd=cwd, code=code, **own)
    return " ".join(ANSI.sub("", text).split())


def test_a_permission_a_shell_command_and_an_undo(
    opencode_binary: Path, model: ModelServer, durable: DurableStream
) -> None:
    plugins = {PLUGIN: durable.plugin()}
    with (
        RealOpenCode(opencode_binary, model.port, config=CONFIG, plugins=plugins, serve=False) as client,
        window(client) as terminal,
    ):
        reads_on(terminal, client.project, durable)


def reads_on(terminal: Terminal, shop: Path, durable: DurableStream) -> None:
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
