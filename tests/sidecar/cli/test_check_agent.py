"""``agents --check``: whether a user's agent is pure, found out in the command's own process."""

from __future__ import annotations

import json
import shutil

import pytest

from sidecar.home import Home
from tests.sidecar.bad_stores import snapshot
from tests.sidecar.cli.helpers import ROOT, run

CLOCK = """
import time

class Late:
    events = ("execution.step",)

    def receive(self, event):
        return [{"type": "late.seen", "payload": {"at": time.time()}}]
"""

FORGETS = """
class Forgets:
    def __init__(self):
        self.seen = 0

    def receive(self, event):
        self.seen += 1
        return []
"""


def test_the_example_is_pure(counted_home: Home) -> None:
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


def test_a_clock_is_found_in_the_source_and_when_it_runs(counted_home: Home) -> None:
    (counted_home.path / "agents" / "late.py").write_text(CLOCK)
    done = run(counted_home.path, "agents", "--check", "agents/late.py:Late", "--json")
    (found,) = done.objects()
    assert done.code == 1 and found["events"] > 0
    assert {"Late.receive (line 8)", "receive"} <= {finding["where"] for finding in found["findings"]}


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
