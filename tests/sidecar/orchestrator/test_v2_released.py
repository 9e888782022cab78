"""``V2Host`` on the routes of the released versions, over HTTP. The service is a fake; see ``released2.py``.

The real preview, which has other names for some of them, runs the whole contract in ``tests/real/test_host2.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.capture.state import CaptureState, SessionState, Turn
from sidecar.opencode2.registration import place_of
from sidecar.orchestrator import v2
from sidecar.orchestrator.effects import Prompt
from sidecar.orchestrator.host import HostAbsent, HostError, Part
from sidecar.orchestrator.v2 import V2Host, session_id
from sidecar.orchestrator.v2_routes import PENDING, Answered
from sidecar.runtime.effects.policy import Effect
from tests.sidecar.orchestrator.released2 import FakeReleased, registered

USER, PROJECT = "ses_user", "/project"


@pytest.fixture
def fake() -> FakeReleased:
    return FakeReleased()


@pytest.fixture
def host(fake: FakeReleased, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[V2Host]:
    monkeypatch.setattr(v2, "SETTLE_SECONDS", 0.0)
    state, path = CaptureState(), tmp_path / "service.json"
    state.sessions[USER] = SessionState(USER, "s", "s", None, True, "e", directory=PROJECT, host=place_of(path))
    fake.add(USER, PROJECT)
    with registered(fake, path):
        yield V2Host(lambda: [path], state, lambda: 0)


async def create(host: V2Host, directory: str = PROJECT, parent: str | None = USER) -> str:
    return await host.create("int_1", title="count", directory=directory, parent=parent, pid=None)


async def test_a_session_is_created_with_all_that_is_said_of_it(host: V2Host, fake: FakeReleased) -> None:
    session = await create(host)
    assert session == await create(host) == session_id("int_1")
    made = fake.sessions[session]
    assert (made["title"], made["parentID"]) == ("count", USER)
    assert made["metadata"] == {"durable_stream": {"intent": "int_1"}}
    assert fake.requests == ["POST /api/session"] * 2, "it has its title"
    assert await host.find("int_1", directory=PROJECT, parent=USER, pid=None) == session


async def test_a_session_with_a_worktree_is_no_child_which_would_work_where_its_parent_does(
    host: V2Host, fake: FakeReleased
) -> None:
    made = fake.sessions[await create(host, "/worktree")]
    assert (made["parentID"], made["location"]) == (None, {"directory": "/worktree"})


async def test_a_title_that_is_dropped_is_set_afterwards(host: V2Host, fake: FakeReleased) -> None:
    fake.drops_titles = True
    assert fake.sessions[await create(host)]["title"] == "count"


async def test_a_note_that_waits_goes_with_the_next_message(host: V2Host, fake: FakeReleased) -> None:
    for key, reply in (("note", False), ("wake", True)):
        assert await host.prompt(USER, [Part("text", key)], directory=PROJECT, reply=reply)
        assert await host.holds(USER, key, directory=PROJECT)
        assert not await host.prompt(USER, [Part("text", key)], directory=PROJECT, reply=reply)
    assert [(each["delivery"], each["resume"]) for each in fake.inbox[USER]] == [("steer", False), ("steer", True)]
    assert "/pending" not in "".join(fake.requests)
    assert not await host.holds("ses_gone", "note", directory=PROJECT)


@pytest.mark.parametrize("given", [["once"], ["reject", "use the other one"]])
async def test_a_permission_takes_one_answer(host: V2Host, fake: FakeReleased, given: list[str]) -> None:
    fake.permissions["per_1"] = {"id": "per_1"}
    assert await host.answer(USER, "per_1", "permission", given) == "answered"
    assert fake.settled["per_1"] == {"decision": given[0], "message": dict(enumerate(given)).get(1)}
    assert await host.answer(USER, "per_1", "permission", ["once"]) == "gone"


@pytest.mark.parametrize(("given", "settled"), [(["Blue"], {"k": "b"}), (["reject"], None)])
async def test_a_form_takes_one_answer(host: V2Host, fake: FakeReleased, given: list[str], settled: Any) -> None:
    field = {"key": "k", "type": "string", "options": [{"value": "b", "label": "Blue"}]}
    form = fake.forms["frm_1"] = {"id": "frm_1", "fields": [field]}
    assert await host.answer(USER, "frm_1", "question", given) == "answered"
    assert fake.settled == {"frm_1": settled}
    assert await host.answer(USER, "frm_1", "question", given) == "gone"
    fake.forms["frm_1"] = form  # somebody answered it after it was listed
    assert await host.answer(USER, "frm_1", "question", given) == "gone"


async def test_an_ask_that_vanishes_is_an_error_once_every_name_was_tried(host: V2Host, fake: FakeReleased) -> None:
    fake.forms["frm_1"] = {"id": "frm_2"}
    with pytest.raises(HostError) as refused:
        await host.answer(USER, "frm_2", "question", ["reject"])
    assert refused.value.permanent


@pytest.mark.parametrize(
    ("is_active", "last", "sent"),
    [
        (True, {"type": "assistant"}, {"held": True}),
        (False, {"type": "assistant", "finish": "stop"}, {"held": True}),
        (False, {"type": "assistant", "finish": "error", "error": {"type": "aborted"}}, {}),
        (False, {"type": "user"}, {}),
    ],
)
async def test_an_interrupted_session_is_prompted_only_if_its_service_does_not_continue_it(
    host: V2Host, fake: FakeReleased, is_active: bool, last: dict[str, Any], sent: dict[str, Any]
) -> None:
    session = await create(host)
    fake.messages[session] = [{"id": "msg_1", **last}]
    fake.active = {session} if is_active else set()
    args = {"session": session, "directory": PROJECT, "text": "continue", "waits": True}
    assert await Prompt(host).run(Effect(kind="opencode.prompt", args=args, run="int_1"), "key") == sent
    assert len(fake.inbox[session]) == (not sent)


@pytest.mark.parametrize(("is_told", "state"), [(False, "busy"), (True, "unanswered")])
async def test_what_interrupted_a_session_is_said_by_the_log_before_it_is_prompted_again(
    host: V2Host, fake: FakeReleased, is_told: bool, state: str
) -> None:
    fake.messages[USER] = [{"id": "msg_1", "type": "assistant", "finish": "error", "error": {"type": "aborted"}}]
    turn = Turn("msg_0", "msg_1", "e", 0, "boot", "build", None)
    host._state.sessions[USER].turn = None if is_told else turn
    assert (await host.look(USER, directory=PROJECT)).state == state


async def test_without_a_service_the_work_waits_for_one(host: V2Host) -> None:
    away = V2Host(list, CaptureState(), lambda: 0)
    args = {"session": "ses_ds2x", "directory": PROJECT, "text": "continue", "waits": True}
    effect = Effect(kind="opencode.prompt", args=args, run="int_1")
    assert await Prompt(away).run(effect, "key") == {"absent": True}
    with pytest.raises(HostAbsent):
        await away.look("ses_ds2x", directory=PROJECT)


def test_the_name_that_a_service_answers_is_remembered_for_that_service() -> None:
    answered = Answered()
    assert answered.of("one", PENDING) == PENDING
    answered.note("one", PENDING, PENDING[1])
    assert answered.of("one", PENDING) == PENDING[1:]
    assert answered.of("two", PENDING) == PENDING
