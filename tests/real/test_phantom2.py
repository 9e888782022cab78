"""Background work on OpenCode 2: spawned by the model, run by the user's own service, told to the parent once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sidecar.background.intents.intent_effects import CHECK, PROMPT
from tests.real.background import (
    assert_few_records,
    assert_one_chain,
    ended,
    intents,
    one,
    only,
    snapshots_elsewhere,
    spawn,
    spawns,
    two_with_plugin,
)
from tests.real.durable import EXECUTABLE, DurableStream, wait_until
from tests.real.host_contract import QUESTIONS
from tests.real.model_server import ModelRequest, ModelServer, Step
from tests.real.opencode2 import Api2Error, RealOpenCode2
from tests.real.terminal import ENTER, READY, Terminal
from tests.streams.sizes import size

pytestmark = pytest.mark.real_opencode


@pytest.fixture(scope="module")
def client(model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode2]:
    durable.start()
    with two_with_plugin(model, durable, config={"snapshot": True}) as opencode:
        yield opencode


def messages(client: RealOpenCode2, session: str, type_: str = "") -> list[dict[str, Any]]:
    """A session's history, or its messages of one type, oldest first."""
    found = client.api("GET", f"/api/session/{session}/message?order=asc&limit=200")["data"]
    return [each for each in found if type_ in ("", each["type"])]


def told(client: RealOpenCode2, session: str) -> list[str]:
    """The messages in a session's history that carry a result."""
    return [m["text"] for m in messages(client, session, "user") if "<background-agent" in m["text"]]


def restart(client: RealOpenCode2, *, kill: bool = True) -> None:
    """End the service and start it again, with its plugin loaded, as a terminal would."""
    if kill:
        client.kill9()
    else:
        client.stop_in()
    client.start()
    client.api("GET", f"/api/model?location[directory]={client.project}")


def settled(client: RealOpenCode2, durable: DurableStream, parent: str, session: str) -> None:
    """Wait until everything that was to be sent was sent and answered."""
    wait_until(lambda: told(client, parent), "the result in the parent")
    mine = [each["id"] for each in intents(durable, parent)]

    def wakes() -> list[str]:
        return [n["state"] for n in durable.lines("notices") if n["kind"] == "wake" and n["session"] == parent]

    wait_until(lambda: wakes() == ["seen"], "receipt")
    wait_until(
        lambda: prompts(durable, "requested", mine) == prompts(durable, "completed", mine),
        "the end of all that is sent",
    )
    client.wait(parent)
    client.wait(session)


def sessions(client: RealOpenCode2) -> set[str]:
    return {each["id"] for each in client.api("GET", "/api/session?limit=100")["data"]}


def assert_once(client: RealOpenCode2, before: set[str], parent: str, session: str) -> None:
    """One session, one prompt, one turn that answers it, and one wake."""
    assert sessions(client) - before == {parent, session}
    assert len(messages(client, session, "user")) == 1, "no second prompt"
    assert len(messages(client, session, "idle")) == 1, "no second answer"
    assert client.api("GET", f"/api/session/{session}/inbox")["data"] == []
    assert len(told(client, parent)) == 1, "one wake"
    assert len(messages(client, parent, "user")) == 2 and len(messages(client, parent, "idle")) == 2
    assert client.api("GET", f"/api/session/{parent}/inbox")["data"] == []


def spawned(client: RealOpenCode2, durable: DurableStream, prompt: str) -> tuple[str, str]:
    """A session that has started background work, once that session is idle; and the session of the work."""
    parent = client.new_session()
    client.prompt(parent, spawn(prompt))
    session = str(one(durable, "running", parent)["session"])
    client.wait(parent)
    return parent, session


CONTINUED = "The server restarted"
"""How the message begins with which the service itself continues a turn. The scripted model repeats the message."""


def test_the_whole_line_with_a_closed_terminal_a_killed_service_and_a_killed_sidecar(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer
) -> None:
    (durable.home / "config.toml").write_text("[phantom]\nsetup = ['echo $XDG_DATA_HOME']\n")
    durable.stop()
    with Terminal([str(client.binary)], client.project, client.environment()) as screen:
        screen.wait_for(READY)
        screen.wait_for("Mock 1 Mock")  # before that, it does not send
        screen.press(spawn("HOLD:two SAY:never", isolation="copy").encode())
        screen.wait_for("SAY:started")
        screen.press(ENTER)
        running = one(durable, "running")
        model.wait_held("two")
    parent, session = running["parent"], str(running["session"])
    client.wait(parent)
    assert running["copy"] and running["copy"]["directory"] != str(client.project)
    restart(client)
    model.release("two")
    client.until(lambda: client.api("GET", f"/api/session/{session}")["data"].get("outcome"), "the end of the work")
    os.kill(durable.wait_running(), signal.SIGKILL)
    done = one(durable, "completed")
    assert done["session"] == session and CONTINUED in done["result"], "the service continued it"
    assert done["setup"][0]["output"] == f"{client.environment()['XDG_DATA_HOME']}\n", "with the service's environment"
    settled(client, durable, parent, session)
    assert_once(client, set(), parent, session)
    assert [m["text"].startswith(CONTINUED) for m in messages(client, session, "synthetic")] == [True]
    inputs = [record["event"] for record in durable.log(parent) if record["event"]["type"].endswith(".input")]
    woken = [event["type"] for event in inputs if "<background-agent" in json.dumps(event["payload"])]
    assert "human.input" not in woken, "it is no person's"
    assert_one_chain(durable, done)
    client.prompt(parent, f"CALL:intent_result {json.dumps({'intent': done['id']})}")
    client.wait(parent)
    assert CONTINUED in json.dumps(messages(client, parent)[-4:]), "the tools answer"
    assert not Path(done["place"]).exists()
    writes = f"CALL:write {json.dumps({'path': 'again.txt', 'content': 'again'})}"
    again = json.loads(
        durable.cli("spawn", "--title", "go on", "--continue", done["id"], f"{writes}THEN: SAY:went on", "--json")
    )
    (following,) = ended(durable, again["id"])
    assert (following["session"], following["place"]) == (session, done["place"])
    assert (following["result"], following["changes"]["count"]) == ("went on", 1)
    places = {each["stream_id"]: each["directory"] for each in durable.lines("streams")}
    assert places[session] == str(client.project), "it belongs to the project that it was done for"
    wait_until(lambda: len(told(client, parent)) == 2, "the second result in the parent")
    (durable.home / "config.toml").unlink()
    durable.stop()
    durable.wait_linked()


def test_work_that_ended_while_no_sidecar_ran_is_over(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer
) -> None:
    parent, session = spawned(client, durable, "HOLD:away SAY:forty two")
    model.wait_held("away")
    sidecar = durable.wait_running()
    os.kill(sidecar, signal.SIGSTOP)
    model.release("away")
    client.wait(session)
    client.prompt(session, "SAY:a person was here")
    client.wait(session)
    os.kill(sidecar, signal.SIGKILL)
    done = one(durable, "completed", parent)
    assert (done["session"], done["result"]) == (session, "forty two"), "the first answer"
    settled(client, durable, parent, session)
    assert len(messages(client, session, "user")) == len(messages(client, session, "idle")) == 2
    assert len(told(client, parent)) == 1


def test_a_fork_of_a_background_session_is_not_its_work(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer
) -> None:
    parent, session = spawned(client, durable, "HOLD:fork SAY:forty two")
    model.wait_held("fork")
    fork = client.api("POST", f"/api/session/{session}/fork", {})["data"]["id"]
    message = client.prompt(fork, "SAY:another answer")
    client.wait(fork)
    wait_until(lambda: [e for e in events(durable, "turn.ended") if e["payload"]["session"] == fork], "its turn")
    assert one(durable, "running", parent)["session"] == session
    client.api("POST", f"/api/session/{fork}/revert/stage", {"messageID": message})
    wait_until(lambda: "undone later" in durable.cli("read", fork), "what was undone, at once")
    for verb in (("streams",), ("tree", fork), ("read", fork), ("log", fork)):
        assert f"fork of {session}" in durable.cli(*verb).replace("\\", ""), verb
    model.release("fork")
    done = one(durable, "completed", parent)
    assert done["result"] == "forty two"
    settled(client, durable, parent, session)
    assert_few_records(durable, done)
    for origin, text in ((parent, "started"), (session, "forty two")):
        (made,) = durable.lines("fork", origin, "--at", last_answer(durable, origin), "--prompt", "SAY:on", "--yes")
        wait_until(
            lambda fork=made["fork"]: fork in [e["payload"]["session"] for e in events(durable, "turn.ended")],
            "the answer in the fork",
        )
        assert [e["actor"] for e in events(durable, "human.input") if e["payload"]["session"] == made["fork"]] == [
            "user"
        ]
        assert text in json.dumps(model.of(made["fork"])[-1].body)
        assert f"fork of {origin}" in durable.cli("tree", made["fork"])
        # The copy of the work is gone, so OpenCode's own fork could do nothing.
        assert (made["messages"] is None, made["directory"]) == (origin == session, str(client.project))


def last_answer(durable: DurableStream, session: str) -> str:
    return str([e["id"] for e in events(durable, "execution.output") if e["payload"]["session"] == session][-1])


def test_work_is_over_when_its_own_subagents_have_reported(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer
) -> None:
    given = {"agent": "general", "description": "d", "prompt": "HOLD:own SAY:from below", "background": True}
    parent, session = spawned(client, durable, f"CALL:subagent {json.dumps(given)} THEN: SAY:it works below")
    model.wait_held("own")
    client.wait(session)
    wait_until(lambda: looks(durable)[-1:] == ["busy"], "a look at the session, which is idle")
    assert one(durable, "running", parent)["result"] == "it works below" and told(client, parent) == []
    model.release("own")
    done = one(durable, "completed", parent)
    assert "from below" in done["result"] and done["result"] != "it works below"
    settled(client, durable, parent, session)
    assert len(told(client, parent)) == 1 and "from below" in told(client, parent)[0]
    assert len(messages(client, session, "user")) == 1 and len(messages(client, session, "synthetic")) == 1


def test_a_parents_own_subagent_and_its_background_work_report_once_each(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer
) -> None:
    given = {"agent": "general", "description": "d", "prompt": "HOLD:both SAY:from below", "background": True}
    parent = client.new_session()
    client.prompt(parent, f"CALL:subagent {json.dumps(given)} THEN: {spawn('HOLD:both SAY:forty two')}")
    session = str(one(durable, "running", parent)["session"])
    client.wait(parent)
    model.wait_held("both")
    model.release("both")
    done = one(durable, "completed", parent)
    settled(client, durable, parent, session)
    client.until(lambda: messages(client, parent, "synthetic"), "the report of its subagent")
    client.wait(parent)
    assert done["result"] == "forty two" and len(told(client, parent)) == 1
    reports = [each["metadata"]["source"] for each in messages(client, parent, "synthetic")]
    assert reports == ["subagent"] and len(messages(client, parent, "user")) == 2


def test_refused_work_is_over_and_no_restart_continues_it(client: RealOpenCode2, durable: DurableStream) -> None:
    parent, session = spawned(client, durable, f"CALL:question {json.dumps({'questions': QUESTIONS})} THEN: SAY:never")
    durable.cli("checkpoints", only(durable, "question")["id"], "--answer", "reject")
    assert one(durable, "failed", parent)["code"] == "stopped"
    client.until(lambda: messages(client, session, "idle"), "the end of its turn")
    settled(client, durable, parent, session)
    before = messages(client, session)
    restart(client)
    client.prompt(parent, "SAY:what the service continues comes before this")
    client.wait(parent)
    assert messages(client, session) == before


def events(durable: DurableStream, type_: str) -> list[dict[str, Any]]:
    return [record["event"] for record in durable.lines("query", "--type", type_)]


def prompts(durable: DurableStream, state: str, of: list[str]) -> int:
    """How many prompts for these works are in this state, or were."""
    found = [event["payload"] for event in events(durable, f"effect.{state}")]
    return sum(each["kind"] == PROMPT and each["node"] in of for each in found)


def looks(durable: DurableStream) -> list[str]:
    """What the looks at the session of background work found, in their order."""
    done = [event["payload"] for event in events(durable, "effect.completed")]
    return [each["result"]["state"] for each in done if each["kind"] == CHECK]


def test_a_model_with_a_shell_cannot_answer_for_the_person(client: RealOpenCode2, durable: DurableStream) -> None:
    asking, answering = client.new_session(), client.new_session()
    client.prompt(asking, f"CALL:question {json.dumps({'questions': QUESTIONS})}")
    asked = only(durable, "question", background=False)
    said = durable.home.parent / "said"
    command = f"{EXECUTABLE} --home {durable.home} checkpoints {asked['id']} --answer reject > {said} 2>&1"
    for given in (command, f"setsid --fork env -i {command}"):
        said.unlink(missing_ok=True)
        client.prompt(answering, f"CALL:shell {json.dumps({'command': given})}")
        client.wait(answering)
        wait_until(lambda: said.exists() and said.read_text().endswith("]\n"), "a refusal")
        assert "[needs-person]" in said.read_text(), given
    assert [each["id"] for each in durable.lines("checkpoints")] == [asked["id"]], "it still waits"
    durable.cli("checkpoints", asked["id"], "--answer", "reject")
    client.wait(asking)


def test_work_has_the_variables_of_the_one_that_asked_also_after_a_restart_and_the_log_has_none(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(asker: str) -> dict[str, str]:
        return client.environment() | {"ASKER": asker, "NEVER_RECORDED": f"never-{asker}"}

    tells = f"CALL:shell {json.dumps({'command': 'echo asker:$ASKER', 'description': 'tell'})}"
    (durable.home / "config.toml").write_text("[phantom]\nsetup = ['echo $ASKER']\n")
    durable.stop()
    durable.start()
    client.api("GET", f"/api/model?location[directory]={client.project}")  # loads the plugin
    wait_until(lambda: bool(durable.status()["links"]), "a link")
    parent = client.new_session()
    client.api("PUT", f"/api/session/{parent}/environment", {"variables": of("terminal")})  # as a terminal does
    client.prompt(parent, spawn(f"{tells} THEN: HOLD:variables SAY:never", isolation="copy"))
    running = one(durable, "running", parent)
    model.wait_held("variables")
    assert running["setup"][0]["output"] == "terminal\n"
    assert "asker:terminal" in json.dumps(messages(client, str(running["session"])))

    def again(request: ModelRequest) -> Step | None:
        is_work = CONTINUED in request.user_text and not request.since_user()
        return Step(calls=[("shell", {"command": "echo again:$ASKER"})], hold="again") if is_work else None

    model.answer = again
    restart(client)
    model.wait_held("again")
    before = len(looks(durable))
    wait_until(lambda: len(looks(durable)) > before, "a look at the session, which has linked again")
    model.release("again")
    model.release("variables")
    assert "again:terminal" in one(durable, "completed", parent)["result"]
    model.answer = None
    monkeypatch.setattr(durable, "terminal", of("command"))
    words = ("spawn", tells, "--directory", str(client.project), "--isolation", "shared", "--wait", "--json")
    assert "asker:command" in json.loads(durable.cli(*words))["result"]
    assert "never-" not in json.dumps(durable.lines("query")) + (durable.home / "sidecar.log").read_text()
    (durable.home / "config.toml").unlink()
    durable.stop()
    durable.wait_linked()


def commanded(command: str, then: str = "SAY:it runs") -> str:
    """A script whose shell command goes on in the background."""
    return f"CALL:shell {json.dumps({'command': command, 'background': True})} THEN: {then}"


def until_ended(pid: Path) -> None:
    """Wait until no process has the id in this file."""
    wait_until(lambda: not Path("/proc", pid.read_text().strip(), "cwd").exists(), "the end of a process")


def test_work_is_over_when_its_commands_have_reported_and_its_directory_is_forgotten(
    client: RealOpenCode2, durable: DurableStream
) -> None:
    parent = client.new_session()
    waits = commanded("until [ -e go ]; do sleep 0.1; done; echo late > late.txt")
    client.prompt(parent, spawn(waits, isolation="copy"))
    running = one(durable, "running", parent)
    session, place = str(running["session"]), Path(running["place"])
    client.until(lambda: messages(client, session, "idle"), "the end of its first turn")
    before = len(looks(durable))
    wait_until(lambda: looks(durable)[before:] or looks(durable)[-1:] == ["busy"], "a look at the session")
    assert one(durable, "running", parent)["result"] == "it runs" and told(client, parent) == []
    (place / "go").touch()
    done = one(durable, "completed", parent)
    assert "late.txt" in [each["file"] for each in done["changes"]["files"]] and not place.exists()
    assert "until [ -e go ]" in done["result"], "the answer to the report"
    settled(client, durable, parent, session)
    assert_nothing_is_left_of_many_jobs(client, durable)
    # Of all jobs before, too.
    loaded = [each["directory"] for each in client.api("GET", "/api/debug/location")]
    assert str(client.project) in loaded and [each for each in loaded if str(durable.home) in each] == []
    reload = [str(client.binary), "reload"]
    assert subprocess.run(reload, cwd=client.project, env=client.environment(), check=False).returncode == 0


JOBS = size("JOBS", 2)


def assert_nothing_is_left_of_many_jobs(client: RealOpenCode2, durable: DurableStream) -> None:
    """The service keeps the sessions of ended work, and nothing else of it."""
    before, parent = sessions(client), client.new_session()
    write = f"CALL:write {json.dumps({'path': 'made.txt', 'content': 'x'})} THEN: SAY:short"
    client.prompt(parent, " ".join(spawns(write, isolation="copy") for _ in range(JOBS)) + " THEN: SAY:started")

    def done() -> bool:
        return [i["state"] for i in intents(durable, parent)] == ["completed"] * JOBS

    wait_until(done, "the end of all jobs", 30.0 * JOBS)
    results = [f'<background-agent id="{each["id"]}"' for each in intents(durable, parent)]
    wait_until(lambda: all(each in str(told(client, parent)) for each in results), "each result", 30.0 * JOBS)
    assert [str(told(client, parent)).count(each) for each in results] == [1] * JOBS
    assert sessions(client) - before == {parent, *(str(i["session"]) for i in intents(durable, parent))}
    projects = client.api("GET", "/api/project")

    def listed() -> list[str]:
        """Where the service has projects, once it has looked which are gone: it may list one when that is gone."""
        for each in projects:
            with suppress(Api2Error):  # it looks at a directory that has just gone
                client.api("POST", "/api/worktree/refresh", {"projectID": each["id"]})
        found = [client.api("GET", f"/api/worktree?projectID={each['id']}") for each in projects]
        return [each["directory"] for places in found for each in places]

    wait_until(lambda: listed() == [str(client.project)], "no directory of ours")
    assert not any(each["sandboxes"] for each in projects)
    assert snapshots_elsewhere(client) == []


@pytest.mark.parametrize("isolation", ["copy", "shared"])
def test_nothing_of_cancelled_work_runs_on_and_what_it_left_wakes_nobody(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer, tmp_path: Path, isolation: str
) -> None:
    command, own, child, loose = (tmp_path / name for name in ("command", "own", "child", "loose"))
    held = f"HOLD:woken-{isolation}"  # in the reports, so a turn that one of them begins does not end by itself
    detached = f"setsid nohup sh -c 'echo $$ > {loose}; exec sleep 600' > /dev/null 2>&1 &"
    below = f"CALL:shell {json.dumps({'command': f'echo $$ > {child}; sleep 600; echo'})}"
    given = {"agent": "general", "description": held, "prompt": below, "background": True}
    blocks = {"command": f"{detached if isolation == 'copy' else ''} echo $$ > {own}; sleep 600"}
    calls = f"CALL:subagent {json.dumps(given)} CALL:shell {json.dumps(blocks)}"
    parent = client.new_session()
    client.prompt(parent, spawn(commanded(f"echo $$ > {command}; sleep 600; : {held}", calls), isolation=isolation))
    session = str(one(durable, "running", parent)["session"])
    pids = [command, own, child, *([loose] if isolation == "copy" else [])]
    client.until(lambda: all(each.exists() and each.read_text() for each in pids), "all that it runs")
    durable.cli("intents", one(durable, "running", parent)["id"], "--cancel")
    one(durable, "cancelled", parent)
    for each in pids:
        until_ended(each)
    wait_until(lambda: client.api("GET", "/api/session/active")["data"] == {}, "rest")
    outcomes = [each["outcome"] for each in messages(client, session, "idle")]
    assert outcomes and set(outcomes) == {"interrupted"}, "no turn went to its end"
    assert client.api("GET", f"/api/shell?location[directory]={client.project}")["data"] == []
