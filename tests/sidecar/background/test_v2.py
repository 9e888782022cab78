"""OpenCode 2 as a host: over HTTP, on a fake service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
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
from sidecar.record.opencode2.registration import place_of
from tests.sidecar.background.released2 import FakeReleased, registered
from tests.sidecar.background.support import PLAIN, Only
from tests.sidecar.background.test_v2_turn import (
    BROKEN_OFF,
    CONTINUED,
    REFUSED,
    RUNS,
    SAID,
    STEP,
    Json,
    answer,
    idle,
    launch,
    user,
)

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


async def test_the_service_hears_nothing_of_a_directory_that_is_about_to_go(
    host: V2Host, fake: FakeReleased, tmp_path: Path
) -> None:
    """It would load the directory again, and take one that goes meanwhile for one of no project."""
    session = await phantom(host, fake, SENT, RUNS, answer("started"), idle())
    place = str(tmp_path)

    async def shells_asked() -> int:
        before = fake.requests.count("GET /api/shell")
        await asyncio.gather(*(host.look(session, directory=place) for _ in range(2)))
        return fake.requests.count("GET /api/shell") - before

    assert await shells_asked()
    looks = [asyncio.create_task(host.look(session, directory=place)) for _ in range(4)]
    await host.leave(session, directory=place, is_last=True)
    await asyncio.gather(*looks)
    at = fake.requests.index("DELETE /api/debug/location")
    assert "GET /api/shell" not in fake.requests[at:]
    assert not await shells_asked()
    await host.forget(place)  # its copy stayed
    assert await shells_asked()


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
