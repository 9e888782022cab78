"""Agents of the team in real sidecars of two homes, by the command line."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sidecar.config import ConfigError, load_config
from sidecar.home import Home
from tests.postgres import Postgres, Wire
from tests.sidecar.cli.helpers import run
from tests.sidecar.support import RECORDINGS, serving, wait_for

CONFIG = """
[team]
database = "postgresql://boss@127.0.0.1:{port}/postgres"
machine = "{name}"

[worker]
log = "team"
agents = ["tests.sidecar.agents.agents:Counter", "tests.sidecar.agents.agents:Other"]
effects = {{ note = "tests.sidecar.team.effects:note" }}
"""


def a_home(path: Path, port: int) -> Home:
    home = Home(path)
    home.create()
    home.config_path.write_text(CONFIG.format(port=port, name=path.name))
    return home


def sent(home: Home, *words: str) -> dict[str, Any]:
    done = run(home.path, "send", *words, "--json")
    assert done.code == 0, done
    (found,) = done.objects()
    return found


def row(home: Home, agent: str = "counter") -> dict[str, Any]:
    (found,) = run(home.path, "agents", "--json").objects()
    rows = {each["name"]: each for each in found["agents"]}
    assert rows.keys() >= {"counter", "other", "intents", "messages"}
    return rows[agent]


def logged(home: Home, stream: str) -> list[dict[str, Any]]:
    done = run(home.path, "log", stream, "--machine", "team", "--json")
    assert done.code == 0, done
    return done.objects()


def test_two_homes_have_one_agent(postgres: Postgres, tmp_path: Path) -> None:
    wire = Wire(postgres.port)
    one, two = a_home(tmp_path / "one", wire.port), a_home(tmp_path / "two", postgres.port)
    with ExitStack() as stack:
        for home in (one, two):
            stack.enter_context(serving(home))
        # One state, whichever home handles the command.
        for number, home in enumerate([one, two, two, one]):
            (added,) = sent(home, "counter", "add", '{"by": 2}', "--key", f"k{number}")["records"][1:]
            assert added["event"]["payload"] == {"by": 2, "was": 2 * number}
        assert sent(two, "counter", "add", '{"by": 2}', "--key", "k0")["outcome"] == "duplicate"
        wait_for(lambda: row(one)["handled"] == row(two)["handled"] == 4, "both have read it", every_s=0.1)
        # A command to another agent, and an effect: each once, wherever they are done.
        sent(one, "counter", "tell", '{"to": "other"}')
        sent(two, "counter", "call", json.dumps({"kind": "note", "args": {"file": str(tmp_path / "noted")}}))
        wait_for(lambda: len(logged(one, "agent/counter")) == 16, "the result is handled", every_s=0.1)
        wait_for(lambda: row(two)["effects"] == 0, "the effect has ended", every_s=0.1)
        assert [each["event"]["type"] for each in logged(one, "agent/counter/effects")] == [
            "effect.started",
            "effect.completed",
        ]
        assert (tmp_path / "noted").read_text().count("\n") == 1
        assert [each["event"]["payload"].get("by") for each in logged(two, "agent/other")[1:]] == [None, 9]
        # What an agent cannot do is a dead letter of the team, for any home.
        assert run(two.path, "send", "counter", "fail").err.endswith("[agent-failed]\n")
        # Nothing of it is in a home's own log.
        assert run(one.path, "query", "--type", "counter.*", "--internal").out == ""
        # Without Postgres, the agents stand still, and recording goes on.
        wire.close()
        assert run(one.path, "send", "counter", "add", '{"by": 1}').err.endswith("[team-unavailable]\n")
        assert run(one.path, "play", str(RECORDINGS / "chat.jsonl")).code == 0
        wait_for(lambda: row(one)["health"] == "DEGRADED", "it says so", every_s=0.1)
        sent(two, "counter", "add", '{"by": 5}')
        again = Wire(postgres.port, wire.port)
        wait_for(lambda: row(one)["health"] == "READY", "it goes on", every_s=0.1)
        (added,) = sent(one, "counter", "add", '{"by": 1}')["records"][1:]
        assert added["event"]["payload"]["was"] == 14
    done = run(one.path, "verify", "--machine", "team")
    assert done.code == 0, done
    again.close()


def test_a_home_that_starts_without_postgres(postgres: Postgres, tmp_path: Path) -> None:
    wire = Wire(postgres.port)
    wire.close()
    home = a_home(tmp_path / "one", wire.port)
    with serving(home):
        assert run(home.path, "play", str(RECORDINGS / "chat.jsonl")).code == 0
        assert run(home.path, "send", "counter", "add", '{"by": 1}').err.endswith("[team-unavailable]\n")
        assert row(home)["health"] == "DEGRADED" and row(home, "intents")["health"] == "READY"
        assert "counter" in run(home.path, "doctor").out
        again = Wire(postgres.port, wire.port)
        wait_for(lambda: row(home)["health"] == "READY", "it goes on", every_s=0.1)
        assert sent(home, "counter", "add", '{"by": 1}')["outcome"] == "done"
    again.close()


def test_the_setting_needs_a_database(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[worker]\nlog = "team"\n')
    with pytest.raises(ConfigError, match="needs `database`"):
        load_config(path)
