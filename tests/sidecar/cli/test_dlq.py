"""``dlq``: dead letters are listed and shown without a sidecar, and redriven or dropped by it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.runtime.inputs import Command
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.sidecar.cli.helpers import ROOT, run
from tests.sidecar.runtime.agents import Counter
from tests.sidecar.runtime.support import running

AGENTS = ROOT / "tests" / "sidecar" / "runtime" / "agents.py"


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
def home(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "home"
    path.mkdir(mode=0o700)
    asyncio.run(_bury(path / "store"))
    (path / "config.toml").write_text(f'[worker]\nagents = ["{AGENTS}:Counter"]\n')
    yield path
    assert run(path, "stop").code == 0


def test_letters_are_listed_and_shown_without_a_sidecar(home: Path) -> None:
    letters = run(home, "dlq", "list", "--json").objects()
    assert [(each["agent"], each["type"], each["code"], each["can_redrive"]) for each in letters] == [
        ("counter", "add", "agent-failed", True),
        ("counter", "fail", "agent-failed", True),
        ("counter", "command.undecodable", "undecodable", False),
    ]
    table = run(home, "dlq", "list").rows()
    assert table[0] == ["letter", "agent", "type", "at", "state", "reason"]
    assert [row[0] for row in table[1:]] == [each["id"] for each in letters]
    assert run(home, "dlq", "list", "--agent", "other").out == ""
    shown = run(home, "dlq", "show", letters[2]["id"][-8:], "--json").objects()[0]
    assert shown["record"]["event"]["payload"]["body"] == "{"
    assert "cmd.p.w.counter.add" in run(home, "dlq", "show", letters[0]["id"]).out
    assert any("dlq list" in each for each in run(home, "status", "--json").objects()[0]["notes"])
    assert run(home, "stop").out.startswith("no sidecar"), "none was started"


@pytest.mark.parametrize("command", ["show", "redrive", "drop"])
def test_an_unknown_letter_has_its_code(home: Path, command: str) -> None:
    done = run(home, "dlq", command, "01ZZZZ")
    assert done.code == 1 and "[no-dead-letter]" in done.err


def test_redriving_and_dropping_settle_a_letter_once(home: Path) -> None:
    good, bad, text = [each["id"] for each in run(home, "dlq", "list", "--json").objects()]
    done = run(home, "dlq", "redrive", good, bad, text, "--json")
    assert done.code == 1
    assert [each.get("code", each["outcome"]) for each in done.objects()] == ["done", "agent-failed", "undecodable"]
    assert [each["id"] for each in run(home, "dlq", "list", "--json").objects()] == [bad, text]
    status = run(home, "status", "--json").objects()[0]
    assert any("dlq list" in each for each in status["notes"])
    again = run(home, "dlq", "redrive", good)
    assert again.code == 1 and "[no-dead-letter]" in again.err
    assert run(home, "dlq", "drop", bad, text).code == 0
    assert run(home, "dlq", "list").out == ""
    states = [each["state"] for each in run(home, "dlq", "list", "--all", "--json").objects()]
    assert states == ["redriven", "dropped", "dropped"]
    added = run(home, "query", "--type", "counter.added", "--json").objects()
    assert [each["event"]["payload"]["by"] for each in added] == [4], "redriven once"
    assert not any("dlq list" in each for each in run(home, "status", "--json").objects()[0]["notes"])
