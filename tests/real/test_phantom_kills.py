"""Kill -9 with a phantom at work: of the sidecar, of the headless OpenCode, of the user's OpenCode."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.test_phantom import intents, one, spawn

pytestmark = pytest.mark.real_opencode


@pytest.mark.parametrize("victim", ["sidecar", "headless", "both"])
def test_the_work_goes_on(opencode_binary: Path, model: ModelServer, tmp_path: Path, victim: str) -> None:
    with DurableStream(tmp_path / "home") as durable:
        durable.cli("agents")
        plugins = {PLUGIN: durable.plugin()}
        with RealOpenCode(opencode_binary, model.port, plugins=plugins, plugin_scope="global") as client:
            parent = client.create_session("parent")
            client.prompt(parent, spawn(f"HOLD:{victim} SAY:forty two"))
            running = one(durable, "running")
            wait_until(lambda: "turn.started" in types_of(durable, running["session"]), "the turn of the phantom")
            headless = json.loads((durable.home / "headless.json").read_text())["pid"]
            if victim != "headless":
                os.kill(durable.running(), signal.SIGKILL)
            if victim != "sidecar":
                os.kill(headless, signal.SIGKILL)
            model.release(victim)
            wait_until(lambda: intents(durable)[0]["state"] in ("completed", "failed"), "the end of the intent")
            (intent,) = intents(durable)
            assert (intent["state"], intent["session"]) == ("completed", running["session"])
            assert intent["resumes"] == (victim != "sidecar")
            wait_until(lambda: woken(durable, parent), "the wake of the parent")
            children = client.children(parent)
            assert [child["id"] for child in children] == [running["session"]], "one session for one intent"
            client.prompt(parent, "SAY:after")
            assert woken(durable, parent) == 1, "woken once"


def types_of(durable: DurableStream, session: str | None) -> list[str]:
    records = durable.lines("query")
    return [r["event"]["type"] for r in records if r["event"]["payload"].get("session") == session]


def woken(durable: DurableStream, parent: str) -> int:
    records = [r["event"] for r in durable.log(parent)]
    mine = [e for e in records if e["type"] == "agent.input" and e["payload"].get("session") == parent]
    return sum("background-agent" in json.dumps(e["payload"]) for e in mine)
