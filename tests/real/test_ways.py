"""An IDE and its clients are recorded. A window alone is in ``test_reading.py``, the commands in ``test_several.py``.

All work in one project on one home. Afterwards a server of the same user, with the plugin switched off,
reports what OpenCode itself knows of their sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.api import OpenCodeApi
from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode, free_port
from tests.real.recorded import Json, expected, family
from tests.real.terminal import READY, Terminal

pytestmark = pytest.mark.real_opencode

# Without an agent for titles a session keeps the one it was made with, which is the one that is recorded.
CONFIG = {"agent": {"title": {"disable": True}}}


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


def test_an_ide_and_an_attached_terminal(opencode: RealOpenCode, durable: DurableStream) -> None:
    ide = OpenCodeApi(opencode.project)
    ide.port = free_port()
    with window(opencode, "--port", str(ide.port), "--hostname", "127.0.0.1") as editor:
        editor.wait_for(READY)
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
    durable.assert_whole()


def instances(durable: DurableStream) -> set[str]:
    return {link["instance"] for link in links(durable)}
