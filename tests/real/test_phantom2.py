"""Background work on OpenCode 2: spawned by the model, run by the user's own service, told to the parent once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.orchestrator.intent_effects import PROMPT
from tests.real.background import intents, one, only, refused, spawn, two_with_plugin
from tests.real.durable import DurableStream, wait_until
from tests.real.host_contract import QUESTIONS
from tests.real.model_server import ModelServer
from tests.real.opencode2 import RealOpenCode2
from tests.real.terminal import ENTER, READY, Terminal

pytestmark = pytest.mark.real_opencode


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[DurableStream]:
    with DurableStream(tmp_path / "home") as stream:
        yield stream


@pytest.fixture
def client(model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode2]:
    durable.cli("agents")
    with two_with_plugin(model, durable) as opencode:
        yield opencode


def told(client: RealOpenCode2, session: str) -> list[str]:
    """The messages in a session's history that carry a result."""
    messages = client.api("GET", f"/api/session/{session}/message?order=asc&limit=100")["data"]
    return [m["text"] for m in messages if m["type"] == "user" and "<background-agent" in m["text"]]


def test_the_whole_line_with_a_closed_terminal_and_a_killed_service(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer
) -> None:
    with Terminal([str(client.binary)], client.project, client.environment()) as screen:
        screen.wait_for(READY)
        screen.wait_for("Mock 1 Mock")  # before that, it does not send
        screen.press(spawn("HOLD:two SAY:forty two").encode())
        screen.wait_for("SAY:started")
        screen.press(ENTER)
        running = one(durable, "running")
        model.wait_held("two")
    parent = running["parent"]
    client.wait(parent)
    client.kill9()
    client.start()
    client.api("GET", f"/api/model?location[directory]={client.project}")  # as a terminal would: it loads the plugin
    wait_until(lambda: intents(durable)[0]["resumes"], "the return to its work")
    model.release("two")
    done = one(durable, "completed")
    assert done["session"] == running["session"] and "continue" in done["result"], "it was prompted again, in place"
    wait_until(lambda: told(client, parent), "the result in the parent")
    wait_until(lambda: [n["state"] for n in durable.lines("notices") if n["kind"] == "wake"] == ["observed"], "receipt")
    client.wait(parent)
    assert len(told(client, parent)) == 1, "woken once"
    inputs = [record["event"] for record in durable.log(parent) if record["event"]["type"].endswith(".input")]
    woken = [event["type"] for event in inputs if "<background-agent" in json.dumps(event["payload"])]
    assert woken == ["agent.input"], "it is no person's"
    listed = client.api("GET", "/api/session?limit=100")["data"]
    assert sorted(each["id"] for each in listed) == sorted([parent, str(running["session"])]), "one session for it"
    client.prompt(parent, f"CALL:intent_result {json.dumps({'intent': done['id']})}")
    client.wait(parent)
    assert done["result"] in json.dumps(client.log_of(parent)[-12:]), "the tools answer"


@pytest.mark.parametrize("how", ["slow", "quick"])
def test_a_restarted_service_continues_by_itself_and_is_not_prompted_again(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer, how: str
) -> None:
    """``quick``: its turn may be over before anybody looks at it."""
    gate = f"restart-{how}"
    parent = client.new_session()
    client.prompt(parent, spawn(f"HOLD:{gate} SAY:forty two"))
    session = str(one(durable, "running")["session"])
    model.wait_held(gate)
    client.wait(parent)
    client.stop_in()
    client.start()
    client.api("GET", f"/api/model?location[directory]={client.project}")
    if how == "slow":
        wait_until(lambda: durable.lines("query", "--type", "intent.resumed"), "the return to its work")
    model.release(gate)
    done = one(durable, "completed")
    assert (done["session"], done["result"]) == (session, "forty two")
    wait_until(lambda: prompts(durable, "started") == prompts(durable, "completed"), "the end of all that is sent")
    wait_until(lambda: [n["state"] for n in durable.lines("notices") if n["kind"] == "wake"] == ["observed"], "receipt")
    client.wait(parent)
    client.wait(session)
    messages = client.api("GET", f"/api/session/{session}/message?order=asc&limit=100")["data"]
    assert [m["text"] for m in messages if m["type"] == "user"] == [f"HOLD:{gate} SAY:forty two"], "no second prompt"
    assert client.api("GET", f"/api/session/{session}/pending")["data"] == []
    assert sum(request.has_tools for request in model.of(session)) == 2, "one continuation"
    assert len(told(client, parent)) == 1, "one wake"
    ends = [e["payload"]["outcome"] for e in events(durable, "turn.ended") if e["payload"]["session"] == session]
    assert ends == ["interrupted", "completed"]


def events(durable: DurableStream, type_: str) -> list[dict[str, Any]]:
    return [record["event"] for record in durable.lines("query", "--type", type_)]


def prompts(durable: DurableStream, state: str) -> int:
    """How many prompts for background work are in this state, or were."""
    return sum(event["payload"]["kind"] == PROMPT for event in events(durable, f"effect.{state}"))


def test_a_question_in_the_background_is_answered_from_the_command_line(
    client: RealOpenCode2, durable: DurableStream
) -> None:
    parent = client.new_session()
    client.prompt(parent, spawn(f"CALL:question {json.dumps({'questions': QUESTIONS})}"))
    asked = only(durable, "question")
    assert refused(durable, "checkpoints", asked["id"], "--answer", "Red") == "unfit-answer"
    durable.cli("checkpoints", asked["id"], "--answer", "Red", "--answer", "none of them")
    assert '"Which door?"="Red", "Which window?"="none of them"' in one(durable, "completed")["result"]
    assert refused(durable, "checkpoints", asked["id"], "--answer", "reject") == "already-answered"


def test_a_silent_one_is_stopped(client: RealOpenCode2, durable: DurableStream, model: ModelServer) -> None:
    (durable.home / "config.toml").write_text("[phantom]\nsilence_minutes = 0.05\n")
    durable.stop()
    client.prompt(client.new_session(), spawn("HOLD:never SAY:late"))
    assert one(durable, "failed")["code"] == "silence"
    model.release("never")
