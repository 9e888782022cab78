"""Background work with the real client in its terminal, and with other settings. Each test has a home of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.install.plugin import Target, install
from tests.real.background import intents, one, spawn, window, with_plugin
from tests.real.durable import EXECUTABLE, PLUGIN, SHIM, DurableStream, wait_until
from tests.real.host_contract import QUESTIONS
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.terminal import DOWN, ENTER, READY, Terminal

pytestmark = pytest.mark.real_opencode


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[DurableStream]:
    with DurableStream(tmp_path / "home") as stream:
        yield stream


@pytest.fixture
def client(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode]:
    with with_plugin(opencode_binary, model, durable) as opencode:
        yield opencode


def only(durable: DurableStream, kind: str) -> dict[str, Any]:
    """The one thing that waits for a person."""
    wait_until(lambda: [each["kind"] for each in durable.lines("checkpoints")] == [kind], f"a {kind} that waits")
    return durable.lines("checkpoints")[0]


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


def test_a_silent_one_is_stopped(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> None:
    with with_plugin(opencode_binary, model, durable, "[phantom]\nsilence_minutes = 0.05\n") as client:
        client.prompt(client.create_session("parent"), spawn("HOLD:never SAY:late", "silent"))
        wait_until(lambda: [i["code"] for i in intents(durable)] == ["silence"], "the watchdog")
        model.release("never")


def test_the_terminal_of_the_parent_shows_that_background_work_waits(
    opencode_binary: Path, model: ModelServer, durable: DurableStream
) -> None:
    durable.cli("agents")
    options: dict[str, Any] = {
        "plugins": {PLUGIN: durable.plugin()},
        "plugin_scope": "global",
        "serve": False,
        "config": {"permission": {"bash": "ask"}},
    }
    with RealOpenCode(opencode_binary, model.port, **options) as client:
        environment = client.environment() | {"PWD": str(client.project)}
        with Terminal([str(client.binary)], client.project, environment) as screen:
            screen.wait_for(READY)
            screen.press(spawn('CALL:bash {"command": "make it so", "description": "x"}').encode())
            screen.wait_for("agent_spawn")
            screen.press(ENTER)
            screen.wait_for("OpenCode waits: permission")
            durable.cli("checkpoints", only(durable, "permission")["id"], "--answer", "reject")
            assert durable.lines("checkpoints") == []


def test_a_question_of_several_parts_is_answered_part_by_part_in_the_native_list(
    opencode_binary: Path, model: ModelServer, durable: DurableStream
) -> None:
    durable.cli("agents")
    with RealOpenCode(opencode_binary, model.port, serve=False) as client:
        durable.in_project(client, "install")
        environment = client.environment() | {"PWD": str(client.project)}
        with Terminal([str(client.binary)], client.project, environment) as screen:
            screen.wait_for(READY)
            screen.press(spawn(f"CALL:question {json.dumps({'questions': QUESTIONS})}").encode())
            screen.wait_for("agent_spawn")
            screen.press(ENTER)
            only(durable, "question")
            screen.wait_until(lambda lines: not any("esc interrupt" in line for line in lines), "the end of the turn")
            screen.press(b"/background")
            screen.wait_until(
                lambda lines: sum("/background" in line for line in lines) == 2, "one command, and the menu"
            )
            screen.press(ENTER)
            screen.wait_for("Waiting for you")
            screen.press(ENTER)
            for asked, answer in (("Which door?", "Red"), ("Which window?", "none of them")):
                screen.wait_for(asked)
                screen.wait_for("Your answer")
                screen.press(answer.encode())
                screen.wait_for(answer)
                screen.press(ENTER)
            screen.wait_for("Answered: Red; none of them")
            assert '"Which door?"="Red", "Which window?"="none of them"' in one(durable, "completed")["result"]
