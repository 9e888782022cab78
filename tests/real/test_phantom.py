"""Background work with the real client: spawned by the model, run by a headless OpenCode, told to the parent once.

One OpenCode and one home for all tests.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path

import pytest

from sidecar.background.tools import TOOLS
from tests.real.background import (
    assert_few_records,
    assert_one_chain,
    assert_shown_from_prompt_to_wake,
    ended,
    intents,
    one,
    only,
    planted,
    snapshots_elsewhere,
    spawn,
    spawns,
    with_plugin,
)
from tests.real.durable import DurableStream, is_alive, wait_until
from tests.real.model_server import HANG_LIMIT_S, ModelServer
from tests.real.opencode import RealOpenCode
from tests.searching import files_with
from tests.sidecar.background.test_tools import sent
from tests.streams.sizes import size

pytestmark = pytest.mark.real_opencode


@pytest.fixture(scope="module")
def client(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode]:
    setup = """[phantom]\nsetup = ['echo "$DURABLE_STREAM_PROJECT $XDG_DATA_HOME"; echo yes > .ready']\n"""
    with with_plugin(opencode_binary, model, durable, setup, config={"snapshot": True}) as opencode:
        yield opencode


def wakes(durable: DurableStream, parent: str) -> list[str]:
    """The states of the results that are for a session."""
    return [n["state"] for n in durable.lines("notices") if n["session"] == parent and n["kind"] == "wake"]


def test_the_whole_line(client: RealOpenCode, durable: DurableStream, model: ModelServer) -> None:
    parent = client.create_session("parent")
    client.prompt(parent, spawn("SAY:the answer is 42 password=hunter2xyz"))
    given = next(request.body["tools"] for request in model.requests if request.has_tools)
    by_name = {tool["function"]["name"]: tool for tool in given}
    assert [by_name[name] for name in TOOLS] == [sent(name) for name in TOOLS], "what the unit test counts"
    wait_until(lambda: [i["state"] for i in intents(durable, parent)] == ["completed"], "the end of the intent")
    (intent,) = intents(durable, parent)
    assert intent["result"].startswith("the answer is 42") and "hunter2" not in json.dumps(durable.lines("log"))
    said = [request for request in model.of(intent["session"]) if request.has_tools]
    assert ["password=hunter2xyz" in json.dumps(request.body) for request in said] == [True], "the words that were said"
    assert intent["parent"] == parent
    wait_until(lambda: "42" in json.dumps(client.messages(parent)[-1]), "the parent's answer")
    assert_one_chain(durable, intent)
    wait_until(lambda: wakes(durable, parent) == ["seen"], "receipt")
    assert_shown_from_prompt_to_wake(durable, intent)
    assert_few_records(durable, intent)


def test_it_edits_a_copy_and_a_person_takes_over_the_changes(
    client: RealOpenCode, durable: DurableStream, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    detached = f"setsid nohup sh -c 'echo $$ > {pid}; exec sleep 600' > /dev/null 2>&1 &"
    shell = {"command": f"echo two > made.txt && pwd; {detached}", "description": "make a file"}
    parent = client.create_session("parent")
    client.prompt(parent, spawn(f"CALL:bash {json.dumps(shell)}THEN: SAY:made it"))
    done = one(durable, "completed", parent)
    assert done["place"].startswith(str(durable.home / "copies")) and done["changes"]["count"] == 1
    wait_until(lambda: "+two" in json.dumps(client.messages(parent)), "the diff in the parent's message")
    assert "sleep 600" in json.dumps(client.messages(parent)[-2:]), "what it left running was stopped, and is told"
    assert not Path("/proc", pid.read_text().strip(), "cwd").exists()
    assert snapshots_elsewhere(client) == []
    made = client.project / "made.txt"
    assert not made.exists() and not list((durable.home / "copies").glob("int_*"))
    assert "made.txt" in durable.cli("intents", done["id"])
    for said in ("Changed 1 file", "already been applied"):
        assert said in durable.cli("intents", done["id"], "--apply")
        assert made.read_text() == "two\n"
    assert intents(durable, parent)[0]["applied"]
    assert "Took back 1 file" in durable.cli("intents", done["id"], "--undo") and not made.exists()
    assert not intents(durable, parent)[0]["applied"]


def test_ended_work_goes_on_in_its_session_with_its_changes(client: RealOpenCode, durable: DurableStream) -> None:
    first = {"command": "echo one > again.txt; cat .ready", "description": "make a file"}
    parent = client.create_session("parent")
    client.prompt(parent, spawn(f"CALL:bash {json.dumps(first)}THEN: SAY:made it"))
    done = one(durable, "completed", parent)
    assert done["setup"][0]["output"] == f"{client.project} {client.environment()['XDG_DATA_HOME']}\n"
    assert [each["file"] for each in done["changes"]["files"]] == ["again.txt"] and not Path(done["place"]).exists()
    client.prompt_async(str(done["session"]), "SAY:a person prompts it, without its directory")
    wait_until(lambda: done["id"] in tolds(durable), "the message to the person")
    second = {"command": "test -e .ready && echo two >> again.txt; cat again.txt", "description": "go on"}
    prompt = f"CALL:bash {json.dumps(second)}THEN: SAY:went on"
    again = json.loads(durable.cli("spawn", "--title", "go on", "--continue", done["id"], prompt, "--json"))
    (following,) = ended(durable, again["id"])
    assert (following["session"], following["place"]) == (done["session"], done["place"])
    assert following["result"] == "went on" and "+one\n+two" in following["changes"]["diff"]
    wait_until(lambda: "went on" in json.dumps(client.messages(parent)), "the second result in the parent")
    said = [message["info"]["role"] for message in client.messages(str(done["session"]))]
    assert said.count("user") == 3, "one session, with a person's prompt between the two"
    said_last = durable.lines("query", "--type", "execution.output", "--text", "went on")[0]["event"]
    where = 'CALL:bash {"command": "pwd", "description": "look"}'
    (fork,) = durable.lines("fork", done["session"], "--at", said_last["id"], "--prompt", where, "--yes")
    # Its copy is gone, so the fork is made from the log.
    assert (fork["messages"], fork["directory"]) == (None, str(client.project))
    wait_until(lambda: len(client.messages(fork["fork"])) == 4, "the answer to the prompt in the fork")
    begun, *_, ran = map(json.dumps, client.messages(fork["fork"]))
    assert "went on" in begun and str(client.project) in ran, "it runs in the project, as a person's"
    durable.cli("intents", again["id"], "--apply")
    assert (client.project / "again.txt").read_text() == "one\ntwo\n"
    assert "would remove" in durable.cli("intents", again["id"], "--discard")
    assert "+two" in durable.cli("intents", again["id"], "--diff")
    durable.cli("intents", again["id"], "--discard", "--yes")
    assert not (durable.home / "copies/results" / again["id"]).exists()


def tolds(durable: DurableStream) -> list[str]:
    """What the toasts that OpenCode showed were about."""
    done = [each["event"]["payload"] for each in durable.lines("query", "--type", "effect.completed")]
    return [each["node"] for each in done if each["kind"] == "opencode.toast" and each["result"]["shown"]]


def test_an_agent_without_a_shell_cannot_make_the_sidecar_run_a_program(
    client: RealOpenCode, durable: DurableStream, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    files = planted(ran)
    writes = " ".join(f"CALL:write {json.dumps({'filePath': k, 'content': v})}" for k, v in files.items())
    config = client.project / "opencode.json"
    config.write_text('{"permission": {"bash": "deny", "external_directory": "deny"}}')
    try:
        parent = client.create_session("parent")
        client.prompt(parent, spawn(f'CALL:read {{"filePath": ".git/config"}}THEN: {writes}THEN: SAY:wrote it'))
        done = one(durable, "completed", parent)
    finally:
        config.unlink()
    root = Path(done["copy"]["root"])
    assert not root.exists() and [each["file"] for each in done["changes"]["files"]] == [".gitattributes"]
    durable.cli("intents", done["id"], "--diff")
    durable.cli("intents", done["id"], "--apply")
    durable.cli("intents", done["id"], "--undo")
    wrote = durable.lines("query", "--type", "execution.step", "--text", "fsmonitor")
    assert not ran.exists() and any(each["event"]["payload"].get("tool") == "write" for each in wrote)


def test_a_permission_of_an_untracked_opencode_json_holds_in_the_copy(
    client: RealOpenCode, durable: DurableStream
) -> None:
    shell = {"command": "echo allowed > asked.txt", "description": "make a file"}
    config = client.project / "opencode.json"
    config.write_text('{"permission": {"bash": "ask"}}')
    try:
        parent = client.create_session("parent")
        client.prompt(parent, spawn(f"CALL:bash {json.dumps(shell)}THEN: SAY:asked first"))
        wait_until(lambda: durable.lines("checkpoints"), "the question")
        (asked,) = durable.lines("checkpoints")
        assert asked["kind"] == "permission" and intents(durable, parent)[0]["state"] == "running"
        durable.cli("checkpoints", asked["id"], "--answer", "once")
        done = one(durable, "completed", parent)
    finally:
        config.unlink()
    assert [each["file"] for each in done["changes"]["files"]] == ["asked.txt"]


def test_a_child_of_its_task_tool_counts(client: RealOpenCode, durable: DurableStream) -> None:
    task = {"description": "look", "prompt": "SAY:seen", "subagent_type": "general"}
    parent = client.create_session("parent")
    client.prompt(parent, spawn(f"CALL:task {json.dumps(task)}THEN: SAY:done", "with a child"))
    wait_until(lambda: [i["state"] for i in intents(durable, parent)] == ["completed"], "the end of the intent")
    events = [r["event"] for r in durable.lines("query")]
    (intent,) = intents(durable, parent)
    spent = [e["payload"] for e in events if e["type"] == "intent.spent" and e["payload"]["intent"] == intent["id"]]
    assert len(spent) == 3 and "intent.child" in [e["type"] for e in events], "two steps of its own, one of the child's"
    assert intent["tokens"] == sum(each["tokens"] for each in spent) > 0


@pytest.mark.parametrize("streams", [True, False])
def test_two_that_end_together_wake_a_parent_once_whether_it_streams_or_is_idle(
    client: RealOpenCode, durable: DurableStream, model: ModelServer, streams: bool
) -> None:
    both = f"both-{streams}"
    calls = " ".join(spawns(f"HOLD:{both} SAY:{name}", name) for name in ("first", "second"))
    parent = client.create_session("parent")
    if streams:
        client.prompt_async(parent, f"{calls}THEN: HOLD:stream DRIP:30,0.05 SAY:a long answer")
    else:
        client.prompt(parent, f"{calls}THEN: SAY:started")
    wait_until(lambda: [i["state"] for i in intents(durable, parent)] == ["running", "running"], "both at work")
    if streams:
        model.wait_held("stream")
    model.release(both)
    wait_until(lambda: [i["state"] for i in intents(durable, parent)] == ["completed", "completed"], "the end of both")
    if streams:
        model.release("stream")
    seen = ["seen", "seen"]
    wait_until(lambda: wakes(durable, parent) == seen, "both receipts")
    client.prompt(parent, "SAY:after")
    given = [json.dumps(m) for m in client.messages(parent) if m["info"]["role"] == "user"]
    (wake,) = [text for text in given if "background-agent" in text]
    assert "first" in wake and "second" in wake, "one message with both results"


def test_a_summary_names_the_work_that_still_runs(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    parent = client.create_session("parent")
    client.prompt(parent, spawn("HOLD:summary SAY:forty two", "count the stars"))
    running = one(durable, "running", parent)
    before = len(model.requests)
    client.summarize(parent)
    said = "".join(request.user_text for request in model.requests[before:])
    assert f"background work under way:\n{running['id']} running" in said
    model.release("summary")
    one(durable, "completed", parent)


JOBS = size("JOBS", 2)
MORE = 40
"""How many more files and threads a process may have after any number of jobs: connections stay open for a while."""


def works(client: RealOpenCode, durable: DurableStream, jobs: int) -> set[str]:
    """Work in that many copies, to its end and to its results in the parent. The sessions that it made."""
    before, parent = {each["id"] for each in client.sessions()}, client.create_session("parent")
    write = f"CALL:write {json.dumps({'filePath': 'made.txt', 'content': 'x'})} THEN: SAY:short"
    # OpenCode asks before it makes the same call for the third time.
    calls = [spawns(write, f"job {number}", isolation="copy") for number in range(jobs)]
    client.prompt_async(parent, " ".join(calls) + " THEN: SAY:started")
    states = lambda: [each["state"] for each in intents(durable, parent)]  # noqa: E731
    wait_until(lambda: states() == ["completed"] * jobs, "the end of all jobs", HANG_LIMIT_S + 15.0 * jobs)
    wait_until(lambda: wakes(durable, parent) == ["seen"] * jobs, "each result", HANG_LIMIT_S + 15.0 * jobs)
    made = {each["id"] for each in client.sessions()} - before
    assert made == {parent, *(each["session"] for each in intents(durable, parent))}
    return made


def held(durable: DurableStream, headless: int) -> tuple[list[str], int, int]:
    """The directories that a headless OpenCode has open, how many files, and how many threads."""
    directories = [each["directory"] for each in durable.status()["links"] if each["pid"] == headless]
    return directories, *(len(list(Path(f"/proc/{headless}/{what}").iterdir())) for what in ("fd", "task"))


def kept(client: RealOpenCode) -> set[Path]:
    """The files of OpenCode, without its logs and the snapshots of the project."""
    own = sha1(str(client.project).encode(), usedforsecurity=False).hexdigest()
    found = Path(client.environment()["XDG_DATA_HOME"]).rglob("*")
    return {each for each in found if each.is_file() and own not in each.parts and "log" not in each.parts}


def test_of_many_jobs_opencode_keeps_the_sessions_alone(client: RealOpenCode, durable: DurableStream) -> None:
    works(client, durable, 1)
    (headless,) = durable.status()["headless"]
    (_, files, threads), data = held(durable, headless), kept(client)
    works(client, durable, JOBS)
    wait_until(lambda: len(held(durable, headless)[0]) == 1, "all copies but the last to be forgotten")
    now = held(durable, headless)
    print(f"{JOBS} jobs: {files} files and {threads} threads before, {now} after")
    assert durable.status()["headless"] == [headless] and now[1] <= files + MORE and now[2] <= threads + MORE
    assert Path(f"/proc/{headless}/task/{headless}/children").read_text() == ""
    assert snapshots_elsewhere(client) == [] and not list((durable.home / "copies").glob("int_*"))
    durable.cli("stop")
    wait_until(lambda: not is_alive(headless), "the end of the headless OpenCode")
    assert kept(client) - data == set()

    def listed() -> list[str]:
        client.dispose()
        client.sessions()  # the person opens the project again
        return [each for project in client.request("GET", "/project") for each in project["sandboxes"]]

    wait_until(lambda: listed() == [], "that OpenCode lists no copy")


WORD = "xylophone"
KEPT = "harpsichord"


def test_what_was_said_in_a_forgotten_session_or_about_it_is_in_no_file_and_nothing_is_done_again(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    parent, other = client.create_session(WORD), client.create_session("other")
    for session, word in ((parent, WORD), (other, KEPT)):
        client.prompt(session, spawn(f"SAY:{word}", f"play the {word}"))
        wait_until(lambda s=session: [i["state"] for i in intents(durable, s)] == ["completed"], "the work")
        client.prompt(session, f"CALL:notify_user {json.dumps({'message': word})} THEN: SAY:{word}")
        client.prompt_async(session, f"CALL:checkpoint_ask {json.dumps({'question': word})} THEN: SAY:heard {word}")
        durable.cli("checkpoints", only(durable, "ask", background=False)["id"], "--answer", word)
        wait_until(lambda s=session: "heard" in json.dumps(client.messages(s)[-1]), "the answer")
        wait_until(lambda s=session: wakes(durable, s)[-1:] == ["seen"], "receipt")
    calls = len(model.requests)
    child = intents(durable, parent)[0]["session"]
    exported = [line["event"] for line in durable.lines("export", parent) if "event" in line]
    told = {event["type"]: event["payload"] for event in exported if event["source"]["adapter"] == "runtime"}
    assert told["intent.created"]["prompt"] == f"SAY:{WORD}" and "intent.completed" in told
    assert told["message.answered"]["answer"] == [WORD]
    assert WORD in told["message.queued"]["text"] and KEPT not in json.dumps(exported)
    would = durable.lines("forget", parent)[0]
    assert {each["id"] for each in would["sessions"]} == {parent, child}
    done = durable.lines("forget", parent, "--yes")[0]["done"]
    assert would["records"] == done["records"]
    assert files_with(durable.home, WORD) == [] and files_with(durable.home, KEPT)
    assert intents(durable, parent) == [] and len(intents(durable, other)) == 1
    durable.cli("verify")

    os.kill(killed := durable.wait_linked(), signal.SIGKILL)
    wait_until(lambda: durable.wait_linked() != killed, "the next sidecar")
    client.prompt(other, spawn("SAY:again bassoon", "again"))
    wait_until(lambda: [i["state"] for i in intents(durable, other)] == ["completed"] * 2, "the next work")
    ours = [request for request in model.requests[calls:] if request.session in (parent, child)]
    assert ours == [] and files_with(durable.home, WORD) == []
    durable.cli("verify")
    # A child alone: its words are also in the session above.
    second = intents(durable, other)[0]["session"]
    durable.cli("forget", second, "--yes")
    assert KEPT not in json.dumps([r for r in durable.log(other) if "background-agent" in json.dumps(r)])
    (again,) = intents(durable, other)
    durable.cli("forget", again["session"], "--yes")
    agents = [r["event"] for name, rows in durable.whole_log().items() if name.startswith("agent/") for r in rows]
    left = [(each["type"], each["payload"]) for each in agents if "bassoon" in str(each)]
    assert left == [], "also the prompt: the work was registered before it had a session"
