"""Background work with the real client: spawned by the model, run by a headless OpenCode, told to the parent once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.install.plugin import Target, install
from sidecar.orchestrator.tools import TOOLS
from tests.real.durable import EXECUTABLE, PLUGIN, SHIM, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.terminal import COLUMNS, DOWN, ENTER, READY, Terminal
from tests.sidecar.orchestrator.test_tools import sent

pytestmark = pytest.mark.real_opencode


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[DurableStream]:
    with DurableStream(tmp_path / "home") as stream:
        yield stream


@pytest.fixture
def client(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode]:
    durable.cli("agents")  # the sidecar says which tools there are
    plugins = {PLUGIN: durable.plugin()}
    with RealOpenCode(opencode_binary, model.port, plugins=plugins, plugin_scope="global") as opencode:
        yield opencode


def spawn(prompt: str, title: str = "count things") -> str:
    return f"CALL:agent_spawn {json.dumps({'prompt': prompt, 'title': title})}THEN: SAY:started"


def intents(durable: DurableStream) -> list[dict[str, Any]]:
    return durable.lines("intents")


def window(client: RealOpenCode, *arguments: str, columns: int = COLUMNS) -> Terminal:
    environment = client.environment() | {"PWD": str(client.project)}
    return Terminal([str(client.binary), *arguments], client.project, environment, columns=columns)


def one(durable: DurableStream, state: str) -> dict[str, Any]:
    """The only intent, once it is in this state."""
    wait_until(lambda: [i["state"] for i in intents(durable)] == [state], f"an intent that is {state}")
    return intents(durable)[0]


def test_the_terminal_is_closed_and_the_result_waits_for_it(
    opencode_binary: Path, model: ModelServer, durable: DurableStream
) -> None:
    durable.cli("agents")
    plugins = {PLUGIN: durable.plugin()}
    options: dict[str, Any] = {"plugins": plugins, "plugin_scope": "global", "serve": False}
    with RealOpenCode(opencode_binary, model.port, **options) as client:
        with window(client) as screen:
            screen.wait_for(READY)
            screen.press(spawn("HOLD:gate SAY:forty two").encode())
            screen.wait_for("agent_spawn")
            screen.press(ENTER)
            screen.wait_for("count things: started")  # a toast
            running = one(durable, "running")
            screen.wait_until(lambda lines: any("started" in line for line in lines), "the end of the turn")
        model.release("gate")
        assert one(durable, "completed")["result"] == "forty two"
        with window(client, "--session", running["parent"]) as screen:
            screen.wait_for("background-agent")
        seen = [m for m in client_messages(durable, running["parent"]) if "forty two" in json.dumps(m)]
        assert len([m for m in seen if m["event"]["type"] == "agent.input"]) == 1, "the parent is woken once"


def client_messages(durable: DurableStream, session: str) -> list[dict[str, Any]]:
    return [r for r in durable.log(session) if r["event"]["payload"].get("session") == session]


def test_the_whole_line(client: RealOpenCode, durable: DurableStream, model: ModelServer) -> None:
    parent = client.create_session("parent")
    client.prompt(parent, spawn("SAY:the answer is 42"))
    given = next(request.body["tools"] for request in model.requests if request.has_tools)
    by_name = {tool["function"]["name"]: tool for tool in given}
    assert [by_name[name] for name in TOOLS] == [sent(name) for name in TOOLS], "what the unit test counts"
    wait_until(lambda: [i["state"] for i in intents(durable)] == ["completed"], "the end of the intent")
    (intent,) = intents(durable)
    assert intent["result"] == "the answer is 42"
    assert intent["parent"] == parent
    wait_until(lambda: "42" in json.dumps(client.messages(parent)[-1]), "the parent's answer")


def test_it_edits_a_worktree_and_a_person_takes_over_the_changes(client: RealOpenCode, durable: DurableStream) -> None:
    shell = {"command": "echo two > made.txt && pwd", "description": "make a file"}
    parent = client.create_session("parent")
    client.prompt(parent, spawn(f"CALL:bash {json.dumps(shell)}THEN: SAY:made it"))
    done = one(durable, "completed")
    assert done["place"].startswith(str(durable.home / "worktrees")) and done["changes"]["count"] == 1
    wait_until(lambda: "+two" in json.dumps(client.messages(parent)), "the diff in the parent's message")
    made = client.project / "made.txt"
    assert not made.exists() and not list((durable.home / "worktrees").iterdir())
    assert "made.txt" in durable.cli("intents", done["id"])
    for said in ("Changed 1 file", "there already"):
        assert said in durable.cli("intents", done["id"], "--apply")
        assert made.read_text() == "two\n"
    assert intents(durable)[0]["applied"]


def test_cancelling_reaches_what_it_started_and_a_third_level_is_refused(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    (durable.home / "config.toml").write_text("[phantom]\nmax_depth = 2\n")
    durable.cli("stop")
    third = f"CALL:agent_spawn {json.dumps({'prompt': 'SAY:never', 'title': 'third'})}THEN: HOLD:second SAY:two"
    second = f"CALL:agent_spawn {json.dumps({'prompt': third, 'title': 'second'})}THEN: HOLD:first SAY:one"
    parent = client.create_session("parent")
    client.prompt(parent, spawn(second, "first"))
    wait_until(lambda: [i["state"] for i in intents(durable)] == ["running", "running", "refused"], "the third level")
    first, _, refused = intents(durable)
    assert refused["code"] == "recursion_depth_exceeded" and refused["session"] is None
    wait_until(lambda: "recursion_depth_exceeded" in json.dumps(durable.lines("query")), "what the model read")
    durable.cli("intents", first["id"], "--cancel")
    ends = ["cancelled", "cancelled", "refused"]
    wait_until(lambda: [i["state"] for i in intents(durable)] == ends, "the end of both")
    for gate in ("first", "second"):
        model.release(gate)
    client.prompt(parent, "SAY:after")
    assert "background-agent" not in json.dumps(client.messages(parent)), "a cancelled one wakes nobody"


def test_the_next_model_takes_over_after_a_provider_error(client: RealOpenCode, durable: DurableStream) -> None:
    given = {"prompt": "HTTPERR:400*1 SAY:done", "title": "two models", "model": "mock/mock-1, mock/mock-1"}
    client.prompt(client.create_session("parent"), f"CALL:agent_spawn {json.dumps(given)}THEN: SAY:started")
    wait_until(lambda: intents(durable)[0]["state"] in ("completed", "failed"), "the end of the intent")
    (intent,) = intents(durable)
    assert (intent["state"], intent["result"], len(intent["models"])) == ("completed", "done", 1)
    assert "intent.fallback" in [r["event"]["type"] for r in durable.lines("query")]


def test_a_child_of_its_task_tool_counts_and_a_silent_one_is_stopped(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    task = {"description": "look", "prompt": "SAY:seen", "subagent_type": "general"}
    parent = client.create_session("parent")
    client.prompt(parent, spawn(f"CALL:task {json.dumps(task)}THEN: SAY:done", "with a child"))
    wait_until(lambda: [i["state"] for i in intents(durable)] == ["completed"], "the end of the intent")
    events = [r["event"] for r in durable.lines("query")]
    spent = [e["payload"] for e in events if e["type"] == "intent.spent"]
    assert len(spent) == 3 and "intent.child" in [e["type"] for e in events], "two steps of its own, one of the child's"
    assert intents(durable)[0]["tokens"] == sum(each["tokens"] for each in spent) > 0
    (durable.home / "config.toml").write_text("[phantom]\nsilence_minutes = 0.05\n")
    durable.cli("stop")
    client.prompt(parent, spawn("HOLD:never SAY:late", "silent"))
    wait_until(lambda: [i["code"] for i in intents(durable)] == ["", "silence"], "the watchdog")
    model.release("never")


def test_two_that_end_together_while_the_parent_streams_wake_it_once(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    calls = " ".join(spawn(f"HOLD:both SAY:{name}", name).partition("THEN:")[0] for name in ("first", "second"))
    parent = client.create_session("parent")
    client.prompt_async(parent, f"{calls}THEN: HOLD:stream DRIP:30,0.05 SAY:a long answer")
    wait_until(lambda: [i["state"] for i in intents(durable)] == ["running", "running"], "both at work")
    model.wait_held("stream")
    model.release("both")
    wait_until(lambda: [i["state"] for i in intents(durable)] == ["completed", "completed"], "the end of both")
    model.release("stream")
    seen = ["observed", "observed"]
    wait_until(lambda: [n["state"] for n in durable.lines("notices") if n["kind"] == "wake"] == seen, "both receipts")
    client.prompt(parent, "SAY:after")
    given = [json.dumps(m) for m in client.messages(parent) if m["info"]["role"] == "user"]
    (wake,) = [text for text in given if "background-agent" in text]
    assert "first" in wake and "second" in wake, "one message with both results"


def test_a_result_that_wait_for_returned_wakes_nobody(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    shell = {"command": "echo two > made.txt", "description": "make a file"}
    parent = client.create_session("parent")
    client.prompt(parent, spawn(f"HOLD:waited CALL:bash {json.dumps(shell)}THEN: SAY:forty two"))
    waits = json.dumps({"what": one(durable, "running")["id"]})
    client.prompt_async(parent, f"CALL:wait_for {waits}THEN: SAY:heard it")
    wait_until(lambda: "wait_for" in json.dumps(client.messages(parent)), "the call")
    model.release("waited")
    wait_until(lambda: "heard it" in json.dumps(client.messages(parent)[-1]), "the end of the turn")
    wait_until(lambda: [n["state"] for n in durable.lines("notices")] == ["observed"], "the receipt")
    said = [json.dumps(message) for message in client.messages(parent)]
    assert [("forty two" in text, "+two" in text) for text in said if "background-agent" in text] == [(True, True)]
    assert [message["info"]["role"] for message in client.messages(parent)].count("user") == 2, "no wake"


@pytest.mark.torture
def test_a_hundred_run_four_at_a_time(client: RealOpenCode, durable: DurableStream) -> None:
    client.create_session("parent")  # OpenCode links, and says where its program is
    for number in range(100):
        durable.cli("spawn", f"SAY:result {number}", "--isolation", "shared", "--directory", str(client.project))
    most = 0

    def ended() -> bool:
        nonlocal most
        states = [intent["state"] for intent in intents(durable)]
        most = max(most, sum(state in ("starting", "running", "resuming") for state in states))
        return states == ["completed"] * 100

    wait_until(ended, "the end of all", 1800)
    assert most <= 4
    assert sorted(i["result"] for i in intents(durable)) == sorted(f"result {n}" for n in range(100))
    assert len({i["session"] for i in intents(durable)}) == 100


def test_a_summary_names_the_work_that_still_runs(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    parent = client.create_session("parent")
    client.prompt(parent, spawn("HOLD:summary SAY:forty two", "count the stars"))
    running = one(durable, "running")
    before = len(model.requests)
    client.summarize(parent)
    said = "".join(request.user_text for request in model.requests[before:])
    assert f"background work under way:\n{running['id']} running" in said
    model.release("summary")
    one(durable, "completed")


def test_the_command_lists_and_cancels_without_a_call_of_the_model(
    opencode_binary: Path, model: ModelServer, durable: DurableStream
) -> None:
    durable.cli("agents")
    options: dict[str, Any] = {"plugins": {PLUGIN: durable.plugin()}, "plugin_scope": "global", "serve": False}
    with RealOpenCode(opencode_binary, model.port, **options) as client, window(client) as screen:
        screen.wait_for(READY)
        screen.press(spawn("HOLD:listed SAY:never").encode())
        screen.wait_for("agent_spawn")
        screen.press(ENTER)
        running = one(durable, "running")
        wait_until(lambda: "turn.ended" in [e["event"]["type"] for e in durable.log(running["parent"])], "its turn")
        model.wait_held("listed")
        before = len(model.requests)
        for typed, shown in ((" list", "running"), (f" cancel {running['id']}", "is being cancelled")):
            screen.press(f"/background{typed}".encode())
            screen.wait_for(f"/background{typed}")
            screen.press(ENTER)
            screen.wait_for(shown)
        one(durable, "cancelled")
        assert len(model.requests) == before, "no call of the model"
        model.release("listed")
        told = [e["event"] for e in client_messages(durable, running["parent"])]
        assert [e["type"] for e in told if "/background cancel" in json.dumps(e["payload"])] == ["agent.input"]


def test_the_native_list_cancels_and_the_card_shows_what_runs(
    opencode_binary: Path, model: ModelServer, durable: DurableStream
) -> None:
    durable.cli("agents")
    with RealOpenCode(opencode_binary, model.port, serve=False) as client:
        environment = client.environment()
        places: dict[str, Any] = {"cwd": client.project, "environ": environment}
        install(Target.everywhere(environment), shim=SHIM, command=[str(EXECUTABLE)], home=durable.home, **places)
        with window(client, columns=170) as screen:
            screen.wait_for(READY)
            screen.press(spawn("HOLD:native SAY:never").encode())
            screen.wait_for("agent_spawn")
            screen.press(ENTER)
            running = one(durable, "running")
            wait_until(lambda: "turn.ended" in [e["event"]["type"] for e in durable.log(running["parent"])], "its turn")
            wait_until(lambda: running["session"] in [r.session for r in model.requests], "its call of the model")
            before = len(model.requests)
            screen.wait_for("1 in background")
            screen.wait_for("• count things")
            screen.wait_for("running · ")
            screen.press(b"/background")
            screen.wait_until(
                lambda lines: sum("/background" in line for line in lines) == 2, "one command, and the menu"
            )
            screen.press(ENTER)
            screen.wait_for("Running")
            screen.press(ENTER)
            screen.wait_for("Cancel it")
            screen.press(DOWN)
            screen.press(ENTER)
            screen.wait_for("is being cancelled")
            one(durable, "cancelled")
            screen.wait_until(lambda lines: not any("in background" in line for line in lines), "no card")
            assert len(model.requests) == before, "no call of the model"
        model.release("native")


def test_in_the_users_own_opencode_it_stops_with_it_and_goes_on_in_the_next(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    (durable.home / "config.toml").write_text('[phantom]\nhost = "shim"\n')
    durable.stop()
    parent = client.create_session("parent")
    client.prompt(parent, spawn("HOLD:lent SAY:forty two"))
    running = one(durable, "running")
    model.wait_held("lent")
    client.restart()
    assert one(durable, "resuming")["session"] == running["session"]
    model.release("lent")
    client.messages(parent)  # loads the plugin
    done = one(durable, "completed")
    assert (done["session"], done["resumes"]) == (running["session"], 1)
    wait_until(lambda: "background-agent" in json.dumps(client.messages(parent)), "the result")
    assert not (durable.home / "headless.json").exists()
