"""What is wrong with agents is seen everywhere, dead letters too, and a person settles it: with real sidecars."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from sidecar.background.messages.message import CLOSED
from sidecar.home import Home
from streams.bus.command import Command
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.sidecar.agents.agents import Counter
from tests.sidecar.agents.support import running as running_runtime
from tests.sidecar.cli.helpers import run
from tests.sidecar.support import running, start, wait_for

AGENTS = """
import asyncio
from pathlib import Path

HERE = Path(__file__).parent

class Payer:
    events = ("lifecycle.*",)

    def receive(self, event):
        if event["type"] == "pay":
            return [{"effect": "pay", "payload": event["payload"]}]
        if event["type"].startswith("effect."):
            return [{"type": "payer.told", "payload": {"type": event["type"]}}]
        if event["type"] == "fail":
            raise RuntimeError("as asked")

    def health(self):
        return ("DEGRADED", ["the bank is slow"])

async def pay(args, key):
    with (HERE / "paid").open("a") as file:
        file.write("x")
    await asyncio.Event().wait()
"""


def told(rows: list[dict[str, Any]], name: str) -> str:
    return "\n".join(f"{row['text']} {row['hint']}" for row in rows if row["name"] == name)


def test_a_payment_in_doubt_and_an_agent_that_is_not_well(home: Home, tmp_path: Path) -> None:
    place, sent = home.path, tmp_path / "sent"
    (place / "shop.py").write_text(AGENTS)
    home.config_path.write_text(
        'link.scripts_may = ["answer"]\n'
        '[worker]\nagents = ["shop.py:Payer", "no.py:Agent"]\neffects = { pay = "shop.py:pay" }\n'
        f'[notify]\nescalate_after_seconds = 0\ncommand = ["sh", "-c", "cat >> {sent}; echo >> {sent}"]\n'
    )
    first = start(home)
    info = running(home)
    assert run(place, "send", "payer", "pay", '{"sum": 7, "to": "ada"}').code == 0
    wait_for((place / "paid").exists, "the payment begins")
    os.kill(info.pid, SIGKILL)
    first.wait()

    second = start(home)
    running(home)
    (asked,) = wait_for(lambda: run(place, "checkpoints", "--json").objects(), "the doubt is asked about")
    assert (asked["kind"], asked["effect"]["agent"]) == ("effect", "payer") and asked["state"] not in CLOSED
    for said in (run(place, "checkpoints").out, run(place, "checkpoints", asked["id"]).out):
        assert 'pay {"sum": 7, "to": "ada"}' in said and "payer" in said and "it happened" in said

    listed = run(place, "agents")
    assert listed.code == 1 and "the bank is slow" in listed.out and "no.py:Agent" in listed.err
    status = run(place, "status", "--json").objects()[0]
    assert "the bank is slow" in str(status["notes"]) and "no.py:Agent" in str(status["notes"])
    assert asked["id"] in "".join(status["asks"]) and "'try again'" in "".join(status["asks"])
    checks = told(run(place, "doctor", "--json").objects(), "agents")
    for said in ("the bank is slow", "no.py:Agent", "may or may not have happened", "durable-stream checkpoints"):
        assert said in checks
    metrics = run(place, "metrics").out
    for line in ('health{agent="payer"} 1.0', 'effects_in_doubt{agent="payer"} 1.0', "agents_not_loaded 1.0"):
        assert line in metrics
    rung = wait_for(lambda: sent.exists() and asked["id"] in (text := sent.read_text()) and text, "it rings")
    wait_for(lambda: "no.py:Agent" in sent.read_text(), "the trouble rings")
    assert "the bank is slow" in sent.read_text() and "it happened" in rung

    assert "[unfit-answer]" in run(place, "checkpoints", asked["id"], "--answer", "yes").err
    assert run(place, "checkpoints", asked["id"], "--answer", "it happened").code == 0
    assert "[already-answered]" in run(place, "checkpoints", asked["id"], "--answer", "try again").err

    def ended() -> list[str]:
        found = run(place, "query", "--type", "payer.told", "--json").objects()
        types = [each["event"]["payload"]["type"] for each in found]
        return types if len(types) > 1 else []

    assert wait_for(ended, "the agent is told") == ["effect.in_doubt", "effect.completed"]
    assert (place / "paid").read_text() == "x"
    assert run(place, "checkpoints").out == ""

    ignored = run(place, "send", "payer", "refund")
    assert ignored.out.startswith("ignored: 1 record") and "payer" in ignored.err
    assert run(place, "send", "payer", "refund", "--json").objects()[0]["outcome"] == "ignored"
    assert run(place, "stop").code == 0
    second.wait()


def doubting(home: Home) -> str:
    """Let an agent ask for a payment whose end nobody knows; the id of the checkpoint."""
    (home.path / "shop.py").write_text(AGENTS.replace("await asyncio.Event().wait()", "raise TimeoutError"))
    home.config_path.write_text(
        'link.scripts_may = ["answer"]\n[worker]\nagents = ["shop.py:Payer"]\neffects = { pay = "shop.py:pay" }\n'
    )
    assert run(home.path, "send", "payer", "pay", '{"sum": 7}').code == 0
    (asked,) = wait_for(lambda: run(home.path, "checkpoints", "--json").objects(), "the doubt is asked about")
    return str(asked["id"])


def test_a_doubt_is_seen_while_no_sidecar_runs(home: Home) -> None:
    """Nothing that a person must know waits for the next start."""
    place = home.path
    doubting(home)
    assert run(place, "stop").code == 0
    assert "may or may not have happened" in told(run(place, "doctor", "--json").objects(), "agents")
    assert "try again" in str(run(place, "status", "--json").objects()[0]["asks"])


FAILING = """
class Reader:
    events = ("writer.wrote",)

    def receive(self, event):
        return self.read(event["payload"]["text"])

    def read(self, text):
        raise ValueError(f"cannot read this: {text}")

class Writer:
    def receive(self, event):
        if event["type"] == "fail":
            raise ValueError("cannot write this")
        return [{"type": "writer.wrote", "payload": {"text": event["payload"]["text"]}}]
"""


def test_what_an_agent_raised_is_seen_and_its_secrets_are_not(home: Home) -> None:
    place, secret = home.path, "ghp_" + "a1B2" * 9
    (place / "papers.py").write_text(FAILING)
    home.config_path.write_text('[worker]\nagents = ["papers.py:Reader", "papers.py:Writer"]\n')
    assert run(place, "send", "writer", "write", json.dumps({"text": f"page 7 {secret}"})).code == 0
    (letter,) = wait_for(lambda: run(place, "dlq", "list", "--json").objects(), "the dead letter")
    assert letter["reason"].startswith("receive raised ValueError at papers.py:9: cannot read this: page 7 ")
    assert letter["reason"].endswith(" (papers.py:9 in read < papers.py:6 in receive)")
    assert letter["reason"] in run(place, "agents").out
    assert letter["reason"] in run(place, "dlq", "show", letter["id"]).out
    assert "cannot write this" in run(place, "send", "writer", "fail").err
    assert run(place, "stop").code == 0
    assert letter["reason"] in run(place, "log", "agent/reader", "--json").out
    own = home.log_path.read_text()
    assert "ValueError at papers.py:9 (papers.py:9 in read < papers.py:6 in receive)" in own and "page 7" not in own
    kept = [path.read_bytes() for path in place.rglob("*") if path.is_file()]
    assert not any(secret.encode() in each for each in kept)


async def _bury(store: Path) -> None:
    log = await Log.open(store, seeded_identity(1))
    async with running_runtime(log, Counter) as runtime:
        about = {"code": "agent-failed", "subject": "cmd.p.w.counter.add", "attempts": 5}
        await runtime.bury("counter", Command("k1", "add", {"by": 4}), "it was broken", about, key="m1")
        await runtime.bury("counter", Command("k2", "fail", {}), "receive raised RuntimeError", about, key="m2")
        text = about | {"code": "undecodable", "body": "{", "encoding": "utf-8", "size": 1}
        await runtime.bury("counter", Command("m3", "command.undecodable", {}), "its body is not JSON", text, key="m3")
    await log.close()


@pytest.fixture
def letters_home(counter_home: Home) -> Path:
    asyncio.run(_bury(counter_home.store_path))
    return counter_home.path


def test_letters_are_listed_and_shown_without_a_sidecar(letters_home: Path) -> None:
    letters = run(letters_home, "dlq", "list", "--json").objects()
    assert [(each["agent"], each["type"], each["code"], each["can_redrive"]) for each in letters] == [
        ("counter", "add", "agent-failed", True),
        ("counter", "fail", "agent-failed", True),
        ("counter", "command.undecodable", "undecodable", False),
    ]
    table = run(letters_home, "dlq", "list").rows()
    assert table[0] == ["letter", "agent", "type", "at", "state", "reason"]
    assert [row[0] for row in table[1:]] == [each["id"] for each in letters]
    assert run(letters_home, "dlq", "list", "--agent", "other").out == ""
    shown = run(letters_home, "dlq", "show", letters[2]["id"][-8:], "--json").objects()[0]
    assert shown["record"]["event"]["payload"]["body"] == "{"
    assert "cmd.p.w.counter.add" in run(letters_home, "dlq", "show", letters[0]["id"]).out
    [told] = [each for each in run(letters_home, "status", "--json").objects()[0]["notes"] if "dlq list" in each]
    assert "counter" in told and "its body is not JSON" in told
    assert (run(letters_home, "agents").code, run(letters_home, "agents", "--json").objects()[0]["agents"]) == (0, [])
    assert run(letters_home, "stop").out.startswith("no sidecar"), "none was started"


def test_redriving_and_dropping_settle_a_letter_once(letters_home: Path) -> None:
    good, bad, text = [each["id"] for each in run(letters_home, "dlq", "list", "--json").objects()]
    done = run(letters_home, "dlq", "redrive", good, bad, text, "--json")
    assert done.code == 1
    assert [each.get("code", each["outcome"]) for each in done.objects()] == ["done", "agent-failed", "undecodable"]
    assert [each["id"] for each in run(letters_home, "dlq", "list", "--json").objects()] == [bad, text]
    status = run(letters_home, "status", "--json").objects()[0]
    assert any("dlq list" in each and "RuntimeError" in each for each in status["notes"])
    checks = run(letters_home, "doctor", "--json").objects()
    assert any(each["name"] == "agents" and "RuntimeError" in each["text"] for each in checks)
    again = run(letters_home, "dlq", "redrive", good)
    assert again.code == 1 and "[no-dead-letter]" in again.err
    assert run(letters_home, "dlq", "drop", bad, text).code == 0
    assert run(letters_home, "dlq", "list").out == ""
    states = [each["state"] for each in run(letters_home, "dlq", "list", "--all", "--json").objects()]
    assert states == ["redriven", "dropped", "dropped"]
    added = run(letters_home, "query", "--type", "counter.added", "--json").objects()
    assert [each["event"]["payload"]["by"] for each in added] == [4], "redriven once"
    assert not any("dlq list" in each for each in run(letters_home, "status", "--json").objects()[0]["notes"])
