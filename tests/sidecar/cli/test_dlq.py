"""``dlq``: dead letters are listed and shown without a sidecar, and redriven or dropped by it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sidecar.home import Home
from streams.bus.command import Command
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.sidecar.agents.agents import Counter
from tests.sidecar.agents.support import running
from tests.sidecar.cli.helpers import run


async def _bury(store: Path) -> None:
    log = await Log.open(store, seeded_identity(1))
    async with running(log, Counter) as runtime:
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
