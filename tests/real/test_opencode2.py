"""The real OpenCode 2: its service, the plugin in it, and the sidecar, compared with the service's own messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.real.background import answers, refused
from tests.real.durable import EXECUTABLE, PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode2 import RealOpenCode2
from tests.real.recorded2 import assert_recorded, outcomes
from tests.searching import files_with
from tests.streams.sizes import size
from tests.torture.figures import note, seeded
from tools.install_opencode import VERSION_2, binary_path
from tools.record.opencode2 import CONFIG, SCENARIOS, Feed, Scenario, call

pytestmark = pytest.mark.real_opencode

KILLS = size("SERVICE_KILLS", 2)
PROGRESS = 6
"""By how much a session's messages grow, at most, between two holds of that test."""


@pytest.fixture(scope="module")
def opencode2_binary() -> Path:
    path = binary_path(VERSION_2)
    if not path.exists():
        pytest.fail(f"OpenCode 2 is not installed at {path}: run `make opencode`", pytrace=False)
    return path


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    return Feed(tmp_path_factory.mktemp("feed") / "items.jsonl")


@pytest.fixture(scope="module")
def client(opencode2_binary: Path, model: ModelServer, durable: DurableStream, feed: Feed) -> Iterator[RealOpenCode2]:
    with RealOpenCode2(
        opencode2_binary,
        model.port,
        config=CONFIG,
        plugins={PLUGIN: durable.plugin()},
        plugin_scope="global",
        environment={"DURABLE_STREAM_RECORD": str(feed.path)},
    ) as client:
        yield client
        durable.end_with(client)
        wait_until(lambda: client.leftovers() == [], "the end of all processes")


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


def test_a_log_that_begins_now_has_what_came_while_no_sidecar_could_start_and_imports_what_came_before(
    client: RealOpenCode2, tmp_path: Path
) -> None:
    """First of all tests, while there are few sessions to import."""
    starter = tmp_path / "starter"
    starter.write_text(f'#!/bin/sh\n[ -e {tmp_path}/go ] && exec {EXECUTABLE} "$@"\n')
    starter.chmod(0o755)
    old = turn(client, f"REASON:hm {call('shell', command='echo old')} THEN: SAY:long ago")
    with DurableStream(tmp_path / "home") as later, plugged(client, later.plugin(command=starter)):
        session = turn(client, call("write", path="absent.txt", content="one\n"))
        turn(client, "REASON:hm SAY:second", session)
        turn(client, f"{call('shell', command='echo x; exit 3')} THEN: SAY:third", session)
        assert later.running() is None
        (tmp_path / "go").touch()
        records = assert_recorded(later, client, session)
        assert outcomes(records, session) == ["completed"] * 3
        assert not [record for record in records[1:] if record["event"]["metadata"].get("history")], "all of it was fed"
        assert later.log(old) == []
        first, again = (import_old(later, client) for _ in range(2))
        assert first["opencode_2"]["sessions"] > 0
        assert again["opencode_2"]["sessions"] == 0
        records = assert_recorded(later, client, old)
        assert all(record["event"]["metadata"]["history"] for record in records)
        turn(client, "SAY:once more", old)
        assert outcomes(assert_recorded(later, client, old), old) == ["completed"] * 2
        later.cli("verify")


def test_the_first_session_of_a_new_repository_is_whole(client: RealOpenCode2, durable: DurableStream) -> None:
    assert client.api("GET", "/api/debug/location") == [], "the service has just started"
    place = client.project / "new"
    place.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=place, check=True)
    session = turn(client, "SAY:the very first", client.new_session(place))
    records = assert_recorded(durable, client, session)
    # On a busy machine, OpenCode may name the session before it begins the turn.
    types = [record["event"]["type"] for record in records]
    assert [each for each in types if each != "opencode.session.renamed"][:3] == [
        "lifecycle.session.created",
        "human.input",
        "turn.started",
    ]
    another = client.project / "another"
    another.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=another, check=True)
    assert_recorded(durable, client, turn(client, "SAY:the second", client.new_session(another)))
    client.api("POST", f"/api/session/{session}/move", {"directory": str(another)})

    def places() -> list[str]:
        return [each["directory"] for each in durable.lines("streams") if each["stream_id"] == session]

    wait_until(lambda: places() == [str(another)], "the session's new place")
    worktree = [record["event"] for record in durable.log("system")]
    assert "opencode.worktree.resolved" in {event["type"] for event in worktree}, "of no session, so it is kept whole"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_scenario_is_recorded_as_the_service_tells_it(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer, feed: Feed, scenario: Scenario
) -> None:
    feed = feed.from_now()
    scenario(client, model, feed)
    compared = 0
    for root, *children in feed.families():
        if client.exists(root):
            compared += len(assert_recorded(durable, client, root, *children, gaps=("text_cut",)))
        else:
            wait_until(lambda root=root: "lifecycle.session.ended" in str(durable.log(root)), "the end of the session")
    note(f"opencode2-{scenario.__name__}", records=compared, lost=0, doubled=0)


def test_a_sidecar_killed_again_and_again_records_each_event_once(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer
) -> None:
    """One turn of many steps; each kill comes at another place in it."""
    random, session = seeded("service kills"), turn(client, "SAY:before")
    assert_recorded(durable, client, session)
    steps = [step for number in range(KILLS) for step in disturbed(number)]
    client.prompt(session, " THEN: ".join([*steps, "SAY:after"]))
    for number in range(KILLS):
        model.wait_held(f"kill-{number}")
        killed, reached = durable.wait_linked(), client.progress(session) + random.randrange(PROGRESS)
        model.release(f"kill-{number}")
        client.until(lambda reached=reached: client.progress(session) > reached, "the progress")
        os.kill(killed, signal.SIGKILL)
        durable.wait_running({killed})
    client.wait(session)
    other = turn(client, "SAY:another session")
    assert outcomes(assert_recorded(durable, client, session), session) == ["completed"] * 2
    assert_recorded(durable, client, other)
    durable.cli("verify")
    note("service-kills", kills=KILLS, lost=0, doubled=0)


def disturbed(number: int) -> list[str]:
    """Two steps of a turn, which begin when the test releases them."""
    write, fail = call("write", path=f"{number}.txt", content="x"), call("shell", command="echo x; exit 3")
    return [f"HOLD:kill-{number} REASON:let me see {write} {fail}", call("shell", command="echo y; sleep 0.2")]


IN = {
    "text": "DRIP:40,0.05 SAY:at last",
    "ask": f"{call('shell', command='printf 4')} THEN: SAY:after the ask",
}
CASES = [("text", "term", True), ("ask", "kill", True), ("ask", "term", False)]
"""The scenarios `cut`, `crash` and `sigterm` are the others: a service that ends alone in a text or a tool."""


@pytest.mark.parametrize(("where", "how", "both"), CASES)
def test_a_service_that_ends_in_a_turn_goes_on_with_it_and_nothing_is_lost(
    client: RealOpenCode2, durable: DurableStream, where: str, how: str, both: bool
) -> None:
    session = turn(client, "SAY:before")
    reached = client.progress(session) + 4  # A prompt that is still in the inbox would wait there for the next one.
    client.prompt(session, IN[where])
    if where == "ask":
        asked(client, session, "permission")
    else:
        client.until(lambda: client.progress(session) > reached, "the first part of the answer")
    if both:
        os.kill(durable.wait_linked(), signal.SIGKILL)
    client.kill9() if how == "kill" else client.terminate()
    client.start()

    def goes_on() -> bool:
        ended = [message for message in client.messages(session) if message["type"] == "idle"]
        return len(ended) > 1 or session in client.api("GET", "/api/session/active")["data"]

    client.until(goes_on, "the service goes on with the turn")
    client.wait(session)
    turn(client, "SAY:and again", session)
    records = assert_recorded(durable, client, session, gaps=("text_cut",))
    assert outcomes(records, session)[-1] == "completed"
    assert [r["event"]["type"] for r in records].count("human.input") == 3
    durable.cli("verify")


def test_an_open_ask_is_listed_after_the_sidecar_comes_back(client: RealOpenCode2, durable: DurableStream) -> None:
    session = turn(client, "SAY:before")
    idle = durable.wait_linked()
    os.kill(idle, signal.SIGKILL)
    durable.wait_running({idle})
    wait_until(durable.is_read, "the service is read although nobody uses OpenCode")
    os.kill(durable.wait_linked(), signal.SIGKILL)
    client.prompt(session, call("shell", command="printf 3"))
    request = asked(client, session, "permission")
    wait_until(lambda: checkpoints(durable.log(session)), "the ask")
    client.api("POST", f"/api/session/{session}/permission/{request}/reply", {"decision": "once"})
    client.wait(session)
    assert_recorded(durable, client, session)
    answered = [("permission", "asked"), ("permission", "replied")]
    wait_until(lambda: checkpoints(durable.log(session)) == answered, "the answer, which no fact waits for")
    assert refused(durable, "checkpoints", request, "--answer", "once") == "already-answered"

    client.prompt(session, " ".join(call("shell", command=f"printf {number}") for number in (6, 7, 8)))
    wait_until(lambda: len(durable.lines("checkpoints")) == 3, "three asks at once")
    first, second, third = durable.lines("checkpoints")
    durable.cli("checkpoints", second["id"], "--answer", "reject")
    wait_until(lambda: len(answers(durable, session)) == 4, "the end of the others")
    assert sorted(answers(durable, session)[1:]) == sorted(
        [(second["request"], "user", None)]
        + [(each["request"], "opencode", second["request"]) for each in (first, third)]
    )


def test_a_call_is_shown_while_it_runs_and_not_while_it_waits(client: RealOpenCode2, durable: DurableStream) -> None:
    session = client.new_session()
    client.prompt(session, call("shell", command="printf 5; sleep 600"))
    request = asked(client, session, "permission")
    assert durable.at_work(session, "asks")["began"] is None
    client.api("POST", f"/api/session/{session}/permission/{request}/reply", {"decision": "once"})
    assert durable.at_work(session, "began")["doing"] == "shell: printf 5; sleep 600"
    client.api("POST", f"/api/session/{session}/interrupt")
    client.wait(session)
    assert_recorded(durable, client, session)


def test_what_happened_without_the_plugin_is_rebuilt_once(client: RealOpenCode2, durable: DurableStream) -> None:
    session = turn(client, "SAY:before")
    assert_recorded(durable, client, session)
    file = client.config_directory / "plugin" / PLUGIN
    text = file.read_text()
    file.unlink()
    client.stop_in()
    client.start()
    unseen = turn(client, f"{call('shell', command='echo unseen')} THEN: SAY:nobody listens")
    turn(client, "REASON:hm SAY:nobody listens", session)
    client.api("PATCH", f"/api/session/{session}", {"title": "named meanwhile"})
    file.write_text(text)
    client.stop_in()
    client.start()
    turn(client, "SAY:seen again", session)
    for each, turns in ((session, 3), (unseen, 1)):
        records = assert_recorded(durable, client, each)
        assert outcomes(records, each) == ["completed"] * turns
        assert [r for r in records if r["event"]["metadata"].get("history")]
    assert "named meanwhile" in str(durable.log(session))
    assert "nobody listens" in durable.cli("read", session)


def test_the_services_password_is_in_no_file_of_ours(client: RealOpenCode2, durable: DurableStream) -> None:
    turn(client, "SAY:hello")
    password = json.loads(client.registration.read_bytes())["password"]
    assert files_with(durable.home, password) == []


def test_the_command_line_of_opencode_2_is_recorded(client: RealOpenCode2, durable: DurableStream) -> None:
    known = {info["id"] for info in client.api("GET", "/api/session")["data"]}
    client.run("SAY:from run")
    (session,) = {info["id"] for info in client.api("GET", "/api/session")["data"]} - known
    assert outcomes(assert_recorded(durable, client, session), session) == ["completed"]


class Unregistered(RealOpenCode2):
    registers = False


def test_everything_of_two_servers_on_one_database_is_recorded_once(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer
) -> None:
    """No file names the later one, so the sidecar learns of it from its plugin alone."""
    tools = " THEN: ".join(call("shell", command=f"echo {number}; sleep 0.1") for number in range(4))
    gaps = durable.lines("query", "--type", "capture.gap")
    with Unregistered(client.binary, model.port, root=client.root) as other:
        first, second = client.new_session(), other.new_session()
        for _ in range(2):
            client.prompt(first, tools)
            other.prompt(second, tools)
            client.wait(first)
            other.wait(second)
        for server in (other, client, other):  # one session, in turns
            server.prompt(first, "SAY:by turns")
            server.wait(first)
        other.prompt(second, f"{tools} THEN: HOLD:{second} SAY:long after")
        model.wait_held(second)
        os.kill(killed := durable.wait_linked(), signal.SIGKILL)
        durable.wait_running({killed})
        client.prompt(first, "SAY:again")  # while the other server runs a turn that the service does not know as active
        client.wait(first)
        assert_recorded(durable, client, first)
        model.release(second)
        other.wait(second)
        for session, turns in ((first, 6), (second, 3)):
            records = assert_recorded(durable, client, session)
            assert outcomes(records, session) == ["completed"] * turns
        durable.cli("verify")
    assert durable.lines("query", "--type", "capture.gap") == gaps


def test_a_copy_in_one_project_records_only_that_project(
    client: RealOpenCode2, durable: DurableStream, tmp_path: Path
) -> None:
    place, other = (client.project / name for name in ("mine", "other"))
    for each in (place, other):
        each.mkdir()
        subprocess.run(["git", "init", "-q"], cwd=each, check=True)
    copy = place / ".opencode" / "plugin" / PLUGIN
    copy.parent.mkdir(parents=True)
    with DurableStream(tmp_path / "home") as mine:
        copy.write_text(mine.plugin())
        session = turn(client, "SAY:in mine", client.new_session(place))
        beside = turn(client, "SAY:in another", client.new_session(other))
        turn(client, "SAY:again", session)
        assert_recorded(durable, client, beside)
        assert outcomes(assert_recorded(mine, client, session), session) == ["completed"] * 2
        assert session in mine.whole_log() and beside not in mine.whole_log()
        copy.unlink()
        client.stop_in()
        client.start()


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


def import_old(durable: DurableStream, client: RealOpenCode2) -> dict[str, Any]:
    return dict(json.loads(durable.in_project(client, "import", "--opencode", "--json")))
