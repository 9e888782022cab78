"""Background work with the real client under other settings, behind a proxy that refuses this machine: budgets and a
person stop it, and so does the end of its OpenCode.

One OpenCode and one home for all tests.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import ANY

import pytest

from tests.real.api import OpenCodeError
from tests.real.background import intents, of_session, one, spawn, spawns, with_plugin
from tests.real.durable import DurableStream, is_alive, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.proxy import RefusingProxy

pytestmark = pytest.mark.real_opencode

BUDGETS = "[phantom]\nmax_sessions = 3\nmax_tokens = 5000\n"


@pytest.fixture(scope="module")
def client(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode]:
    own = {"OPENCODE_EXPERIMENTAL_BACKGROUND_SUBAGENTS": "true"}
    with (
        RefusingProxy(model.port) as proxy,
        with_plugin(opencode_binary, model, durable, environment=proxy.environment | own) as opencode,
    ):
        opencode.sessions()  # loads the plugin
        yield opencode


def settings(durable: DurableStream, text: str) -> None:
    """The next sidecar has these, and is there."""
    (durable.home / "config.toml").write_text(text)
    durable.stop()
    durable.wait_linked()


def ended(durable: DurableStream, parent: str, *codes: str) -> None:
    """Wait until the intents of a root have ended like this."""
    wait_until(lambda: [i["code"] for i in intents(durable, parent)] == list(codes), f"ends with {codes}")


def outcomes(durable: DurableStream, *sessions: str) -> list[str]:
    """How the turns of these sessions ended."""
    events = [record["event"] for record in durable.lines("query", "--type", "turn.ended")]
    return [e["payload"]["outcome"] for e in events if e["payload"]["session"] in sessions]


def test_stop_ends_a_headless_opencode_that_has_no_work(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    settings(durable, BUDGETS)
    parent = client.create_session("parent")
    client.prompt(parent, spawn("HOLD:work SAY:forty two"))
    model.wait_held("work")
    (headless,) = durable.status()["headless"]
    assert durable.lines("stop") == [{"stopped": True, "pid": ANY}] and is_alive(headless)
    durable.wait_running()  # the headless OpenCode started another
    model.release("work")
    done = one(durable, "completed", parent)["id"]
    mine = lambda: [each["state"] for each in durable.lines("notices") if each["about"] == done]  # noqa: E731
    wait_until(lambda: mine() == ["seen"], "the result to arrive")
    assert durable.status()["headless"] == [headless]
    durable.cli("stop")
    wait_until(lambda: not is_alive(headless), "the end of the headless OpenCode")
    assert is_alive(client.pid)


def test_the_next_sidecar_knows_the_headless_one_by_its_proxy(client: RealOpenCode, durable: DurableStream) -> None:
    durable.wait_linked()
    parent = client.create_session("parent")
    client.prompt(parent, spawn("SAY:forty two"))
    one(durable, "completed", parent)
    wait_until(lambda: "background-agent" in json.dumps(client.messages(parent)), "the result")
    headless = durable.status()["headless"]
    # A sidecar that starts later knows which identity the headless one has.
    os.kill(killed := durable.wait_linked(), signal.SIGKILL)
    durable.wait_running({killed})
    durable.wait_linked()
    client.prompt(parent, spawn("SAY:again"))
    wait_until(lambda: [i["state"] for i in intents(durable, parent)] == ["completed"] * 2, "the next work")
    assert durable.status()["headless"] == headless


def test_a_runaway_spawner_meets_its_budget(client: RealOpenCode, durable: DurableStream) -> None:
    parent = client.create_session("spawns in one answer")
    client.prompt(parent, " ".join(spawns(f"SAY:{n}", f"number {n}") for n in range(5)) + "THEN: SAY:spawned")
    states = ["completed"] * 3 + ["refused"] * 2
    wait_until(lambda: sorted(i["state"] for i in intents(durable, parent)) == states, "three that ran, two refused")
    assert {i["code"] for i in intents(durable, parent)} == {"", "budget-sessions"}
    read = [part["state"]["output"] for part in client.parts(parent, "tool")]
    assert sum(text.startswith("Not started (budget-sessions)") for text in read) == 2


def test_a_chain_of_agents_meets_its_limit_and_cancelling_the_first_reaches_the_others(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    deepest = f"{spawns('SAY:never', 'fourth')}THEN: HOLD:third SAY:three"
    second = f"{spawns(deepest, 'third')}THEN: HOLD:second SAY:two"
    parent = client.create_session("spawns in depth")
    client.prompt(parent, spawn(f"{spawns(second, 'second')}THEN: HOLD:first SAY:one", "first"))
    states = [*["running"] * 3, "refused"]
    wait_until(lambda: [i["state"] for i in intents(durable, parent)] == states, "the fourth")
    first, *_, refused = intents(durable, parent)
    assert (refused["code"], refused["session"]) == ("budget-sessions", None)
    wait_until(lambda: "budget-sessions" in json.dumps(durable.log(parent)), "what the model read")
    durable.cli("intents", first["id"], "--cancel")
    ends = [*["cancelled"] * 3, "refused"]
    wait_until(lambda: [i["state"] for i in intents(durable, parent)] == ends, "the end of all three")
    for gate in ("first", "second", "third"):
        model.release(gate)
    client.prompt(parent, "SAY:after")
    assert "background-agent" not in json.dumps(client.messages(parent)), "a cancelled one wakes nobody"


def test_tokens_stop_an_agent_in_the_middle(client: RealOpenCode, durable: DurableStream, model: ModelServer) -> None:
    parent = client.create_session("costs too much")
    wasteful = 'USAGE:6000 CALL:bash {"command": "true", "description": "x"}THEN: HOLD:tokens SAY:never'
    client.prompt(parent, spawn(wasteful))
    ended(durable, parent, "budget")
    model.release("tokens")
    (intent,) = intents(durable, parent)
    wait_until(lambda: outcomes(durable, intent["session"]) == ["aborted"], "the end of its turn")


def test_the_model_looks_cancels_and_reaches_a_child_of_the_task_tool(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    parent = client.create_session("cancels")
    task = {"description": "look", "prompt": "HOLD:task SAY:never", "subagent_type": "general"}
    client.prompt(parent, spawn(f"CALL:task {json.dumps(task)}THEN: SAY:never"))
    model.wait_held("task")
    (intent,) = intents(durable, parent)
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


def test_the_command_lists_and_cancels_without_a_call_of_the_model(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    parent = client.create_session("commands")
    client.prompt(parent, spawn("HOLD:listed SAY:never"))
    running = one(durable, "running", parent)
    model.wait_held("listed")
    before = len(model.of(parent))
    for typed, shown in (("list", running["id"]), (f"cancel {running['id']}", "is being cancelled")):
        body = {"command": "background", "arguments": typed}
        with suppress(OpenCodeError):  # the plugin ends the command before the model is asked
            client.request("POST", f"/session/{parent}/command", body)
        wait_until(lambda shown=shown: shown in json.dumps(client.messages(parent)[-1]), shown)
    one(durable, "cancelled", parent)
    assert len(model.of(parent)) == before, "no call of the model"
    model.release("listed")
    told = [e["event"] for e in of_session(durable, parent)]
    assert [e["type"] for e in told if "/background cancel" in json.dumps(e["payload"])] == ["agent.input"]


def test_opencodes_own_background_agent_is_told_apart(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    parent = client.create_session("has OpenCode start it")
    task = {"description": "own", "prompt": "HOLD:own SAY:below", "subagent_type": "general", "background": True}
    client.prompt(parent, f"CALL:task {json.dumps(task)}THEN: SAY:started")

    def states() -> list[str]:
        return [each["state"] for each in durable.lines("intents", "--all") if each.get("parent") == parent]

    wait_until(lambda: states() == ["running"], "OpenCode's own agent in the list")
    (state,) = durable.lines("top")
    assert [each["host"] for each in state["sessions"] if each["session"] != parent] == [True]
    assert "OpenCode's own" in durable.cli("tree", parent)
    model.release("own")
    wait_until(lambda: states() == ["completed"], "its end")
    assert intents(durable, parent) == []


def assert_stop_ends_only(durable: DurableStream, ends: int, *others: int | None) -> None:
    """``stop`` ends this headless OpenCode, and none of the other processes."""
    durable.cli("stop")
    wait_until(lambda: not is_alive(ends), "the end of the headless OpenCode without work")
    assert all(each is not None and is_alive(each) for each in others)


def test_what_cannot_run_is_refused_or_fails_with_its_reason(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    parent = client.create_session("asks for the impossible")
    client.prompt(parent, "SAY:hello")
    here = ("--directory", str(client.project))
    for code, words in (
        ("not-found", ["--directory", "/nowhere/at/all"]),
        ("not-found", [*here, "--parent", "ses_zz"]),
        ("bad-arguments", [*here, "--model", "mock"]),
    ):
        assert durable._run("spawn", "SAY:never", *words).stderr.rstrip().endswith(f"[{code}]")
    words = ("--parent", parent[-9:], "--model", "foo/bar", "--isolation", "shared")
    done = durable._run("spawn", "SAY:never", *here, *words, "--wait=100")
    assert (done.returncode, "Model not found: foo/bar" in done.stderr) == (1, True), "told before the command returned"
    ended(durable, parent, "error")
    (intent,) = intents(durable, parent)
    assert intent["reason"].startswith("Model not found: foo/bar")
    wait_until(lambda: "Model not found" in json.dumps(client.messages(parent)), "the reason in the parent's history")
    assert "[has-ended]" in durable._run("intents", intent["id"], "--cancel").stderr
    wrong = durable._run("spawn", "HTTPERR:401", *here, "--wait")
    assert (wrong.returncode, "failed: HTTP 401: " in wrong.stderr) == (1, True)
    assert wrong.stderr.rstrip().endswith("[work-failed]")
    assert durable._run("spawn", "HTTPERR:401", *here, "--agent", "nobody", "--wait").returncode == 1
    reasons = [each["reason"] for each in intents(durable) if each["directory"] == str(client.project)][-2:]
    assert reasons[0].startswith("HTTP 401: ") and "nobody" in reasons[1]
    assert durable.cli("intents").count("HTTP 401: ") == 1
    queued = [r["event"]["payload"] for r in durable.lines("query", "--type", "message.queued")]
    alerts = [each["text"] for each in queued if each["kind"] == "alert"]
    assert sum("Model not found" in text for text in alerts) == 1, "though it took less than min_seconds"
    assert durable.cli("spawn", "SAY:the result", *here, "--wait") == "the result\n"
    last = intents(durable)[-1]
    places = {each["stream_id"]: each["directory"] for each in durable.lines("streams")}
    assert places[last["session"]] == str(client.project) != last["place"]
    asking = client.create_session("asking")
    client.prompt(asking, spawn("HOLD:meanwhile SAY:late"))
    model.wait_held("meanwhile")
    (working,) = durable.status()["headless"]
    (folder := client.project / "folder").mkdir()
    places = os.pathsep.join((str(client.binary.parent), os.environ["PATH"]))
    durable.terminal = client.environment() | {"PATH": places, "VIRTUAL_ENV": "/x", "SSH_AUTH_SOCK": "/tmp/mine"}
    told = 'CALL:bash {"command": "echo $VIRTUAL_ENV $SSH_AUTH_SOCK", "description": "look"}THEN: SAY:looked'
    shared = ("--directory", str(folder), "--isolation", "shared", "--wait")
    assert durable.cli("spawn", told, *shared) == "looked\n", "in another terminal"
    assert "/x /tmp/mine" in durable.cli("read", intents(durable)[-1]["session"]), "it starts an OpenCode of its own"
    (idle,) = {*durable.status()["headless"]} - {working}
    assert_stop_ends_only(durable, idle, working, client.pid)
    durable.wait_running()  # that with work has started another
    model.release("meanwhile")
    one(durable, "completed", asking)
    wait_until(lambda: "background-agent" in json.dumps(client.messages(asking)), "the result")
    durable.wait_linked()
    assert_stop_ends_only(durable, working, client.pid)
    durable.terminal = client.environment()
    long = durable.cli("spawn", f"SAY:{'long ' * 5000}", *here, "--wait")
    session = intents(durable)[-1]["session"]
    assert len(long) < 17_000 and f"`durable-stream read {session}`" in long
    assert durable.cli("read", session).count("long ") >= 5000 * 2, "the prompt and the answer"
    durable.cli("spawn", "SAY:second", *here, "--parent", parent, "--model", "foo/bar", "--model", "mock/mock-1")
    wait_until(lambda: intents(durable, parent)[-1]["state"] == "completed", "the other model's answer")
