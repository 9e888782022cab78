"""An IDE, its window and its clients are recorded, and read as a person does: my conversation, what waits for me. A
window alone is in ``test_background_list.py``, the commands in ``test_several.py``.

All work in one project on one home. Afterwards a server of the same user, with the plugin switched off,
reports what OpenCode itself knows of their sessions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.api import OpenCodeApi
from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode, free_port
from tests.real.recorded import Json, expected, family
from tests.real.terminal import ENTER, READY, Terminal
from tests.sidecar.cli.test_terminal import ANSI, on_terminal

pytestmark = pytest.mark.real_opencode

# Without an agent for titles a session keeps the one it was made with, which is the one that is recorded.
CONFIG = {"permission": {"bash": "ask"}, "agent": {"title": {"disable": True}}}
ASKS = 'CALL:bash {"command": "echo x; ls", "description": "d"} THEN: SAY:done'
WIDTH = 80


@pytest.fixture(scope="module")
def opencode(
    opencode_binary: Path, model: ModelServer, durable: DurableStream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealOpenCode]:
    """The witness. The tests run in its root, with its environment and the plugin switched on."""
    how = {"config": CONFIG, "plugins": {PLUGIN: durable.plugin()}, "root": tmp_path_factory.mktemp("ways")}
    with RealOpenCode(opencode_binary, model.port, environment={"DURABLE_STREAM": "off"}, **how) as client:  # type: ignore[arg-type]
        yield client
        durable.end_with(client)
        wait_until(lambda: client.leftovers() == [], "the end of all processes")


def window(opencode: RealOpenCode, *arguments: str) -> Terminal:
    environment = opencode.environment()
    del environment["DURABLE_STREAM"]
    return Terminal([str(opencode.binary), *arguments], opencode.project, environment)


def session_of(opencode: RealOpenCode, text: str) -> str:
    """The session that contains this text."""
    found = [s["id"] for s in opencode.sessions() if any(p.get("text") == text for p in opencode.parts(s["id"]))]
    assert len(found) == 1, f"{text!r} was said in {found}"
    return str(found[0])


def links(durable: DurableStream) -> list[Json]:
    return list(durable.status()["links"])


def shown(durable: DurableStream, cwd: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints on a terminal, without colours, its lines joined."""
    # No plugin of this user's own OpenCode is looked at.
    own = {"XDG_CONFIG_HOME": str(durable.home)}
    text = on_terminal(durable.home, *arguments, width=WIDTH, cwd=cwd, code=code, **own)
    return " ".join(ANSI.sub("", text).split())


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


def test_an_ide_and_an_attached_terminal(opencode: RealOpenCode, durable: DurableStream) -> None:
    ide = OpenCodeApi(opencode.project)
    ide.port = free_port()
    with window(opencode, "--port", str(ide.port), "--hostname", "127.0.0.1") as editor:
        reads_on(editor, opencode.project, durable)
        undone = odd(durable)
        session = ide.create_session()
        ide.prompt(session, "SAY:for the editor")
        # OpenCode makes two instances of the plugin here, and gives hooks to the second alone.
        wait_until(lambda: sorted(link["delivers"] for link in links(durable)) == [False, True], "both links")
        first, second = links(durable)
        assert first["pid"] == second["pid"] == editor.process.pid
        assert first["instance"] != second["instance"]
        with window(opencode, "attach", f"http://127.0.0.1:{ide.port}") as attached:
            attached.wait_for(READY)
            attached.prompt("SAY:attached", "attached")
            durable.assert_recorded(expected(family(ide, session_of(ide, "SAY:attached"), agent="build")))
            assert len(links(durable)) == 2, "what attaches has no plugin of its own"
        # The same process continues with new instances: nothing is resumed, and nothing is reported twice.
        ide.dispose()
        ide.prompt(session, "SAY:after the disposal")
        wait_until(lambda: not {first["instance"], second["instance"]} & instances(durable), "the end of both links")
        durable.assert_recorded(expected(family(ide, session)))
        assert editor.quit() == 0
    durable.cli("verify")
    assert odd(durable) == undone and "capture.gap" not in undone, "nothing was lost or unknown"


def odd(durable: DurableStream) -> list[str]:
    """The types of the records of what was lost, and of what OpenCode alone knows, such as an undone prompt."""
    return [each["event"]["type"] for each in durable.lines("query", "--type", "capture.gap", "--type", "opencode.*")]


def instances(durable: DurableStream) -> set[str]:
    return {link["instance"] for link in links(durable)}
