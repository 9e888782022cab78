"""Kill -9 with a phantom at work: of the sidecar, of the headless OpenCode, and of both with OpenCode closed."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from pathlib import Path

import pytest
from rich.console import Console

from tests.real import demo_background
from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.test_phantom import intents, one, spawn

pytestmark = pytest.mark.real_opencode

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("victim", ["sidecar", "headless"])
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
            os.kill(durable.wait_running() if victim == "sidecar" else headless, signal.SIGKILL)
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


@pytest.mark.usefixtures("opencode_binary")
def test_the_demo_closes_opencode_and_kills_both_as_the_readme_shows() -> None:
    told = io.StringIO()
    assert demo_background.main(Console(file=told)) == 0, told.getvalue()
    shown = README.read_text().split("```text\n", 1)[1].split("```", 1)[0]
    assert without_ids(shown) in without_ids(told.getvalue())


def without_ids(text: str) -> str:
    return re.sub(r"int_[0-9a-f]+|\d+", "N", text)


def types_of(durable: DurableStream, session: str | None) -> list[str]:
    records = durable.lines("query")
    return [r["event"]["type"] for r in records if r["event"]["payload"].get("session") == session]


def woken(durable: DurableStream, parent: str) -> int:
    records = [r["event"] for r in durable.log(parent)]
    mine = [e for e in records if e["type"] == "agent.input" and e["payload"].get("session") == parent]
    return sum("background-agent" in json.dumps(e["payload"]) for e in mine)
