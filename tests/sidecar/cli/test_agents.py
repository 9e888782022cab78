"""``agents --check`` and ``replay``: whether a user's agent keeps the contract, and repeats itself."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sidecar.agents.runtime import Runtime
from sidecar.background.intents.intents import IntentAgent
from sidecar.config import PhantomConfig
from sidecar.home import Home
from streams.bus.command import Command
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.sidecar.agents.agents import Counter
from tests.sidecar.bad_stores import snapshot
from tests.sidecar.cli.helpers import ROOT, run

DIFFERS = """
import os, time

class Late:
    events = ("execution.step",)

    def receive(self, event):
        return [{"type": "late.seen", "payload": {"value": VALUE}}]
"""
FORGETS = """
class Forgets:
    def __init__(self):
        self.seen = 0

    def receive(self, event):
        self.seen += 1
        return []
"""


def test_the_example_keeps_the_contract(counted_home: Home) -> None:
    shutil.copy(ROOT / "examples" / "watch.py", counted_home.path / "agents" / "watch.py")
    before = snapshot(counted_home.store_path)
    done = run(counted_home.path, "agents", "--check", "agents/watch.py:Watcher")
    assert done.code == 0, done
    assert snapshot(counted_home.store_path) == before


def test_an_agent_gets_the_events_and_commands_of_the_log(counted_home: Home) -> None:
    done = run(counted_home.path, "agents", "--check", "tests.sidecar.agents.agents:Counter", "--json")
    (found,) = done.objects()
    assert (done.code, found["agent"], found["findings"]) == (0, "counter", [])
    assert found["events"] >= 5


@pytest.mark.parametrize("value", ["time.time_ns()", "list({'a', 'b', 'c', 'd', 'e'})", "os.getpid()"])
def test_two_processes_that_differ_are_found(counted_home: Home, value: str) -> None:
    (counted_home.path / "agents" / "late.py").write_text(DIFFERS.replace("VALUE", value))
    done = run(counted_home.path, "agents", "--check", "agents/late.py:Late", "--json")
    (found,) = done.objects()
    assert done.code == 1 and found["events"] > 0
    assert {finding["where"] for finding in found["findings"]} == {"receive"}


def test_an_agent_may_print_but_not_end_its_process(counted_home: Home) -> None:
    (counted_home.path / "agents" / "late.py").write_text(DIFFERS.replace("VALUE", "print('seen')"))
    assert run(counted_home.path, "agents", "--check", "agents/late.py:Late").code == 0
    (counted_home.path / "agents" / "late.py").write_text(DIFFERS.replace("VALUE", "os._exit(3)"))
    done = run(counted_home.path, "agents", "--check", "agents/late.py:Late")
    assert done.code == 1 and done.err.endswith(" [bad-agent]\n")


def test_events_of_a_file_are_tried(counted_home: Home) -> None:
    (counted_home.path / "agents" / "forgets.py").write_text(FORGETS)
    events = counted_home.path / "events.jsonl"
    spec = "agents/forgets.py:Forgets"
    assert run(counted_home.path, "agents", "--check", spec).code == 0, "no event of the log is for it"
    events.write_text(json.dumps({"type": "add", "payload": {}}) + "\n\n")
    done = run(counted_home.path, "agents", "--check", spec, "--events", str(events), "--json")
    (found,) = done.objects()
    assert (done.code, found["events"], [finding["where"] for finding in found["findings"]]) == (1, 1, ["receive"])
    events.write_text("[]\n")
    done = run(counted_home.path, "agents", "--check", spec, "--events", str(events))
    assert done.code == 1 and done.err.endswith(" [bad-json]\n")


@pytest.mark.parametrize("spec", ["agents/none.py:Agent", "json:dumps", "sys:maxsize", "nonsense"])
def test_what_is_no_agent_is_refused(counted_home: Home, spec: str) -> None:
    done = run(counted_home.path, "agents", "--check", spec)
    assert done.code == 1 and done.err.endswith(" [bad-agent]\n")


SPEC = "tests.sidecar.agents.agents:Counter"


class Changed(Counter):
    """Adds up in another way."""

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        return [{**output, "type": "counter.other"} for output in super().receive(event)]


def test_an_agent_that_is_as_it_was_replays(counted_home: Home) -> None:
    before = snapshot(counted_home.store_path)
    done = run(counted_home.path, "replay", "agent/counter", "--agent", SPEC, "--json")
    (found,) = done.objects()
    assert (done.code, found["difference"], found["inputs"], found["snapshot"]) == (0, None, 5, "equal")
    assert run(counted_home.path, "replay", "agent/counter", "--agent", SPEC).code == 0
    assert snapshot(counted_home.store_path) == before


def test_the_agents_of_the_config_are_used(counted_home: Home) -> None:
    counted_home.config_path.write_text(f'[worker]\nagents = ["no.such:Agent", "{SPEC}"]\n')
    assert run(counted_home.path, "replay", "agent/counter").code == 0


async def test_the_agent_of_intents_is_known(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    store = await Log.open(home.store_path, seeded_identity(1))
    runtime = Runtime(store, seeded_identity(2), [IntentAgent(PhantomConfig())])
    await runtime.start()
    await runtime.command("intents", Command("a", "intent.discard", {"intent": "int_1"}))
    await runtime.close()
    await store.close()
    done = await asyncio.to_thread(run, home.path, "replay", "agent/intents", "--json")
    assert (done.code, done.objects()[0]["inputs"]) == (0, 1)


def test_a_changed_agent_is_shown_at_its_first_difference(counted_home: Home) -> None:
    done = run(
        counted_home.path, "replay", "agent/counter", "--agent", "tests.sidecar.cli.test_agents:Changed", "--json"
    )
    assert done.code == 1
    assert (done.objects()[0]["difference"]["what"], done.objects()[0]["difference"]["offset"]) == ("outputs", 2)
    assert "counter.other" in run(counted_home.path, "replay", "agent/counter", "--agent", f"{__name__}:Changed").out


@pytest.mark.parametrize(
    ("stream", "more", "code"),
    [
        ("ses_1", ["--agent", SPEC], "no-agent-stream"),
        ("agent/counter", [], "unknown-agent"),
        ("agent/counter", ["--agent", "no.such:Agent"], "unknown-agent"),
        ("agent/nobody", ["--agent", SPEC], "not-found"),
    ],
)
def test_what_cannot_be_replayed_is_refused(counted_home: Home, stream: str, more: list[str], code: str) -> None:
    done = run(counted_home.path, "replay", stream, *more)
    assert done.code == 1
    assert done.err.strip().endswith(f"[{code}]")
