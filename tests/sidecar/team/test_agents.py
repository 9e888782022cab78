"""Agents of the team in real sidecars of two homes, by the command line."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nats
import pytest

from sidecar.config import ConfigError, load_config
from sidecar.home import Home
from tests.nats_servers import NEWEST, TOKEN, RealServer, real_server
from tests.postgres import Postgres, Wire
from tests.sidecar.cli.helpers import run
from tests.sidecar.support import RECORDINGS, serving, start, wait_for

CONFIG = """
[team]
database = "postgresql://boss@127.0.0.1:{port}/postgres"
machine = "{name}"

[worker]
log = "team"
agents = ["tests.sidecar.agents.agents:Counter", "tests.sidecar.agents.agents:Other",
  "tests.sidecar.team.user_code:Listener"]
effects = {{ note = "tests.sidecar.team.user_code:note", doubtful = "tests.sidecar.team.user_code:doubtful" }}

[link]
scripts_may = ["answer", "drop"]
"""


def a_home(path: Path, port: int, more: str = "") -> Home:
    home = Home(path)
    home.create()
    home.config_path.write_text(CONFIG.format(port=port, name=path.name) + more)
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


def asked(home: Home) -> list[dict[str, Any]]:
    return run(home.path, "checkpoints", "--json").objects()


def test_what_a_person_does_about_them_is_done_in_any_home(postgres: Postgres, tmp_path: Path) -> None:
    one, two = a_home(tmp_path / "one", postgres.port), a_home(tmp_path / "two", postgres.port)
    file, there = tmp_path / "noted", tmp_path / "there"
    args = {"kind": "doubtful", "args": {"file": str(file), "there": str(there)}}
    with serving(one), serving(two):
        # Both homes ask about an effect in doubt, and the first answer, wherever it is given, is carried out.
        sent(one, "counter", "call", json.dumps(args))
        for home in (one, two):
            (question,) = wait_for(lambda: asked(home), "a question", every_s=0.1)  # noqa: B023
            assert (question["kind"], question["effect"]["kind"]) == ("effect", "doubtful")
        there.touch()
        done = run(two.path, "checkpoints", question["id"], "--answer", "try again")
        assert done.code == 0, done
        wait_for(lambda: row(one)["effects"] == row(two)["effects"] == 0, "it was tried again", every_s=0.1)
        assert file.read_text().count("\n") == 1
        wait_for(lambda: not asked(one), "the other question is withdrawn", every_s=0.1)
        # A dead letter is listed, shown, and handed in again or dropped.
        for by in (1, 13, 2):
            sent(one, "counter", "add", json.dumps({"by": by}))
        letters = wait_for(lambda: run(two.path, "dlq", "list", "--json").objects(), "a dead letter", every_s=0.1)
        (letter,) = [each["id"] for each in letters]
        assert (letters[0]["agent"], row(one, "listener")["dead"]) == ("listener", 1)
        assert "thirteen" in run(one.path, "dlq", "show", letter).out
        assert run(two.path, "dlq", "redrive", letter).code == 1
        assert run(one.path, "dlq", "drop", letter).code == 0
        assert run(two.path, "dlq", "list", "--json").objects() == []
        heard = [each["event"]["payload"] for each in logged(two, "agent/listener")]
        assert [each["by"] for each in heard if "by" in each] == [1, 2], "events are heard once, and in their order"
    for home in (one, two):
        done = run(home.path, "replay", "agent/counter", "--json")
        assert done.objects()[0]["difference"] is None and done.objects()[0]["inputs"] > 3, done
    checked = run(two.path, "agents", "--check", "tests.sidecar.agents.agents:Counter", "--json")
    assert checked.objects()[0]["events"] > 3


async def published(server: RealServer, first: int, end: int) -> None:
    connection = await nats.connect(f"nats://{TOKEN}@127.0.0.1:{server.port}")
    for number in range(first, end):
        headers = {"Nats-Msg-Id": f"m{number}"}
        await connection.jetstream().publish("cmd.shop.main.counter.add", b'{"by": 1}', headers=headers)
    await connection.close()


def commands(home: Home) -> dict[str, Any]:
    (status,) = run(home.path, "status", "--json").objects()
    (found,) = [each for each in status["nats"]["commands"] if each["agent"] == "counter"]
    return dict(found)


def test_both_homes_take_commands_from_nats_and_each_is_handled_once(postgres: Postgres, tmp_path: Path) -> None:
    (tmp_path / "nats").mkdir()
    with real_server(tmp_path / "nats", NEWEST) as server:
        more = f'\n[nats]\nmode = "external"\nservers = ["nats://{TOKEN}@127.0.0.1:{server.port}"]\n'
        homes = [a_home(tmp_path / name, postgres.port, more) for name in ("one", "two")]
        running = [start(home) for home in homes]
        for home in homes:
            wait_for(home.running, "a sidecar")
            wait_for(lambda: commands(home)["ready"], "its consumer", every_s=0.1)  # noqa: B023
        asyncio.run(published(server, 0, 30))
        wait_for(lambda: len(logged(homes[0], "agent/counter")) > 20, "some are handled", every_s=0.1)
        running[0].kill()
        running[0].wait()
        asyncio.run(published(server, 20, 60))  # some a second time
        running[0] = start(homes[0])
        wait_for(lambda: len(logged(homes[1], "agent/counter")) == 1 + 2 * 60, "all are handled", every_s=0.2)
        added = [each["event"]["payload"] for each in logged(homes[1], "agent/counter")]
        assert [each["was"] for each in added if "was" in each] == list(range(60))
        for process in running:
            process.terminate()
            process.wait()
    assert run(homes[0].path, "verify", "--machine", "team").code == 0


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
        # A database that lost everything begins anew, and is not taken for the one of before.
        postgres.empty()
        wait_for(lambda: row(home)["handled"] == 0 and row(home)["health"] == "READY", "it begins anew", every_s=0.1)
        (added,) = sent(home, "counter", "add", '{"by": 1}')["records"][1:]
        assert added["event"]["payload"]["was"] == 0
    again.close()


def test_the_setting_needs_a_database(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[worker]\nlog = "team"\n')
    with pytest.raises(ConfigError, match="needs `database`"):
        load_config(path)
