"""One event per action in OpenCode: compares the log with OpenCode's API."""

from __future__ import annotations

import json
from copy import deepcopy
from threading import Thread
from typing import Any

import pytest

from streams.lineage import RETRIED, STEP_STARTED
from tests.real.durable import DurableStream, wait_until
from tests.real.events import Event, EventStream
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.recorded import Expectation, Json, differences, expected, family, other_twin
from tests.real.scripts import bash, call, task

pytestmark = pytest.mark.real_opencode

OPENCODE = {
    "subagent_depth": 3,
    "permission": {"bash": {"*": "allow", "printf *": "ask"}},
    "agent": {"general": {"permission": {"task": "allow"}}},
}

_checked: list[Expectation] = []
"""What the tests of this module found recorded; it must still be all at the end."""


def check(
    durable: DurableStream, opencode: RealOpenCode, session: str, events: EventStream | None = None, **known: Any
) -> list[Json]:
    """Assert that a root session's log matches OpenCode's report, and return its records."""
    plan = expected(family(opencode, session, events, **known))
    records = durable.assert_recorded(plan)
    _checked.append(plan)
    return records


def payloads(records: list[Json], type_: str) -> list[Json]:
    return [record["event"]["payload"] for record in records if record["event"]["type"] == type_]


def failed_message(event: Event) -> bool:
    return event["type"] == "message.updated" and bool(event["properties"]["info"].get("error"))


def running_tool(event: Event) -> bool:
    part = event["properties"].get("part", {})
    return bool(part.get("type") == "tool" and part["state"]["status"] == "running")


def test_a_person_s_commands(durable: DurableStream, opencode: RealOpenCode, session: str, events: EventStream) -> None:
    """``!``: no hook reports the prompt, and only the output says that a command was interrupted."""

    def run(command: str) -> None:
        opencode.request("POST", f"/session/{session}/shell", {"agent": "build", "command": command})

    def started(event: Event) -> bool:
        state = event["properties"].get("part", {}).get("state", {})
        return "begun" in str((state.get("metadata") or {}).get("output"))

    run("echo hi")
    running = Thread(target=run, args=("echo begun; sleep 600",))
    running.start()
    events.wait_for(started)
    opencode.abort(session)
    running.join()
    opencode.prompt(session, "SAY:on")
    turn = ["human.input", "turn.started", "execution.step", "turn.ended"]
    command = [*turn[:2], "execution.step.started", *turn[2:]]
    wanted = ["lifecycle.session.created", *command, *command, *turn[:2], "execution.output", *turn[2:]]

    def recorded() -> list[Json]:
        records = [record["event"] for record in durable.log(session)]
        return records if len(records) >= len(wanted) else []

    found = wait_until(recorded, "all of it in the log")
    assert [event["type"] for event in found] == wanted
    told = {kind: [event["payload"] for event in found if event["type"] == kind] for kind in wanted}
    assert [each.get("shell") for each in told["human.input"]] == ["echo hi", "echo begun; sleep 600", None]
    assert [each["trigger"] for each in told["turn.started"]] == ["shell", "shell", "prompt"]
    assert [each["outcome"] for each in told["turn.ended"]] == ["completed", "aborted", "completed"]


def test_a_chat(durable: DurableStream, opencode: RealOpenCode, session: str) -> None:
    opencode.prompt(session, "REASON:let me think\nSAY:pong")
    opencode.prompt(session, "SAY:and again")
    records = check(durable, opencode, session)
    assert [record["event"]["type"] for record in records] == [
        "lifecycle.session.created",
        *("human.input", "turn.started", "execution.output", "execution.output", "execution.step", "turn.ended"),
        *("human.input", "turn.started", "execution.output", "execution.step", "turn.ended"),
    ]
    texts = [output["text"] for output in payloads(records, "execution.output")]
    assert texts == ["let me think", "pong", "and again"]
    fork = str(opencode.request("POST", f"/session/{session}/fork", {})["id"])
    wait_until(lambda: f"fork of {session}" in durable.cli("streams"), "the fork")
    for verb in ("tree", "read", "log"):
        assert f"fork of {session}" in durable.cli(verb, fork).replace("\\", ""), verb


def test_a_person_forks_at_an_event(
    durable: DurableStream, opencode: RealOpenCode, session: str, model: ModelServer
) -> None:
    for text in ("pong", "and again"):
        opencode.prompt(session, f"SAY:{text}")
    wait_until(lambda: len(payloads(durable.log(session), "turn.ended")) == 2, "the turns in the log")
    before, records = opencode.messages(session), durable.log(session)
    answer, prompt = (
        [record["event"]["id"] for record in records if record["event"]["type"] == type_]
        for type_ in ("execution.output", "human.input")
    )

    count = len(opencode.sessions())

    def forked(event: str, *more: str) -> str:
        (found,) = durable.lines("fork", session, "--at", event, "--yes", *more)
        return str(found["fork"])

    at_prompt = ("fork", session, "--at", prompt[1])
    told = durable.typed("n\n", *at_prompt)
    assert "Nothing runs there." in told and told.endswith("[y/N]: ") and len(opencode.sessions()) == count
    quiet = durable.typed("y\n", *at_prompt).split("[y/N]: ")[1].split()[0]
    assert [said(each) for each in opencode.messages(quiet)] == ["SAY:pong", "pong"]
    assert model.of(quiet) == [], "nothing runs"
    fork = forked(answer[0], "--prompt", "SAY:otherwise")
    wait_until(lambda: payloads(durable.log(fork), "turn.ended"), "the answer in the fork")
    assert [said(each) for each in opencode.messages(fork)] == ["SAY:pong", "pong", "SAY:otherwise", "otherwise"]
    assert "and again" not in json.dumps(model.of(fork)[-1].body)
    log = [record["event"] for record in durable.log(fork)]
    (named,) = [event for event in log if event["type"] == "lineage.forked" and "event" in event["payload"]["fork"]]
    assert (named["causation_id"], named["payload"]["fork"]["session"]) == (answer[0], session)
    assert [event["actor"] for event in log if event["type"] == "human.input"] == ["user"]
    assert f"fork of {session}" in durable.cli("tree", fork)
    assert (opencode.messages(session), durable.log(session)) == (before, records), "the origin stays as it is"
    opencode.prompt_async(session, bash("printf waits"))
    started = wait_until(lambda: [r for r in durable.log(session) if r["event"]["type"] == STEP_STARTED], "a call")
    with pytest.raises(RuntimeError, match="still-running"):
        forked(started[0]["event"]["id"])
    opencode.delete(session)
    begun = forked(answer[0], "--prompt", "SAY:from the log")
    wait_until(lambda: payloads(durable.log(begun), "turn.ended"), "the answer in the new session")
    told = json.dumps(model.of(begun)[-1].body)
    assert "SAY:pong" in told and "and again" not in told
    assert f"fork of {session}" in durable.cli("tree", begun)


def said(message: Json) -> str:
    return "".join(part.get("text", "") for part in message["parts"] if part["type"] == "text")


def test_two_parallel_calls(durable: DurableStream, opencode: RealOpenCode, session: str) -> None:
    opencode.prompt(session, f"{bash('echo one')} {bash('echo two')} THEN: {bash('exit 3')} THEN: SAY:done")
    steps = payloads(check(durable, opencode, session), "execution.step")
    assert sorted(step["output"] for step in steps if step["kind"] == "tool") == ["(no output)", "one\n", "two\n"]


def test_call_ids_that_repeat_in_a_turn_and_across_turns(
    durable: DurableStream, opencode: RealOpenCode, session: str
) -> None:
    opencode.prompt(session, f"CALLID:same {bash('echo one')} THEN: {bash('echo one')} THEN: SAY:done")
    opencode.prompt(session, bash("echo three"))
    steps = payloads(check(durable, opencode, session), "execution.step")
    calls = [(step["call"], step["output"]) for step in steps if step["kind"] == "tool"]
    assert calls == [("same", "one\n"), ("same", "one\n"), ("same", "three\n")]


def test_two_parallel_calls_with_one_id(durable: DurableStream, opencode: RealOpenCode, session: str) -> None:
    # OpenCode makes one part of them, but both run: the other one is reported by its hook alone.
    opencode.prompt(session, f"CALLID:twin {bash('echo one')} {bash('echo two')}")
    [part] = opencode.parts(session, "tool")
    second = other_twin(part, opencode.messages(session)[0]["info"]["id"])
    check(durable, opencode, session, unparted=[second])


def test_calls_without_an_id_are_recorded(durable: DurableStream, opencode: RealOpenCode, session: str) -> None:
    # Some local model servers give no ids.
    write = [call("write", filePath=str(opencode.project / f"{name}.txt"), content=name) for name in ("one", "two")]
    opencode.prompt(session, f"CALLID:empty {write[0]} THEN: {write[1]} THEN: SAY:done")
    calls = " ".join(map(bash, ("echo 3", "echo 4", "echo 5")))
    opencode.prompt(session, f"HTTPERR:503*1,1 CALLID:empty {calls} THEN: SAY:done")
    wait_until(lambda: len(payloads(durable.log(session), "turn.ended")) == 2, "the end of the turns")
    steps = payloads(durable.log(session), "execution.step")
    assert [step["status"] for step in steps if step["kind"] == "tool"] == ["completed"] * 5
    assert [each["attempt"] for each in payloads(durable.log(session), RETRIED)] == [2]
    assert [turn["steps"] for turn in payloads(durable.log(session), "turn.ended")] == [5, 5]
    changes, read = durable.cli("changes", session), durable.cli("read", session)
    assert "one.txt" in changes and "two.txt" in changes
    assert [read.count(f"$ echo {each}\n{each}\n") for each in (3, 4, 5)] == [1, 1, 1]


def test_a_child_session(durable: DurableStream, opencode: RealOpenCode, session: str) -> None:
    opencode.prompt(session, task(bash("echo kid")))
    records = check(durable, opencode, session)
    events = [record["event"] for record in records]
    [step] = [each for each in events if each["type"] == "execution.step" and "child" in each["payload"]]
    chain = [record["event"]["type"] for record in durable.lines("why", step["id"])]
    in_child = ["agent.input", "turn.started", "turn.ended"]
    assert chain == ["human.input", "turn.started", "agent.spawned", *in_child, "execution.step"]


def test_a_child_of_a_child_and_a_child_that_goes_on(
    durable: DurableStream, opencode: RealOpenCode, session: str
) -> None:
    opencode.prompt(session, task(task(bash("echo grandchild"))))
    [child] = opencode.children(session)
    opencode.prompt(session, task("SAY:again", task_id=child["id"]))
    records = check(durable, opencode, session)
    assert len(payloads(records, "lifecycle.session.created")) == 3
    assert len(payloads(records, "agent.spawned")) == 3


def test_an_ask_in_a_child(durable: DurableStream, opencode: RealOpenCode, session: str, events: EventStream) -> None:
    opencode.prompt_async(session, task(bash("printf kid")))
    asked = events.wait_for(lambda event: event["type"] == "permission.asked")["properties"]
    opencode.reply_permission(asked["id"], "once")
    events.wait_type("session.idle", session)
    records = check(durable, opencode, session, events)
    assert [ask["state"] for ask in payloads(records, "workflow.checkpoint")] == ["asked", "replied"]


def test_a_rejected_ask(durable: DurableStream, opencode: RealOpenCode, session: str, events: EventStream) -> None:
    opencode.prompt_async(session, bash("printf no"))
    asked = events.wait_type("permission.asked", session)["properties"]
    assert durable.at_work(session, "asks")["began"] is None
    opencode.reply_permission(asked["id"], "reject")
    events.wait_type("session.idle", session)
    records = check(durable, opencode, session, events)
    assert payloads(records, "turn.ended")[0]["outcome"] == "stopped"


def test_two_queued_prompts(
    durable: DurableStream, opencode: RealOpenCode, model: ModelServer, session: str, events: EventStream
) -> None:
    opencode.prompt_async(session, "HOLD:queued SAY:first")
    model.wait_held("queued")
    opencode.prompt_async(session, "SAY:second")
    events.wait_for(lambda event: event["properties"].get("part", {}).get("text") == "SAY:second")
    model.release("queued")
    events.wait_type("session.idle", session)
    records = check(durable, opencode, session)
    assert len(payloads(records, "turn.ended")) == 2


def test_a_compaction_by_itself(durable: DurableStream, opencode: RealOpenCode, session: str) -> None:
    opencode.prompt(session, "SAY:long talk")
    opencode.prompt(session, "CTXERR SAY:survived")
    records = check(durable, opencode, session)
    outcomes = [turn["outcome"] for turn in payloads(records, "turn.ended")]
    assert outcomes == ["completed", "continued", "completed", "completed"]


def test_an_error_of_the_model(durable: DurableStream, opencode: RealOpenCode, session: str) -> None:
    opencode.prompt(session, "HTTPERR:400")
    opencode.prompt(session, "SAY:still here")
    records = check(durable, opencode, session)
    assert [error["status"] for error in payloads(records, "agent.error")] == [400]
    assert [turn["outcome"] for turn in payloads(records, "turn.ended")] == ["failed", "completed"]


def test_an_abort_in_a_tool(durable: DurableStream, opencode: RealOpenCode, session: str, events: EventStream) -> None:
    opencode.prompt_async(session, bash("sleep 600"))
    events.wait_for(running_tool)
    assert durable.at_work(session, "began")["doing"] == "bash: sleep 600"
    opencode.abort(session)
    events.wait_for(failed_message)
    records = check(durable, opencode, session)
    assert payloads(records, "agent.error") == []
    assert [turn["outcome"] for turn in payloads(records, "turn.ended")] == ["aborted"]


def test_an_abort_while_the_model_thinks_drops_the_queue(
    durable: DurableStream, opencode: RealOpenCode, model: ModelServer, session: str, events: EventStream
) -> None:
    opencode.prompt_async(session, "HOLD:abort SAY:never")
    model.wait_held("abort")
    opencode.prompt_async(session, "SAY:dropped")
    events.wait_for(lambda event: event["properties"].get("part", {}).get("text") == "SAY:dropped")
    opencode.abort(session)
    events.wait_for(failed_message)
    model.release("abort")
    records = check(durable, opencode, session)
    assert len(payloads(records, "human.input")) == 2
    assert [turn["outcome"] for turn in payloads(records, "turn.ended")] == ["aborted"]


def test_a_deletion(durable: DurableStream, opencode: RealOpenCode, session: str, events: EventStream) -> None:
    opencode.prompt(session, task("SAY:kid"))
    told = family(opencode, session, deleted=True)
    opencode.delete(session)
    plan = expected(told)
    records = durable.assert_recorded(plan)
    _checked.append(plan)
    ended = [record["event"]["payload"]["session"] for record in records[-2:]]
    assert ended == [told.sessions[1].id, session]


def test_the_oracle_sees_what_is_wrong(durable: DurableStream, opencode: RealOpenCode, session: str) -> None:
    opencode.prompt(session, f"{bash('echo one')} THEN: {task('SAY:kid')} THEN: SAY:done")
    records = check(durable, opencode, session)
    plan = _checked[-1]
    assert differences(records, plan) == []
    for at in range(len(records)):
        assert differences(records[:at] + records[at + 1 :], plan)
        assert differences([*records, records[at]], plan)
        for change in ({"actor": "nobody"}, {"causation_id": None}, {"correlation_id": "x"}, {"traceparent": "x"}):
            changed = deepcopy(records)
            if changed[at]["event"] | change != changed[at]["event"]:
                changed[at]["event"] |= change
                assert differences(changed, plan)
    for at in range(len(records) - 1):
        swapped = [*records[:at], records[at + 1], records[at], *records[at + 2 :]]
        assert differences(swapped, plan)


def test_nothing_is_told_later(durable: DurableStream, opencode: RealOpenCode) -> None:
    opencode.prompt(opencode.create_session(), "SAY:something is recorded")
    durable.assert_whole()
    durable.end_with(opencode)
    durable.assert_whole()
    streams = durable.whole_log()
    for plan in _checked:
        assert differences(streams[plan.root], plan) == []
    children = {session for plan in _checked for _, session, _ in plan.rows if session != plan.root}
    assert not children & streams.keys()
