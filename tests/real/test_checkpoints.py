"""Checkpoints with the real client: asked in the background, answered from the command line, the first answer wins.

One OpenCode and one home for all tests.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.real.background import answers, intents, only, refused, spawn, with_plugin
from tests.real.durable import EXECUTABLE, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.sidecar.inspector.conftest import WAIT_MS, aside, chromium, inspecting

pytestmark = pytest.mark.real_opencode


@pytest.fixture(scope="module")
def client(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode]:
    config = {"permission": {"bash": {"*": "ask", "*durable-stream*": "allow"}}, "subagent_depth": 2}
    with with_plugin(opencode_binary, model, durable, config=config) as opencode:
        yield opencode


def waiting(durable: DurableStream) -> list[dict[str, Any]]:
    return durable.lines("checkpoints")


def result(durable: DurableStream) -> str:
    """What the newest intent says, once it has ended."""
    wait_until(lambda: intents(durable)[-1]["state"] == "completed", "the end of the intent")
    return str(intents(durable)[-1]["result"])


def test_a_permission_below_background_work_is_answered_from_the_command_line(
    client: RealOpenCode, durable: DurableStream
) -> None:
    parent = client.create_session("parent")
    child = {"prompt": 'CALL:bash {"command": "echo in the child", "description": "say it"}'}
    task = json.dumps({"description": "below", "subagent_type": "general", **child})
    client.prompt(parent, spawn(f"CALL:task {task}"))
    asked = only(durable, "permission")
    intent = intents(durable)[-1]
    assert asked["session"] not in (parent, intent["session"])
    assert (asked["intent"], asked["tell"]) == (intent["id"], parent)
    assert "echo in the child" in asked["text"]

    always = ("checkpoints", asked["id"], "--answer", "always")
    assert refused(durable, *always) == "not-confirmed"
    assert set(durable.typed("n\n", *always).split("\n")) >= {"bash echo in the child", "  always   allows echo *"}
    durable.cli("checkpoints", asked["id"], "--answer", "once")
    assert "in the child" in result(durable)
    assert waiting(durable) == []
    assert refused(durable, "checkpoints", asked["id"], "--answer", "reject") == "already-answered"
    (alert,) = (each for each in durable.lines("notices") if each["id"] == asked["id"])
    assert (alert["session"], alert["state"]) == (parent, "answered")
    assert [each["channel"] for each in alert["channels"]] == ["toast"]


def test_a_permission_survives_a_kill_of_the_sidecar(client: RealOpenCode, durable: DurableStream) -> None:
    command = {"command": "echo after the kill", "description": "say it"}
    client.prompt(client.create_session("parent"), spawn(f"CALL:bash {json.dumps(command)}"))
    asked = only(durable, "permission")
    killed = durable.wait_running()
    os.kill(killed, signal.SIGKILL)
    assert [each["id"] for each in waiting(durable)] == [asked["id"]], "it is listed while nothing runs"
    durable.wait_running([killed])
    durable.cli("checkpoints", asked["id"], "--answer", "once")
    assert "after the kill" in result(durable)


def test_what_a_session_of_the_users_asks_is_answered_from_the_command_line(
    client: RealOpenCode, durable: DurableStream
) -> None:
    session = client.create_session("parent")
    client.prompt_async(session, 'CALL:bash {"command": "echo from afar", "description": "x"}')
    asked = only(durable, "permission", background=False)
    assert (asked["session"], asked["intent"]) == (session, None)
    durable.cli("checkpoints", asked["id"][:10], "--answer", "once")
    wait_until(lambda: "from afar" in json.dumps(client.messages(session)[1:]), "the end of the command")
    (known,) = (each for each in durable.lines("checkpoints", "--all") if each["id"] == asked["id"])
    assert (known["state"], known["by"], known["answer"]) == ("answered", "user", ["once"])
    assert known["via"]["channel"] == "command-line" and known["via"]["pid"] > 0 and known["via"]["tty"]
    assert refused(durable, "checkpoints", asked["id"], "--answer", "once") == "already-answered"
    assert answers(durable, session) == [(asked["request"], "user", None)]

    calls = [{"command": f"echo stacked {number}", "description": "x"} for number in range(3)]
    client.prompt_async(session, " ".join(f"CALL:bash {json.dumps(each)}" for each in calls))
    wait_until(lambda: len(waiting(durable)) == 3, "three asks at once")
    first, second, third = waiting(durable)
    durable.cli("checkpoints", second["id"], "--answer", "reject")
    wait_until(lambda: len(answers(durable, session)) == 4, "the end of the others")
    assert sorted(answers(durable, session)[1:]) == sorted(
        [(second["request"], "user", None)]
        + [(each["request"], "opencode", second["request"]) for each in (first, third)]
    )
    ended = {each["id"]: (each["state"], each["why"]) for each in durable.lines("checkpoints", "--all")}
    assert ended[first["id"]] == ended[third["id"]] == ("withdrawn", f"rejected with {second['id']}")
    assert f"withdrawn: rejected with {second['id']}" in durable.cli("log", session)


def test_a_model_with_a_shell_cannot_answer_for_the_person(client: RealOpenCode, durable: DurableStream) -> None:
    asking, answering = client.create_session("asks"), client.create_session("answers")
    client.prompt_async(asking, 'CALL:bash {"command": "echo allowed at last", "description": "x"}')
    asked = only(durable, "permission", background=False)
    said = durable.home.parent / "said"
    command = f"{EXECUTABLE} --home {durable.home} checkpoints {asked['id']} --answer once > {said} 2>&1"
    fork = f"{EXECUTABLE} --home {durable.home} fork {asking} --at any --yes > {said} 2>&1"
    spawned = fork.replace(f"fork {asking} --at any --yes", "spawn SAY:free --directory .")
    for given in (command, f"script -qc '{command}' /dev/null", fork, spawned):
        said.unlink(missing_ok=True)
        client.prompt(answering, f"CALL:bash {json.dumps({'command': given, 'description': 'x'})}")
        wait_until(lambda: said.exists() and said.read_text().endswith("]\n"), "a refusal")
        assert "[needs-person]" in said.read_text(), given
    assert "SAY:free" not in [each["prompt"] for each in intents(durable)]
    assert [each["id"] for each in waiting(durable)] == [asked["id"]], "it still waits"
    durable.cli("checkpoints", asked["id"], "--answer", "once")
    wait_until(lambda: "allowed at last" in json.dumps(client.messages(asking)[1:]), "the end of the command")


def test_an_ask_of_background_work_survives_a_kill_of_the_sidecar(client: RealOpenCode, durable: DurableStream) -> None:
    ask = json.dumps({"question": "Ship it?", "options": ["yes", "no"]})
    client.prompt(client.create_session("parent"), spawn(f"CALL:checkpoint_ask {ask}"))
    asked = only(durable, "ask")
    assert asked["text"] == "Ship it?"
    killed = durable.wait_running()
    os.kill(killed, signal.SIGKILL)
    durable.wait_running([killed])
    wait_until(lambda: waiting(durable)[0]["waiting"], "the call that joins its ask again")
    durable.cli("checkpoints", asked["id"], "--answer", "yes, on Monday")
    assert "yes, on Monday" in result(durable)
    assert waiting(durable) == []


def test_a_signal_is_kept_for_a_later_wait_and_a_later_signal_wakes_the_session_that_waited(
    client: RealOpenCode, durable: DurableStream
) -> None:
    session = client.create_session("parent")
    durable.cli("signal", "deployed", '{"version": 7}')
    client.prompt(session, 'CALL:wait_for {"what": "deployed", "seconds": 5}')
    assert "version" in json.dumps(client.messages(session)[-1])
    client.prompt(session, 'CALL:wait_for {"what": "never", "seconds": 0.1}')
    assert "Signal never has not come" in json.dumps(client.messages(session)[-1])
    durable.cli("signal", "never", '"at last"')
    wait_until(
        lambda: (
            client.messages(session)[-1]["info"]["role"] == "assistant"
            and "at last" in json.dumps(client.messages(session)[-1])
        ),
        "the answer to the signal",
    )


def test_a_session_of_the_project_is_read(client: RealOpenCode, durable: DurableStream) -> None:
    first, second = client.create_session("first"), client.create_session("second")
    client.prompt(first, "SAY:the secret word is xyzzy")
    wait_until(lambda: "xyzzy" in json.dumps(durable.log(first)), "the first session in the log")
    client.prompt(second, f"CALL:stream_read {json.dumps({'stream': first})}")
    assert "xyzzy" in json.dumps(client.messages(second)[-1])


def test_what_the_model_tells_the_user_is_durable_and_an_answer_after_a_stopped_turn_is_a_message(
    client: RealOpenCode, durable: DurableStream
) -> None:
    session = client.create_session("parent")

    def alert() -> dict[str, Any]:
        (found,) = (each for each in durable.lines("notices") if each["session"] == session)
        return found

    client.prompt(session, 'CALL:notify_user {"message": "the build is green"}')
    assert "shows it" in json.dumps(client.messages(session)[-1])
    assert (alert()["kind"], alert()["text"], alert()["state"]) == ("alert", "the build is green", "sent")
    client.prompt(session, "SAY:fine")
    wait_until(lambda: alert()["state"] == "seen", "the person's next words")
    session = client.create_session("asks, and is stopped")
    client.prompt_async(session, 'CALL:checkpoint_ask {"question": "Ship it?"}')
    wait_until(lambda: waiting(durable), "the question")
    (asked,) = waiting(durable)
    client.abort(session)
    wait_until(lambda: not waiting(durable)[0]["waiting"], "the end of the turn")
    durable.cli("checkpoints", asked["id"], "--answer", "on Monday")
    wait_until(lambda: "on Monday" in json.dumps(client.messages(session)), "the answer")


def test_the_inspector_shows_running_work_and_answers_its_ask(client: RealOpenCode, durable: DurableStream) -> None:
    command = {"command": "echo from the page", "description": "say it"}
    work = spawn(f"CALL:bash {json.dumps(command)}", title="work on the page")
    parent = client.create_session("parent")
    with inspecting(durable.home) as served, chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(served.link)
        aside(client.prompt, parent, work)
        expect(page.locator("#waiting")).to_have_text("1", timeout=WAIT_MS)
        page.get_by_role("link", name="Work").click()
        waits, card = page.locator(".card.waits"), page.locator(".card", has_text="work on the page")
        expect(waits).to_contain_text("echo from the page")
        expect(card.locator("header .status")).to_have_text("running")
        waits.get_by_text("Allow once").click()
        expect(waits).to_have_count(0, timeout=WAIT_MS)
        expect(card.locator("header .status")).to_have_text("completed", timeout=WAIT_MS)
    assert "from the page" in result(durable)
    (known,) = (each for each in durable.lines("checkpoints", "--all") if "from the page" in each["text"])
    assert (known["by"], known["via"]["channel"]) == ("user", "page")
