"""OpenCode 2 as a host: what the messages of a session say of its prompt, and the host over HTTP on a fake service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.opencode.capture.state import CaptureState, SessionState
from sidecar.agents.effects.outbound import outbound
from sidecar.background.effects import HostActs
from sidecar.background.hosts import v2
from sidecar.background.hosts.host import HostAbsent, HostError, Look, Part
from sidecar.background.hosts.v2 import V2Host
from sidecar.background.hosts.v2_turn import Turn, quiet_ms, turn_of
from sidecar.record.opencode2.registration import place_of
from tests.sidecar.background.released2 import FakeReleased, registered
from tests.sidecar.background.support import PLAIN, Only

NOW = 10_000
Json = dict[str, Any]


def quiet(recorded_ms: int = 0, **last: Any) -> int:
    return quiet_ms(last, recorded_ms, NOW)


def tool(status: str, **time: int) -> Json:
    return {"type": "tool", "state": {"status": status}, "time": time}


def test_it_is_silent_since_the_newest_thing_that_began_or_ended() -> None:
    text = {"type": "text", "text": "so far"}
    assert quiet(time={"created": 1_000}, content=[text]) == 9_000
    assert (
        quiet(time={"created": 1_000}, content=[tool("completed", created=2_000, ran=3_000, completed=4_000)]) == 6_000
    )
    assert quiet(7_000, time={"created": 1_000, "completed": 5_000}) == 3_000


def test_while_a_tool_runs_or_a_provider_is_to_be_tried_again_it_is_not_silent() -> None:
    assert quiet(time={"created": 1_000}, content=[tool("running", created=2_000, ran=3_000)]) == 0
    assert quiet(time={"created": 1_000}, retry={"at": NOW + 4_000}) == 0
    assert quiet(time={"created": 1_000}, retry={"at": NOW - 500}) == 500


def test_without_any_time_nothing_is_said() -> None:
    assert quiet() == 0


# --- the messages of a session ---
def user(key: str = "", *, prompt: bool = False) -> Json:
    mark = {"durable_stream": {"key": key} | ({"prompt": True} if prompt else {})} if key else {}
    return {"type": "user", "text": "do it", "metadata": mark}


def answer(*said: str, **more: Any) -> Json:
    return {"type": "assistant", "finish": "stop", "content": [{"type": "text", "text": each} for each in said], **more}


def call(name: str, state: str = "completed", finish: str = "tool-calls", error: Any = None, **about: Any) -> Json:
    part = {"type": "tool", "name": name, "state": {"status": state, "metadata": about}}
    return {"type": "assistant", "finish": finish, "content": [part]} | ({"error": error} if error else {})


def idle(outcome: str = "succeeded") -> Json:
    return {"type": "idle", "outcome": outcome}


def launch(child: str) -> Json:
    return call("subagent", sessionID=child, status="running", truncated=False)


def report(child: str) -> Json:
    about = {"source": "subagent", "childID": child, "state": "completed"}
    return {"type": "synthetic", "text": "<subagent…>", "metadata": about}


RUNS = call("shell", shellID="sh_1", status="running")
SHELL_REPORT = {"type": "synthetic", "text": "<shell…>", "metadata": {"source": "shell", "shellID": "sh_1"}}
ABORTED = {"type": "aborted", "message": "Step interrupted"}
PROMPT = user("key", prompt=True)
WAKE = user("ntc_1")
PERSON = user()
SAID = answer("forty", "two")
DONE = Turn("answered", "forty\ntwo")
REFUSED = call("shell", "error", "error", ABORTED)
BROKEN_OFF = answer(finish="error", error=ABORTED)
CONTINUED = {"type": "synthetic", "text": "The server restarted…", "description": "Continuing after restart"}
SHELL = {"type": "shell", "command": "ls", "status": "exited"}
SWITCHED = {"type": "agent-switched", "agent": "plan"}
COMPACTED = {"type": "compaction", "status": "completed", "summary": "what was said"}
STEP = call("shell")
TAILS: dict[str, tuple[list[Json], Turn]] = {
    "not begun": ([], Turn("open")),
    "a step": ([STEP], Turn("open")),
    "an answer whose turn is not over": ([SAID], Turn("open", "forty\ntwo")),
    "an unfinished answer": ([{"type": "assistant", "content": []}], Turn("open")),
    "succeeded": ([STEP, SAID, idle()], DONE),
    "failed": (
        [answer(finish="error", error={"type": "provider.invalid-request", "message": "no"}), idle("failed")],
        Turn("failed", "no"),
    ),
    "failed without an answer": ([idle("failed")], Turn("failed")),
    "succeeded without an answer": ([idle()], Turn("open")),
    "succeeded after an answer that an abort broke off": (
        [answer("for", finish="error", error=ABORTED), CONTINUED, idle()],
        Turn("open", "for"),
    ),
    "succeeded after an unfinished answer": ([answer("for", finish=""), idle()], Turn("open", "for")),
    "failed, with some outcome of a later version": ([SAID, idle("lost")], Turn("failed")),
    "recovered from an error": ([answer(error={"type": "x", "message": "no"}), SAID, idle()], DONE),
    "aborted": ([BROKEN_OFF, idle("interrupted")], Turn("aborted")),
    "refused": ([STEP, REFUSED], Turn("cut")),
    "refused and closed": ([REFUSED, idle()], Turn("stopped")),
    "refused, and continued by a person": ([REFUSED, PERSON, SAID, idle()], Turn("stopped")),
    "refused, and woken by a report": ([launch("c"), REFUSED, report("c"), SAID, idle()], Turn("stopped")),
    "cut off": ([BROKEN_OFF], Turn("cut")),
    "about to go on": ([BROKEN_OFF, CONTINUED], Turn("open")),
    "going on": ([BROKEN_OFF, CONTINUED, STEP], Turn("open")),
    "went on": ([BROKEN_OFF, CONTINUED, SAID, idle()], DONE),
    "went on after a tool": ([call("shell", "error", finish=""), CONTINUED, SAID, idle()], DONE),
    "cut off too often": ([CONTINUED, BROKEN_OFF, idle("failed")], Turn("failed", "Step interrupted")),
    "compacted on the way": ([STEP, COMPACTED, SAID, idle()], DONE),
    "steered by a person": ([STEP, PERSON, SAID, idle()], DONE),
    "switched on the way": ([SWITCHED, STEP, SWITCHED, SAID, idle()], DONE),
    "a shell command on the way": ([STEP, SHELL, SAID, idle()], DONE),
    "a subagent in the foreground": ([call("subagent", sessionID="c", status="completed"), SAID, idle()], DONE),
    "a subagent that runs": ([launch("c"), answer("started"), idle()], Turn("waiting", "started", ("c",))),
    "one of two that runs": (
        [launch("c"), launch("d"), answer("started"), idle(), report("c"), SAID, idle()],
        Turn("waiting", "forty\ntwo", ("d",)),
    ),
    "a subagent that has reported": ([launch("c"), answer("started"), idle(), report("c"), SAID, idle()], DONE),
    "a subagent that reported on the way": ([launch("c"), STEP, report("c"), SAID, idle()], DONE),
    "a subagent that was used again": (
        [launch("c"), idle(), report("c"), launch("c"), idle()],
        Turn("waiting", "", ("c",)),
    ),
    "its report is being answered": ([launch("c"), answer("started"), idle(), report("c")], Turn("open", "started")),
    "a notice while a subagent runs": (
        [launch("c"), idle(), WAKE, answer("other"), idle(), report("c"), SAID, idle()],
        DONE,
    ),
    "aborted while a subagent runs": ([launch("c"), BROKEN_OFF, idle("interrupted")], Turn("aborted")),
    "a background command": ([RUNS, answer("started"), idle()], Turn("waiting", "started", ("sh_1",))),
    "a background command that has reported": ([RUNS, answer("started"), idle(), SHELL_REPORT, SAID, idle()], DONE),
    "aborted while a background command runs": ([RUNS, BROKEN_OFF, idle("interrupted")], Turn("aborted")),
}
LATER: dict[str, list[Json]] = {
    "nothing": [],
    "a person's turn": [PERSON, answer("other"), idle()],
    "a person's turn that goes on": [PERSON, STEP],
    "a person's turn that was aborted": [PERSON, BROKEN_OFF, idle("interrupted")],
    "a person's turn that was refused": [PERSON, REFUSED],
    "a person's turn that was cut off": [PERSON, BROKEN_OFF, CONTINUED, answer("other"), idle()],
    "a notice": [WAKE, answer("other"), idle()],
    "an empty turn": [idle()],
    "a compaction": [COMPACTED, idle()],
    "a shell command": [
        SHELL,
        {"type": "synthetic", "text": "out", "metadata": {"source": "shell"}},
        answer("x"),
        idle(),
    ],
    "another agent": [SWITCHED],
    "a late report": [report("z"), answer("other"), idle()],
}
OVER = {name: tail for name, tail in TAILS.items() if tail[1].state in ("answered", "failed", "aborted", "stopped")}


@pytest.mark.parametrize("name", TAILS)
def test_what_became_of_a_prompt(name: str) -> None:
    tail, turn = TAILS[name]
    assert turn_of([PROMPT, *tail]) == turn
    assert turn_of([PERSON, answer("before"), idle(), WAKE, idle(), PROMPT, *tail]) == turn


@pytest.mark.parametrize(("name", "later"), list(product(OVER, LATER)))
def test_what_is_over_is_over_whatever_comes_later(name: str, later: str) -> None:
    tail, turn = OVER[name]
    assert turn_of([PROMPT, *tail, *LATER[later]]) == turn


@pytest.mark.parametrize("name", TAILS)
def test_a_new_prompt_counts_alone(name: str) -> None:
    tail, turn = TAILS[name]
    for before, _ in TAILS.values():
        assert turn_of([PROMPT, *before, user("again", prompt=True), *tail]) == turn


def test_without_a_prompt_nothing_is_known() -> None:
    assert turn_of([]) is None
    assert turn_of([PERSON, SAID, idle(), WAKE, SAID, idle(), CONTINUED]) is None


@pytest.mark.parametrize("odd", [{}, {"type": 3}, {"type": "assistant", "content": 7, "error": "x"}, {"type": "later"}])
def test_a_message_of_an_unknown_kind_changes_nothing(odd: Json) -> None:
    assert turn_of([odd, PROMPT, odd, SAID, idle(), odd]) == DONE


USER, PROJECT = "ses_user", "/project"
SENT = user("key", prompt=True) | {"id": "msg_prompt"}
WAITS = {"directory": PROJECT, "text": "continue", "waits": True}


@pytest.fixture
def fake() -> FakeReleased:
    return FakeReleased()


class Plugin:
    """A link to the plugin of a service, which sees the commands that begin."""

    def __init__(self, fake: FakeReleased, path: Path) -> None:
        self.pid, self.is_open, self.identity = os.getpid(), True, SimpleNamespace(service=str(path))
        self.fake, self.given = fake, list[dict[str, Any]]()

    async def call(self, method: str, args: dict[str, Any], timeout: float = 0.0) -> Any:
        self.given.append(args)
        return "a command" if method == "variables.ask" else self.fake.begun.pop(args["command"], None)


@pytest.fixture
def plugin(fake: FakeReleased, tmp_path: Path) -> Plugin:
    return Plugin(fake, tmp_path / "service.json")


@pytest.fixture
def host(plugin: Plugin, fake: FakeReleased, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[V2Host]:
    monkeypatch.setattr(v2, "SETTLE_SECONDS", 0.0)
    state, path = CaptureState(), tmp_path / "service.json"
    state.sessions[USER] = SessionState(USER, "s", "s", None, True, "e", directory=PROJECT, host=place_of(path))
    fake.add(USER, PROJECT)
    with registered(fake, path):
        yield V2Host(lambda: [cast(Any, plugin)], state, lambda: 0)


async def create(host: V2Host, directory: str = PROJECT, parent: str | None = USER) -> str:
    return await host.create("int_1", title="count", directory=directory, parent=parent)


async def phantom(host: V2Host, fake: FakeReleased, *messages: dict[str, Any]) -> str:
    """A background session with these messages."""
    session = await create(host)
    fake.messages[session] = [{"id": f"msg_{number}", **each} for number, each in enumerate(messages)]
    return session


async def test_a_session_has_the_variables_of_the_one_that_asked_and_gets_them_once(
    host: V2Host, fake: FakeReleased
) -> None:
    fake.variables[USER] = {"PATH": os.environ["PATH"], "ASKER": "terminal"}
    session = await create(host)
    assert fake.variables[session]["ASKER"] == "terminal"
    fake.variables.clear()
    await look(host, session)
    assert not fake.variables, "the service has them"
    host.given.keep(session, {"ASKER": "command"})
    await host.given.tell(await host._client(session), session)
    assert fake.variables == {session: {"ASKER": "command"}}


async def test_the_plugin_of_the_service_runs_commands_with_the_variables_of_the_session_that_asked(
    host: V2Host, fake: FakeReleased, plugin: Plugin
) -> None:
    fake.variables[USER] = {"ASKER": "terminal"}
    call = await host.runner("int_1", USER, PROJECT, "")
    await call("setup.run", {"command": "true"})
    assert plugin.given[-1] == {"command": "true", "variables": {"ASKER": "terminal"}}
    plugin.pid += 1  # another process than the one that the registration names
    with pytest.raises(HostAbsent):
        await host.runner("int_1", USER, PROJECT, "")


async def look(host: V2Host, session: str) -> Look:
    return await host.look(session, directory=PROJECT)


# --- sessions ---


# --- messages ---
async def test_a_message_in_the_history_is_not_sent_and_one_in_the_inbox_is_sent_again(
    host: V2Host, fake: FakeReleased
) -> None:
    part = Part("text", "key", is_prompt=True)
    with outbound({"traceparent": "00-1-2-01"}):
        assert await host.prompt(USER, [part], directory=PROJECT)
    assert fake.traces == {"00-1-2-01"}
    sent = f"POST /api/session/{USER}/prompt"
    assert not await host.prompt(USER, [part], directory=PROJECT)
    assert fake.requests.count(sent) == 2, "the service may have ended before it began the turn"
    fake.messages[USER].append(fake.inbox[USER].pop())
    assert not await host.prompt(USER, [part], directory=PROJECT)
    assert fake.requests.count(sent) == 2
    assert [each["type"] for each in fake.messages[USER]] == ["user"]


async def test_a_prompt_joins_a_turn_and_a_notice_gets_its_own(host: V2Host, fake: FakeReleased) -> None:
    session = await create(host)
    await host.prompt(session, [Part("text", "prompt", is_prompt=True)], directory=PROJECT)
    await host.prompt(USER, [Part("text", "notice")], directory=PROJECT)
    (prompt,), (notice,) = fake.inbox[session], fake.inbox[USER]
    assert (prompt["delivery"], notice["delivery"]) == ("steer", "queue")


async def test_results_that_share_a_key_are_one_message_with_all_of_them(host: V2Host, fake: FakeReleased) -> None:
    results = [Part("one", "first.2"), Part("two", "first.2"), Part("three", "later")]
    await host.prompt(USER, results, directory=PROJECT)
    assert [each["text"] for each in fake.inbox[USER]] == ["one\ntwo", "three"]


# --- forks ---
async def test_the_messages_of_a_long_session_are_all_read_without_the_ends_of_turns(
    host: V2Host, fake: FakeReleased
) -> None:
    session = await phantom(host, fake, *[user(f"key{number}") for number in range(450)], idle())
    assert await host.message_ids(session, directory=PROJECT) == [f"msg_{number}" for number in range(450)]
    assert await host.message_ids("ses_gone", directory=PROJECT) is None


async def test_a_person_s_own_words_are_sent_as_a_person_sends_them(host: V2Host, fake: FakeReleased) -> None:
    assert await host.prompt(USER, [Part("as I said", "")], directory=PROJECT)
    (sent,) = fake.inbox[USER]
    assert sent["text"] == "as I said" and "metadata" not in sent


# --- what became of a prompt ---
async def test_what_is_over_is_over_while_a_person_works_in_the_session(host: V2Host, fake: FakeReleased) -> None:
    session = await phantom(host, fake, SENT, SAID, idle(), user(), STEP)
    fake.active = {session}
    assert await look(host, session) == Look("answered", "forty\ntwo")


async def test_it_is_busy_while_a_subagent_that_it_started_runs(host: V2Host, fake: FakeReleased) -> None:
    session = await phantom(host, fake, SENT, launch("ses_child"), answer("started"), idle())
    fake.add("ses_child", PROJECT)
    fake.messages["ses_child"] = [STEP | {"id": "msg_x", "time": {"created": 1_000}}]
    fake.active = {"ses_child"}
    host._now_ms = lambda: 5_000
    assert await look(host, session) == Look("busy", quiet_ms=4_000)
    fake.active = set()
    assert await look(host, session) == Look("answered", "started")


@pytest.mark.parametrize("of", ["ses_child", ""])
async def test_it_waits_for_a_command_that_it_left_running_but_not_for_ever_and_names_it(
    host: V2Host, fake: FakeReleased, tmp_path: Path, of: str
) -> None:
    ended = idle() | {"time": {"created": 1_000}}
    session = await phantom(host, fake, SENT, RUNS, answer("started"), ended)
    host._state.sessions["ses_child"] = SessionState("ses_child", "s", "s", session, True, "e")
    place = str(tmp_path)
    fake.shells = [ran(of or session, place), ran("ses_other", place, "sh_2")]
    host._now_ms = lambda: 1_000 + v2.LEFT_MS - 1
    assert await host.look(session, directory=place) == Look("busy")
    host._now_ms = lambda: 1_000 + v2.LEFT_MS
    assert await host.look(session, directory=place) == Look("answered", "started", left=("sleep 9",))
    fake.shells.clear()
    assert await host.look(session, directory=place) == Look("answered", "started"), "it ended without a report"


def ran(session: str, directory: str, shell: str = "sh_1") -> Json:
    return {"id": shell, "command": "sleep 9", "metadata": {"sessionID": session}, "directory": directory}


@pytest.mark.parametrize("is_last", [True, False])
async def test_what_a_session_left_running_is_ended(
    host: V2Host, fake: FakeReleased, tmp_path: Path, is_last: bool
) -> None:
    session = await phantom(host, fake, SENT, RUNS, answer("started"), idle())
    place, other = str(tmp_path), ran("ses_other", "/elsewhere", "sh_2")
    fake.shells = [ran(session, place), other]
    for where in (place, place, str(tmp_path / "gone")):
        await host.leave(session, directory=where, is_last=is_last)
        assert fake.shells == [other]
    assert fake.active == (set() if is_last else {session}), "what is forgotten reports nothing"


async def test_a_session_is_stopped_with_its_subagents(host: V2Host, fake: FakeReleased) -> None:
    session = await phantom(host, fake, SENT, launch("ses_child"), answer("started"), idle())
    host._state.sessions["ses_child"] = SessionState("ses_child", "s", "s", session, True, "e")
    for each in ("ses_child", "ses_other"):
        fake.add(each, PROJECT)
    fake.active = {"ses_child", "ses_other"}
    await host.abort(session, directory=PROJECT)
    stopped = [each.split("/")[3] for each in fake.requests if each.endswith("/interrupt")]
    assert stopped == ["ses_child", session], "the session last, because its subagent reports to it"


async def test_a_prompt_whose_turn_never_began_is_not_lost(host: V2Host, fake: FakeReleased) -> None:
    session = await create(host)
    await host.prompt(session, [Part("text", "key", is_prompt=True)], directory=PROJECT)
    assert await look(host, session) == Look("unanswered")


@pytest.mark.parametrize(
    ("first", "tail", "then", "state"),
    [
        (False, [BROKEN_OFF], True, "busy"),  # the service was about to continue it
        (False, [STEP], True, "busy"),
        (True, [REFUSED], False, "stopped"),  # it was about to end
        (False, [], True, "busy"),
    ],
)
async def test_a_session_that_begins_or_ends_while_it_is_looked_at(
    host: V2Host,
    fake: FakeReleased,
    monkeypatch: pytest.MonkeyPatch,
    first: bool,
    tail: list[dict[str, Any]],
    then: bool,
    state: str,
) -> None:
    session = await phantom(host, fake, SENT, *tail)
    fake.active = {session} if first else set()

    async def later(_: float) -> None:
        fake.active = {session} if then else set()

    monkeypatch.setattr(asyncio, "sleep", later)
    assert (await look(host, session)).state == state


@pytest.mark.parametrize(
    ("is_active", "tail", "sent"),
    [
        (True, [STEP], {"present": True}),
        (False, [SAID, idle()], {"present": True}),
        (False, [BROKEN_OFF, CONTINUED, SAID, idle()], {"present": True}),
        (False, [BROKEN_OFF, idle("interrupted")], {"present": True}),
        (False, [REFUSED], {"present": True}),
        (False, [STEP], {}),
        (False, [], {}),
    ],
)
async def test_an_interrupted_session_is_prompted_only_if_it_is_not_over_and_nobody_continues_it(
    host: V2Host, fake: FakeReleased, is_active: bool, tail: list[dict[str, Any]], sent: dict[str, Any]
) -> None:
    session = await phantom(host, fake, SENT, *tail)
    fake.active = {session} if is_active else set()
    assert await HostActs(Only(host), PLAIN, print).prompt({"session": session, **WAITS}, "key") == sent
    assert len(fake.inbox[session]) == (not sent)


async def test_a_refused_turn_is_closed_so_that_no_restart_continues_it(host: V2Host, fake: FakeReleased) -> None:
    session = await phantom(host, fake, SENT, REFUSED)
    for _ in range(2):
        await host.abort(session, directory=PROJECT)
        assert [each["type"] for each in fake.messages[session]] == ["user", "assistant", "idle"]
    assert await look(host, session) == Look("stopped")


# --- people ---
async def test_the_model_is_told_why_before_the_refusal_and_only_if_it_counts(host: V2Host, fake: FakeReleased) -> None:
    fake.permissions["per_1"] = {"id": "per_1"}
    assert await host.answer(USER, "per_1", "permission", ["reject", "use the other one"]) == "answered"
    assert fake.settled["per_1"] == {"decision": "reject", "message": "use the other one"}
    (told,) = fake.inbox[USER]
    assert (told["type"], told["delivery"], "use the other one" in told["text"]) == ("synthetic", "steer", True)
    sent = [each for each in fake.requests if each.startswith("POST")]
    assert [each.rpartition("/")[2] for each in sent] == ["synthetic", "reply"]
    fake.inbox[USER].clear()
    fake.list_permissions = lambda session, _: {"data": [{"id": "per_2"}]}  # type: ignore[method-assign]
    with pytest.raises(HostError):  # listed, and yet it cannot be answered
        await host.answer(USER, "per_2", "permission", ["reject", "why"])
    assert fake.inbox[USER] == [], "what nobody refused is not told"


# --- other versions, and no service ---
@pytest.mark.parametrize("page", [None, b"<!doctype html><title>OpenCode</title>"])
@pytest.mark.parametrize("unknown", ["GET .*/inbox", "GET .*/ses_ds2[0-9a-f]*", "(GET|POST) .*/session.*"])
async def test_a_request_that_a_version_does_not_know_is_an_error_that_names_it(
    host: V2Host, fake: FakeReleased, unknown: str, page: bytes | None
) -> None:
    session = await phantom(host, fake, SENT)
    fake.unknown, fake.page = unknown, page

    async def work() -> None:
        await look(host, session)
        await host.prompt(session, [Part("text", "other", is_prompt=True)], directory=PROJECT)

    if unknown == "GET .*/ses_ds2[0-9a-f]*" and page is None:
        assert await look(host, session) == Look("gone"), "which is what 404 says of a session"
        return
    with pytest.raises(HostError) as refused:
        await work()
    assert "/api/session" in str(refused.value)


async def test_without_a_service_the_work_waits_for_one(host: V2Host) -> None:
    away = V2Host(list, CaptureState(), lambda: 0)
    acts = HostActs(Only(away), PLAIN, print)
    for waits in (True, False):
        assert await acts.prompt({"session": "ses_ds2x", **WAITS, "waits": waits}, "key") == {"absent": True}
    with pytest.raises(HostAbsent):
        await away.look("ses_ds2x", directory=PROJECT)
