"""The example of an agent in a program of its own, beside a real home, on the embedded server."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from sidecar.home import Home
from sidecar.link.client import ControlClient
from streams.identity import system_identity
from tests.l0.peer import HANG_S, heard
from tests.sidecar.cli.helpers import ROOT, run
from tests.sidecar.support import wait_for
from tests.torture.sidecars import RunningSidecar

PROGRAM = ROOT / "examples" / "foreign_agent.py"
CONFIG = """
[nats]
mode = "embedded"

[worker]
agents = ["agents/clerk.py:Clerk"]
serves = { "cmd.tool.words.count" = "agents/clerk.py:count" }

[worker.tools.far]
target_subject = "cmd.tool.far.away"
"""
AGENT = """
class Clerk:
    def receive(self, event):
        if event["type"] == "ask":
            return [{"to": "scout", "type": "count.words", "payload": event["payload"]}]
        if event["type"] == "counted":
            return [{"type": "clerk.learnt", "payload": event["payload"]}]

async def count(args, key):
    return {"words": len(args["text"].split())}
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    one = RunningSidecar(tmp_path / "home")
    (one.home.path / "agents").mkdir(mode=0o700)
    (one.home.path / "agents" / "clerk.py").write_text(AGENT)
    one.home.config_path.write_text(CONFIG)
    try:
        one.start()
        yield one.home.path
        assert one.lives and one.stop() == 0, one.complaints()
    finally:
        one.close()


def is_ready(home: Path) -> bool:
    found = run(home, "status", "--json").objects()[0]["nats"]
    return found["connected"] and all(each["ready"] for each in [*found["commands"], *found["tools"]])


async def address(home: Path) -> tuple[str, str]:
    async with await ControlClient.connect(Home(home), version="0", nonce=system_identity().nonce) as client:
        found = await client.request("nats")
    return f"nats://127.0.0.1:{found['port']}", found["token"]


async def what_others_hear(home: Path, server: str, token: str) -> None:
    """The agent's turn keeps the rules that ``peer.heard`` checks, and a report that does not fit is
    answered.
    """
    client = await nats.connect(server, token=token, connect_timeout=int(HANG_S))
    stream = client.jetstream(timeout=HANG_S)
    try:
        edges = await stream.pull_subscribe("cg.v1.*.*.evt.agent.scout.>", "ear", stream="cg_evt_v1")
        said: list[Any] = []
        while len(said) < 3:
            said += [heard(message) for message in await edges.fetch(3, timeout=HANG_S)]
        assert [each.says for each in said] == ["state running", "task success", "state idle"]
        assert len({(each.trace, each.body["agent_turn_id"]) for each in said}) == 1
        card = await stream.get_msg("MESHFORGE_EVENTS", int(said[1].body["tool_result_card_id"].split(":")[1]))
        assert json.loads(card.data or b"")["result"] == {"words": 3}
        report = {"tool_call_id": "c", "agent_turn_id": "t", "turn_epoch": 0, "agent_id": "clerk"}
        report |= {"after_execution": "suspend", "status": "success", "tool_result_card_id": "MESHFORGE_EVENTS:1"}
        await stream.publish("cmd.shop._.clerk.inbox.tool_result", json.dumps(report).encode())
        refusals = await stream.pull_subscribe(
            "evt.*.*.agent%2Fclerk%2Feffects.tool.refused", "refusals", stream="MESHFORGE_EVENTS"
        )
        (refused,) = await refusals.fetch(1, timeout=HANG_S)
        assert json.loads(refused.data)["payload"]["error_code"] == "unknown-call"
    finally:
        await client.close()


def test_the_agent_takes_a_command_calls_a_tool_and_answers(home: Path, tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path / "agent.py")
    wait_for(lambda: is_ready(home), "the home listens")
    server, token = asyncio.run(address(home))
    # Alone in a directory of its own, so that it finds nothing of ours.
    program = subprocess.Popen([sys.executable, "-P", tmp_path / "agent.py", server, token], cwd=tmp_path)
    try:
        assert run(home, "send", "clerk", "ask", '{"text": "one two three"}').code == 0

        def learnt() -> list[Any]:
            events = [row["event"] for row in run(home, "log", "agent/clerk", "--json").objects()]
            return [each["payload"] for each in events if each["type"] == "clerk.learnt"]

        assert wait_for(learnt, "the answer has come") == [{"result": {"words": 3}}]
        asyncio.run(what_others_hear(home, server, token))
        assert program.poll() is None
    finally:
        program.kill()
        program.wait()
