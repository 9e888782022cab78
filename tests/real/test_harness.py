"""The harness itself against the real client, without our plugin, checked with OpenCode's own API."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.real.api import OpenCodeError
from tests.real.durable import wait_until
from tests.real.events import Event, EventStream
from tests.real.model_server import HANG_LIMIT_S, SUMMARY_TITLE, ModelServer
from tests.real.opencode import RealOpenCode

pytestmark = pytest.mark.real_opencode

# Without snapshots: OpenCode otherwise runs git twice for every step of the model.
OPENCODE = {"config": {"snapshot": False, "permission": {"bash": {"*": "allow", "printf *": "ask"}}}}


def call(tool: str, **arguments: Any) -> str:
    return f"CALL:{tool} {json.dumps(arguments)}"


def bash(command: str) -> str:
    return call("bash", command=command, description="d")


def texts(message: dict[str, Any]) -> list[str]:
    return [part["text"] for part in message["parts"] if part["type"] == "text"]


def roles(opencode: RealOpenCode, session: str) -> list[str]:
    return [message["info"]["role"] for message in opencode.messages(session)]


def running_tool(event: Event) -> bool:
    part = event["properties"].get("part", {})
    return bool(part.get("type") == "tool" and part["state"]["status"] == "running")


def tool_said_started(event: Event) -> bool:
    part = event["properties"].get("part", {})
    return "started" in str(part.get("state", {}).get("metadata", {}).get("output", ""))


def test_a_chat_is_a_user_and_an_assistant_message(opencode: RealOpenCode, session: str) -> None:
    assert texts(opencode.prompt(session, "SAY:pong")) == ["pong"]
    user, assistant = opencode.messages(session)
    assert assistant["info"]["parentID"] == user["info"]["id"]
    assert session not in opencode.status()


def test_reasoning_becomes_a_part_of_its_own(opencode: RealOpenCode, session: str) -> None:
    opencode.prompt(session, "REASON:let me think\nSAY:done")
    [reasoning] = opencode.parts(session, "reasoning")
    assert reasoning["text"] == "let me think"
    assert reasoning["time"]["end"]


def test_two_parallel_calls_are_two_parts_of_one_message(opencode: RealOpenCode, session: str) -> None:
    answer = opencode.prompt(session, bash("echo one") + " " + bash("echo two"))
    first, second = opencode.parts(session, "tool")
    assert first["messageID"] == second["messageID"]
    assert (first["state"]["output"], second["state"]["output"]) == ("one\n", "two\n")
    assert texts(answer) == ["RESULT<<one\n | two\n>>"]


def test_a_tool_that_throws_leaves_an_error_part(opencode: RealOpenCode, session: str) -> None:
    opencode.prompt(session, call("read", filePath=str(opencode.project / "missing")))
    [part] = opencode.parts(session, "tool")
    assert part["state"]["status"] == "error"
    assert "not found" in part["state"]["error"]


def test_call_ids_repeat_in_a_turn_and_across_turns(opencode: RealOpenCode, session: str) -> None:
    opencode.prompt(session, f"CALLID:same {bash('echo one')} THEN: {bash('echo two')} THEN: SAY:done")
    opencode.prompt(session, bash("echo three"))
    parts = opencode.parts(session, "tool")
    assert [part["callID"] for part in parts] == ["same"] * 3
    assert [part["state"]["output"] for part in parts] == ["one\n", "two\n", "three\n"]
    assert len({part["id"] for part in parts}) == 3


def test_a_task_runs_in_a_child_session(opencode: RealOpenCode, session: str) -> None:
    opencode.prompt(session, call("task", description="work", prompt=bash("echo kid"), subagent_type="general"))
    [child] = opencode.children(session)
    [task] = opencode.parts(session, "tool")
    assert task["state"]["metadata"]["sessionId"] == child["id"]
    assert child["parentID"] == session
    [tool] = opencode.parts(child["id"], "tool")
    assert tool["state"]["output"] == "kid\n"


@pytest.mark.parametrize(("reply", "status"), [("once", "completed"), ("reject", "error")])
def test_a_permission_ask_waits_for_its_reply(
    opencode: RealOpenCode, session: str, events: EventStream, reply: str, status: str
) -> None:
    opencode.prompt_async(session, bash("printf hi"))
    asked = events.wait_type("permission.asked", session)["properties"]
    assert [ask["id"] for ask in opencode.permissions()] == [asked["id"]]
    opencode.reply_permission(asked["id"], reply)
    events.wait_type("session.idle", session)
    [part] = opencode.parts(session, "tool")
    assert part["state"]["status"] == status
    assert opencode.permissions() == []


def test_a_question_gets_its_answer(opencode: RealOpenCode, session: str, events: EventStream) -> None:
    options = [{"label": "Blue", "description": "b"}, {"label": "Red", "description": "r"}]
    question = {"question": "Which color?", "header": "Color", "options": options}
    opencode.prompt_async(session, call("question", questions=[question]))
    asked = events.wait_type("question.asked", session)["properties"]
    assert [ask["id"] for ask in opencode.questions()] == [asked["id"]]
    opencode.reply_question(asked["id"], [["Blue"]])
    events.wait_type("session.idle", session)
    [part] = opencode.parts(session, "tool")
    assert part["state"]["metadata"]["answers"] == [["Blue"]]


def test_two_queued_prompts_share_one_idle(
    opencode: RealOpenCode, model: ModelServer, session: str, events: EventStream
) -> None:
    opencode.prompt_async(session, "HOLD:queued SAY:first")
    model.wait_held("queued")
    opencode.prompt_async(session, "SAY:second")

    def is_second(event: Event) -> bool:
        return bool(event["properties"].get("part", {}).get("text") == "SAY:second")

    events.wait_for(is_second)
    assert opencode.status()[session]["type"] == "busy"
    model.release("queued")
    events.wait_type("session.idle", session)
    messages = opencode.messages(session)
    asked = {m["info"]["id"]: texts(m) for m in messages if m["info"]["role"] == "user"}
    answered = [(asked[m["info"]["parentID"]], texts(m)) for m in messages if m["info"]["role"] == "assistant"]
    assert answered == [(["HOLD:queued SAY:first"], ["first"]), (["SAY:second"], ["second"])]
    assert [event["type"] for event in events.of(session)].count("session.idle") == 1


def test_summarize_compacts_a_session(opencode: RealOpenCode, session: str, events: EventStream) -> None:
    opencode.prompt(session, "SAY:long talk")
    assert opencode.summarize(session)
    events.wait_type("session.compacted", session)
    assert [part["auto"] for part in opencode.parts(session, "compaction")] == [False]
    summary = opencode.messages(session)[-1]
    assert summary["info"]["summary"] is True
    assert [text.splitlines()[0] for text in texts(summary)] == [SUMMARY_TITLE]


def test_a_context_overflow_compacts_and_goes_on(opencode: RealOpenCode, session: str, events: EventStream) -> None:
    opencode.prompt(session, "SAY:long talk")
    answer = opencode.prompt(session, "CTXERR SAY:survived")
    assert texts(answer) == ["survived"]
    error = events.wait_type("session.error", session)["properties"]["error"]
    assert error["name"] == "ContextOverflowError"
    assert [part["auto"] for part in opencode.parts(session, "compaction")] == [True]


def test_http_400_is_an_error_of_the_message(opencode: RealOpenCode, session: str) -> None:
    error = opencode.prompt(session, "HTTPERR:400")["info"]["error"]
    assert (error["name"], error["data"]["statusCode"]) == ("APIError", 400)
    assert texts(opencode.prompt(session, "SAY:still here")) == ["still here"]


def test_a_500_is_retried(opencode: RealOpenCode, session: str, events: EventStream) -> None:
    opencode.prompt_async(session, "HTTPERR:500 SAY:never")
    event = events.wait_for(lambda e: e["properties"].get("status", {}).get("type") == "retry")
    assert event["properties"]["status"]["attempt"] == 1
    opencode.abort(session)
    events.wait_type("session.idle", session)
    assert session not in opencode.status()


def test_abort_while_the_model_thinks(
    opencode: RealOpenCode, model: ModelServer, session: str, events: EventStream
) -> None:
    opencode.prompt_async(session, "HOLD:abort SAY:never")
    model.wait_held("abort")
    assert opencode.abort(session)
    # OpenCode says idle twice after an abort, and only the second comes after the message's own error.
    events.wait_for(
        lambda e: (
            e["type"] == "message.updated"
            and e["properties"]["info"].get("error", {}).get("name") == "MessageAbortedError"
        )
    )
    assert roles(opencode, session) == ["user", "assistant"]
    assert opencode.messages(session)[-1]["parts"] == []
    model.release("abort")


def test_abort_in_a_tool_ends_it(opencode: RealOpenCode, session: str, events: EventStream) -> None:
    opencode.prompt_async(session, bash("sleep 600"))
    events.wait_for(running_tool)
    opencode.abort(session)
    events.wait_for(lambda e: e["type"] == "message.updated" and bool(e["properties"]["info"].get("error")))
    [part] = opencode.parts(session, "tool")
    assert part["state"]["status"] in ("completed", "error")
    assert "abort" in json.dumps(part["state"]).lower()


def test_deleting_a_session_deletes_its_child(opencode: RealOpenCode, session: str, events: EventStream) -> None:
    opencode.prompt(session, call("task", description="work", prompt="SAY:kid", subagent_type="general"))
    [child] = opencode.children(session)
    assert opencode.delete(session)
    for gone in (child["id"], session):
        events.wait_type("session.deleted", gone)
        with pytest.raises(OpenCodeError) as caught:
            opencode.session(gone)
        assert caught.value.status == 404


def test_a_killed_servers_session_goes_on_in_run_and_in_a_new_server(
    opencode: RealOpenCode, session: str, events: EventStream
) -> None:
    opencode.prompt_async(session, bash("echo started; sleep 600"))
    events.wait_for(tool_said_started)
    killed = opencode.pid
    opencode.kill9()
    with pytest.raises(TimeoutError, match="stream ended"):
        events.wait_type("session.idle", session)
    assert opencode.leftovers(), "the tool's command outlives a killed OpenCode"
    assert "from the command line" in opencode.run("SAY:from the command line", "--session", session).stdout
    opencode.start()
    assert opencode.pid != killed
    assert roles(opencode, session) == ["user", "assistant", "user", "assistant"]
    [part] = opencode.parts(session, "tool")
    assert part["state"]["status"] == "running", "OpenCode leaves a killed tool running for ever"


def test_nothing_outlives_the_harness(opencode_binary: Path, model: ModelServer) -> None:
    with RealOpenCode(opencode_binary, model.port, serve=False) as client:
        detached = subprocess.Popen(["sleep", "600"], env=client.environment(), start_new_session=True)
        # For a moment after it is started its environment is not there to be read.
        wait_until(lambda: client.leftovers() == [detached.pid], "it is found")
    assert detached.wait(HANG_LIMIT_S) == -signal.SIGKILL
    assert client.leftovers() == []
    assert not client.root.exists()
