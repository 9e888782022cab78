"""The real OpenCode 2: its service, the plugin in it, and the sidecar, compared with the service's own API."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.real.durable import EXECUTABLE, PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.opencode2 import RealOpenCode2
from tests.real.recorded2 import assert_event_for_event, assert_recorded, outcomes
from tests.streams.sizes import size
from tests.torture.figures import note, seeded
from tools.install_opencode import VERSION_2, binary_path

pytestmark = pytest.mark.real_opencode


def call(tool: str, **arguments: Any) -> str:
    return f"CALL:{tool} {json.dumps(arguments)}"


KILLS = size("SERVICE_KILLS", 2)
EVENTS = 17
"""That the service's log gets between two holds of that test."""

QUESTION = {
    "question": "Which?",
    "header": "W",
    "options": [{"label": "A", "description": "a"}, {"label": "B", "description": "b"}],
}


@pytest.fixture(scope="module")
def opencode2_binary() -> Path:
    path = binary_path(VERSION_2)
    if not path.exists():
        pytest.fail(f"OpenCode 2 is not installed at {path}: run `make opencode`", pytrace=False)
    return path


@pytest.fixture(scope="module")
def client(opencode2_binary: Path, model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode2]:
    config = {"snapshot": False, "permission": {"bash": {"*": "allow", "printf *": "ask"}}}
    plugins = {PLUGIN: durable.plugin()}
    with RealOpenCode2(opencode2_binary, model.port, config=config, plugins=plugins, plugin_scope="global") as client:
        yield client
        durable.end_with(client)
        wait_until(lambda: client.leftovers() == [], "the end of all processes")


@pytest.fixture(scope="module")
def in_one(client: RealOpenCode2, durable: DurableStream, opencode_binary: Path, model: ModelServer) -> str:
    """A session of OpenCode 1, which loaded the same plugin file from the same place."""
    plugins = {PLUGIN: durable.plugin()}
    with RealOpenCode(opencode_binary, model.port, root=client.root, plugins=plugins, plugin_scope="global") as one:
        session = one.create_session()
        one.prompt(session, "REASON:let me see SAY:in one")
        one.prompt(session, call("bash", command="echo x", description="d"))
        wait_until(lambda: len(outcomes(durable.log(session), session)) == 2, "the end of the turns")
    return session


def turn(client: RealOpenCode2, text: str, session: str | None = None) -> str:
    session = session or client.new_session()
    client.prompt(session, text)
    client.wait(session)
    return session


def asked(client: RealOpenCode2, session: str, kind: str) -> str:
    found = client.until(lambda: client.api("GET", f"/api/session/{session}/{kind}")["data"], f"an open {kind}")
    return str(found[0]["id"])


def checkpoints(records: list[dict[str, Any]]) -> list[tuple[str, str]]:
    found = [record["event"]["payload"] for record in records if record["event"]["type"] == "workflow.checkpoint"]
    return [(payload["kind"], payload["state"]) for payload in found]


def test_a_chat_with_tools_and_a_child(client: RealOpenCode2, durable: DurableStream) -> None:
    session = turn(client, "REASON:let me see SAY:hello")
    turn(client, call("write", path="a.txt", content="one\n"), session)
    turn(client, f"{call('shell', command='echo x; exit 3')} {call('nosuch', x=1)}", session)
    turn(client, call("subagent", agent="general", description="child", prompt="SAY:from the child"), session)
    child = str(client.api("GET", f"/api/session?parentID={session}")["data"][0]["id"])
    records = assert_recorded(durable, client, session, child)
    assert outcomes(records, session) == ["completed"] * 4
    assert outcomes(records, child) == ["completed"]
    assert "hello" in durable.cli("read", session)
    assert "a.txt" in durable.cli("changes", session)
    assert child in durable.cli("tree", session)
    assert session in durable.cli("streams")
    step = next(record["event"]["id"] for record in records if record["event"]["payload"].get("child") == child)
    assert "from the child" in durable.cli("why", step)


def test_asks_are_recorded_with_their_answers(client: RealOpenCode2, durable: DurableStream) -> None:
    session = client.new_session()
    client.prompt(session, call("shell", command="printf 1"))
    request = asked(client, session, "permission")
    client.api("POST", f"/api/session/{session}/permission/{request}/reply", {"reply": "once"})
    client.wait(session)
    client.prompt(session, call("question", questions=[QUESTION]))
    form = asked(client, session, "form")
    client.api("POST", f"/api/session/{session}/form/{form}/reply", {"answer": {"q0": "B"}})
    client.wait(session)
    client.prompt(session, call("shell", command="printf 2"))
    request = asked(client, session, "permission")
    client.api("POST", f"/api/session/{session}/permission/{request}/reply", {"reply": "reject"})
    client.wait(session)
    assert_recorded(durable, client, session)
    wait_until(lambda: len(checkpoints(durable.log(session))) == 6, "the last answer, which no fact waits for")
    pair = ("asked", "replied")
    assert checkpoints(durable.log(session)) == [
        (kind, state) for kind in ("permission", "question", "permission") for state in pair
    ]
    assert outcomes(durable.log(session), session) == ["completed", "completed", "stopped"]


def test_an_abort_an_error_and_queued_prompts(client: RealOpenCode2, durable: DurableStream) -> None:
    session = client.new_session()
    client.prompt(session, call("shell", command="sleep 30"))
    client.until(lambda: any(row["type"] == "session.tool.called" for row in client.log_of(session)), "a call")
    client.api("POST", f"/api/session/{session}/interrupt")
    client.wait(session)
    turn(client, "HTTPERR:400", session)
    client.prompt(session, f"{call('shell', command='sleep 0.3')} THEN: SAY:first")
    client.prompt(session, "SAY:second", delivery="queue")
    client.wait(session)
    records = assert_recorded(durable, client, session)
    assert outcomes(records, session) == ["aborted", "failed", "completed", "completed"]


def test_a_steer_a_cut_answer_a_dismissed_question_and_a_compaction(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer
) -> None:
    session = client.new_session()
    client.prompt(session, f"HOLD:steer {call('shell', command='echo x')} THEN: SAY:over")
    model.wait_held("steer")
    client.prompt(session, "SAY:steered", delivery="steer")
    model.release("steer")
    client.wait(session)
    client.prompt(session, "DRIP:600,0.1")
    client.until(lambda: client.log_of(session)[-2]["type"] == "session.text.started", "an answer")
    client.api("POST", f"/api/session/{session}/interrupt")
    client.wait(session)
    durable.wait_linked()  # an ask that ends before that is in no log of OpenCode
    client.prompt(session, call("question", questions=[QUESTION]))
    form = asked(client, session, "form")
    client.api("POST", f"/api/session/{session}/form/{form}/cancel")
    client.wait(session)
    client.api("POST", f"/api/session/{session}/compact", {})
    client.wait(session)
    assert_recorded(durable, client, session)
    wait_until(lambda: len(outcomes(durable.log(session), session)) == 4, "the end of the turns")
    records = durable.log(session)
    assert outcomes(records, session) == ["completed", "aborted", "stopped", "completed"]
    begun = [record["event"]["payload"] for record in records if record["event"]["type"] == "turn.started"]
    assert [turn["trigger"] for turn in begun] == ["prompt", "prompt", "prompt", "compaction"]
    assert [r["event"]["type"] for r in records].count("human.input") == 4
    wait_until(lambda: checkpoints(durable.log(session)) == [("question", "asked"), ("question", "rejected")], "it")


OVERFLOWS = {
    "before an answer": ("USAGE:31000 SAY:big", "SAY:after"),
    "between two steps": (f"USAGE:31000 {call('shell', command='echo x')} THEN: SAY:after",),
    "refused by the provider": ("CTXERR SAY:after",),
}
"""Prompts after which OpenCode compacts by itself; the model's context is 32,000 tokens."""


@pytest.mark.parametrize("when", OVERFLOWS)
def test_an_automatic_compaction_belongs_to_the_turn_of_the_prompt(
    client: RealOpenCode2, durable: DurableStream, when: str
) -> None:
    session = turn(client, "SAY:a long talk")
    prompts = [client.prompt(session, text) for text in OVERFLOWS[when] if not client.wait(session)]
    client.wait(session)
    ends = ["completed"] * (1 + len(prompts))
    # The end must not depend on whether the service counts the session as idle before it compacts.
    wait_until(lambda: outcomes(durable.log(session), session) == ends, "the end of the turns")
    client.wait(session)
    records = assert_event_for_event(durable, client, session)
    begun = [record["event"]["payload"] for record in records if record["event"]["type"] == "turn.started"]
    assert [turn["message"] for turn in begun][1:] == prompts
    assert {turn["trigger"] for turn in begun} == {"prompt"}
    assert outcomes(records, session) == ends
    of = [r["event"]["correlation_id"] for r in records if r["event"]["type"] == "lifecycle.session.compacted"]
    assert of and set(of) == {prompts[-1]}


def test_a_sidecar_killed_again_and_again_records_each_event_once(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer
) -> None:
    """One turn of many steps. Each kill waits for another number of its events, with a sidecar that reads them."""
    random, session = seeded("service kills"), turn(client, "SAY:before")
    assert_recorded(durable, client, session)
    steps = [step for number in range(KILLS) for step in disturbed(number)]
    client.prompt(session, " THEN: ".join([*steps, "SAY:after"]))
    for number in range(KILLS):
        model.wait_held(f"kill-{number}")
        killed, reached = durable.wait_linked(), len(client.log_of(session)) + random.randrange(EVENTS)
        model.release(f"kill-{number}")
        client.until(lambda reached=reached: len(client.log_of(session)) > reached, "the event")
        os.kill(killed, signal.SIGKILL)
        durable.wait_running({killed})
    client.wait(session)
    other = turn(client, "SAY:another session")
    assert_event_for_event(durable, client, session)
    assert_event_for_event(durable, client, other)
    assert outcomes(durable.log(session), session) == ["completed"] * 2
    durable.cli("verify")
    note("service-kills", kills=KILLS, lost=0, doubled=0)


def disturbed(number: int) -> list[str]:
    """Two steps of a turn, which begin when the test releases them."""
    write, fail = call("write", path=f"{number}.txt", content="x"), call("shell", command="echo x; exit 3")
    return [f"HOLD:kill-{number} REASON:let me see {write} {fail}", call("shell", command="echo y; sleep 0.2")]


def test_an_open_ask_is_listed_after_the_sidecar_comes_back(client: RealOpenCode2, durable: DurableStream) -> None:
    session = turn(client, "SAY:before")
    killed = durable.wait_linked()
    os.kill(killed, signal.SIGKILL)
    client.prompt(session, call("shell", command="printf 3"))
    request = asked(client, session, "permission")
    wait_until(lambda: checkpoints(durable.log(session)), "the ask")
    client.api("POST", f"/api/session/{session}/permission/{request}/reply", {"reply": "once"})
    client.wait(session)
    assert_recorded(durable, client, session)
    answered = [("permission", "asked"), ("permission", "replied")]
    wait_until(lambda: checkpoints(durable.log(session)) == answered, "the answer, which no fact waits for")


def test_a_service_killed_in_a_turn_and_a_deleted_session(client: RealOpenCode2, durable: DurableStream) -> None:
    session = client.new_session()
    client.prompt(session, call("shell", command="sleep 5"))
    client.until(lambda: any(row["type"] == "session.tool.called" for row in client.log_of(session)), "a call")
    deleted = turn(client, "SAY:to be deleted")
    assert_recorded(durable, client, deleted)
    client.kill9()
    wait_until(lambda: outcomes(durable.log(session), session) == ["interrupted"], "the end of the turn")
    client.start()
    client.api("DELETE", f"/api/session/{deleted}")
    turn(client, "SAY:again", session)
    records = assert_recorded(durable, client, session)
    assert outcomes(records, session) == ["interrupted", "completed"]
    wait_until(lambda: "lifecycle.session.ended" in str(durable.log(deleted)), "the end of the session")


def test_the_services_password_is_in_no_file_of_ours(client: RealOpenCode2, durable: DurableStream) -> None:
    turn(client, "SAY:hello")
    password = json.loads(client.registration.read_bytes())["password"].encode()
    files = [path for path in durable.home.rglob("*") if path.is_file()]
    assert files and not any(password in path.read_bytes() for path in files)


def test_a_service_that_is_stopped_in_a_turn_is_not_delayed_and_goes_on_by_itself(
    client: RealOpenCode2, durable: DurableStream
) -> None:
    session = client.new_session()
    client.prompt(session, call("shell", command="sleep 30"))
    client.until(lambda: any(row["type"] == "session.tool.called" for row in client.log_of(session)), "a call")
    durable.wait_linked()
    assert client.stop_in() < 5
    client.start()
    client.until(lambda: "session.execution.succeeded" in str(client.log_of(session)), "the end of the turn")
    turn(client, "SAY:hello again")  # loads the plugin
    records = assert_recorded(durable, client, session)
    wait_until(lambda: len(outcomes(durable.log(session), session)) == 2, "two turns")
    assert outcomes(durable.log(session), session) == ["interrupted", "completed"]
    (tool,) = [r["event"]["payload"] for r in records if r["event"]["payload"].get("tool") == "shell"]
    assert (tool["status"], tool["error"]) == ("error", "Tool execution interrupted")
    begun = [r["event"]["payload"]["trigger"] for r in records if r["event"]["type"] == "turn.started"]
    assert begun == ["prompt", "continuation"]


def test_one_file_in_both_opencodes_records_each_session_once(
    client: RealOpenCode2, durable: DurableStream, request: pytest.FixtureRequest
) -> None:
    two = turn(client, "SAY:in two")
    session = request.getfixturevalue("in_one")
    turn(client, "SAY:in two again", two)
    assert_recorded(durable, client, two)
    told = [record["event"]["type"] for record in durable.log(session)]
    assert told.count("human.input") == told.count("turn.ended") == told.count("turn.started") == 2
    assert told.count("execution.output") == 3
    assert "lifecycle.session.ended" not in str(durable.log(two))


def test_the_command_line_of_opencode_2_is_recorded(client: RealOpenCode2, durable: DurableStream) -> None:
    known = {info["id"] for info in client.api("GET", "/api/session")["data"]}
    client.run("SAY:from run")
    (session,) = {info["id"] for info in client.api("GET", "/api/session")["data"]} - known
    assert outcomes(assert_recorded(durable, client, session), session) == ["completed"]


def test_a_second_copy_in_the_project_records_nothing_twice(client: RealOpenCode2, durable: DurableStream) -> None:
    copy = client.project / ".opencode" / "plugin" / PLUGIN
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(durable.plugin())
    client.stop_in()
    client.start()
    session = turn(client, "SAY:with two copies")
    records = assert_recorded(durable, client, session)
    assert outcomes(records, session) == ["completed"]
    copy.unlink()


def test_old_sessions_are_imported_once(
    client: RealOpenCode2, durable: DurableStream, tmp_path: Path, opencode_binary: Path, in_one: str
) -> None:
    """Into a log that begins now: the sessions of this service, and those that OpenCode 1 has in the same place."""
    old = turn(client, "SAY:long ago")
    with DurableStream(tmp_path / "home") as later, plugged(client, later.plugin()):
        new = turn(client, "SAY:today")
        assert_recorded(later, client, new)
        assert later.log(old) == []
        first, again = (import_old(later, client, opencode_binary) for _ in range(2))
        assert first["opencode_2"]["sessions"] > 0 and first["opencode_1"]["sessions"] == 1
        assert again["opencode_2"]["sessions"] == again["opencode_1"]["sessions"] == 0
        records = [*assert_recorded(later, client, old), *later.log(in_one)]
        assert all(record["event"]["metadata"]["history"] for record in records)
        assert contents(later.log(in_one)) == contents(durable.log(in_one))
        later.cli("verify")


def test_a_first_turn_that_ends_before_the_first_sidecar_runs_is_recorded(
    client: RealOpenCode2, durable: DurableStream, tmp_path: Path
) -> None:
    starter = tmp_path / "starter"
    starter.write_text(f'#!/bin/sh\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.05; done\nexec {EXECUTABLE} "$@"\n')
    starter.chmod(0o755)
    with DurableStream(tmp_path / "home") as later, plugged(client, later.plugin(command=starter)):
        session = turn(client, "SAY:hello")
        (tmp_path / "go").touch()
        assert outcomes(assert_recorded(later, client, session), session) == ["completed"]


@contextmanager
def plugged(client: RealOpenCode2, plugin: str) -> Iterator[None]:
    """A service that begins with this plugin beside the module's, and ends before another one without it."""
    file = client.config_directory / "plugin" / "later.js"
    file.write_text(plugin)
    client.stop_in()
    client.start()
    try:
        yield
    finally:
        file.unlink()
        client.stop_in()
        client.start()


def import_old(durable: DurableStream, client: RealOpenCode2, opencode: Path) -> dict[str, Any]:
    return dict(json.loads(durable.in_project(client, "import", "--opencode", "--json", path=[opencode.parent])))


def contents(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The payloads by key; of the first one not the agent, which OpenCode 1 does not know at the beginning."""
    found = {record["event"]["idempotency_key"]: dict(record["event"]["payload"]) for record in records}
    for key, payload in found.items():
        if key.startswith("lifecycle.session.created:"):
            payload.pop("agent", None)
    return found
