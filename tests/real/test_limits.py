"""What stops background work, with the real client: budgets, its time, a person. One OpenCode and one home for all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode

pytestmark = pytest.mark.real_opencode

CONFIG = "[phantom]\nmax_sessions = 3\nmax_tokens = 5000\nmax_steps = 12\n"


@pytest.fixture(scope="module")
def client(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode]:
    durable.cli("agents")  # makes the home
    (durable.home / "config.toml").write_text(CONFIG)
    durable.cli("stop")
    plugins = {PLUGIN: durable.plugin()}
    with RealOpenCode(opencode_binary, model.port, plugins=plugins, plugin_scope="global") as opencode:
        yield opencode


def call(prompt: str, title: str = "count things", **more: Any) -> str:
    return f"CALL:agent_spawn {json.dumps({'prompt': prompt, 'title': title, 'isolation': 'shared', **more})}"


def of(durable: DurableStream, parent: str) -> list[dict[str, Any]]:
    """The intents of a root, oldest first."""
    return [intent for intent in durable.lines("intents") if intent["root"] == parent]


def ended(durable: DurableStream, parent: str, *codes: str) -> None:
    """Wait until the intents of a root have ended like this."""
    wait_until(lambda: [i["code"] for i in of(durable, parent)] == list(codes), f"ends with {codes}")


def outcomes(durable: DurableStream, *sessions: str) -> list[str]:
    """How the turns of these sessions ended."""
    events = [record["event"] for record in durable.lines("query", "--type", "turn.ended")]
    return [e["payload"]["outcome"] for e in events if e["payload"]["session"] in sessions]


def test_a_runaway_spawner_meets_its_budget(client: RealOpenCode, durable: DurableStream) -> None:
    parent = client.create_session("spawns in one answer")
    client.prompt(parent, " ".join(call(f"SAY:{n}", f"number {n}") for n in range(5)) + "THEN: SAY:spawned")
    states = ["completed"] * 3 + ["refused"] * 2
    wait_until(lambda: sorted(i["state"] for i in of(durable, parent)) == states, "three that ran, two refused")
    assert {i["code"] for i in of(durable, parent)} == {"", "budget-sessions"}
    read = [part["state"]["output"] for part in client.parts(parent, "tool")]
    assert sum(text.startswith("Not started (budget-sessions)") for text in read) == 2


def test_agents_that_start_agents_share_the_budget_of_their_root(client: RealOpenCode, durable: DurableStream) -> None:
    below = "SAY:the deepest"
    for level in (4, 3, 2):
        below = f"{call(below, f'level {level}')}THEN: SAY:level {level - 1}"
    parent = client.create_session("spawns in depth")
    client.prompt(parent, f"{call(below, 'level 1')}THEN: SAY:spawned")
    wait_until(lambda: [i["title"] for i in of(durable, parent) if i["state"] == "refused"] == ["level 4"], "a refusal")
    wait_until(lambda: [i["state"] for i in of(durable, parent)].count("completed") == 3, "the end of the others")


def test_tokens_stop_an_agent_in_the_middle(client: RealOpenCode, durable: DurableStream, model: ModelServer) -> None:
    parent = client.create_session("costs too much")
    wasteful = 'USAGE:6000 CALL:bash {"command": "true", "description": "x"}THEN: HOLD:tokens SAY:never'
    client.prompt(parent, f"{call(wasteful)}THEN: SAY:spawned")
    ended(durable, parent, "budget")
    model.release("tokens")
    (intent,) = of(durable, parent)
    wait_until(lambda: outcomes(durable, intent["session"]) == ["aborted"], "the end of its turn")


def test_an_endless_loop_is_stopped(client: RealOpenCode, durable: DurableStream, model: ModelServer) -> None:
    parent = client.create_session("never finishes")
    client.prompt(parent, f"{call('CUT:always SAY:and so on')}THEN: SAY:spawned")  # no finish reason, so it goes on
    ended(durable, parent, "endless-loop")
    (intent,) = of(durable, parent)
    wait_until(lambda: outcomes(durable, intent["session"]) == ["aborted"], "the end of its turn")
    assert 12 < len([r for r in model.requests if r.session == intent["session"]]) < 100


def test_its_time_ends_an_agent(client: RealOpenCode, durable: DurableStream, model: ModelServer) -> None:
    parent = client.create_session("takes too long")
    client.prompt(parent, f"{call('HOLD:time SAY:never', minutes=0.05)}THEN: SAY:spawned")
    ended(durable, parent, "timeout")
    model.release("time")
    assert of(durable, parent)[0]["state"] == "failed"


def test_the_model_looks_cancels_and_reaches_a_child_of_the_task_tool(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    parent = client.create_session("cancels")
    task = {"description": "look", "prompt": "HOLD:task SAY:never", "subagent_type": "general"}
    client.prompt(parent, f"{call(f'CALL:task {json.dumps(task)}THEN: SAY:never')}THEN: SAY:spawned")
    model.wait_held("task")
    (intent,) = of(durable, parent)
    asked = json.dumps({"intent": intent["id"]})
    client.prompt(parent, f"CALL:intent_status {{}} CALL:intent_result {asked} CALL:intent_cancel {asked}THEN: SAY:ok")
    status, result, cancel = (part["state"]["output"] for part in client.parts(parent, "tool")[-3:])
    assert f"{intent['id']} running" in status
    assert "is running" in result
    assert "is being cancelled" in cancel
    ended(durable, parent, "cancelled")
    model.release("task")
    wait_until(lambda: outcomes(durable, intent["session"]) == ["aborted"], "the end of its turn")
    children = [r["event"]["payload"] for r in durable.lines("query", "--type", "lifecycle.session.created")]
    (child,) = (each["session"] for each in children if each.get("parent") == intent["session"])
    wait_until(lambda: outcomes(durable, child) == ["aborted"], "the end of its child's turn")
