"""Background work with the real client in its terminal. Each test has a home of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.background import of_session, one, only, spawn, window
from tests.real.durable import PLUGIN, DurableStream
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.terminal import ENTER, READY, Terminal

pytestmark = pytest.mark.real_opencode


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[DurableStream]:
    with DurableStream(tmp_path / "home") as stream:
        yield stream


def test_the_terminal_is_closed_and_the_result_waits_for_it(
    opencode_binary: Path, model: ModelServer, durable: DurableStream
) -> None:
    durable.start()
    plugins = {PLUGIN: durable.plugin()}
    options: dict[str, Any] = {"plugins": plugins, "plugin_scope": "global", "serve": False}
    with RealOpenCode(opencode_binary, model.port, **options) as client:
        with window(client) as screen:
            screen.wait_for(READY)
            screen.press(spawn("HOLD:gate SAY:forty two").encode())
            screen.wait_for("agent_spawn")
            screen.press(ENTER)
            screen.wait_for("count things in project started")  # a toast
            running = one(durable, "running")
            screen.wait_until(lambda lines: any("started" in line for line in lines), "the end of the turn")
        model.release("gate")
        assert one(durable, "completed")["result"] == "forty two"
        with window(client, "--session", running["parent"]) as screen:
            screen.wait_for("background-agent")
        seen = [m for m in of_session(durable, running["parent"]) if "forty two" in json.dumps(m)]
        assert len([m for m in seen if m["event"]["type"] == "agent.input"]) == 1, "the parent is woken once"


def test_the_terminal_of_the_parent_shows_that_background_work_waits(
    opencode_binary: Path, model: ModelServer, durable: DurableStream
) -> None:
    durable.start()
    options: dict[str, Any] = {
        "plugins": {PLUGIN: durable.plugin()},
        "plugin_scope": "global",
        "serve": False,
        "config": {"permission": {"bash": "ask"}},
    }
    with RealOpenCode(opencode_binary, model.port, **options) as client:
        environment = client.environment() | {"PWD": str(client.project)}
        with Terminal([str(client.binary)], client.project, environment) as screen:
            screen.wait_for(READY)
            screen.press(spawn('CALL:bash {"command": "make it so", "description": "x"}').encode())
            screen.wait_for("agent_spawn")
            screen.press(ENTER)
            screen.wait_for("OpenCode waits: permission")
            durable.cli("checkpoints", only(durable, "permission")["id"], "--answer", "reject")
            assert durable.lines("checkpoints") == []
