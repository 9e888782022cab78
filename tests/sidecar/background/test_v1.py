"""``V1Host`` over fake links: which process is asked, and with what ids. The contract is in ``tests/real``."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.opencode.capture.state import CaptureState, SessionState, Turn
from bridge.opencode.link.protocol import CallError
from sidecar.background.hosts.host import HostAbsent, HostError, Look, Part
from sidecar.background.hosts.v1 import V1Host
from sidecar.background.hosts.v1_ids import message_id, part_ids
from streams.identity import system_identity

SESSION = "ses_df06b6e8fffeS1kYb2Vh5Yc0Qm"
NOBODY = 2**22 + 1
"""No process has this id."""


class FakeLink:
    """A link to an OpenCode with one session; ``late``: it takes prompts, and keeps none yet."""

    def __init__(self, boot: str, pid: int, directory: str = "/project", *, late: bool = False) -> None:
        self.boot_id, self.pid, self.directory, self.late = boot, pid, directory, late
        self.instance, self.is_open, self.identity = boot, True, SimpleNamespace(service=None, headless="")
        self.project, self.worktree = "id", directory
        self.history: list[dict[str, Any]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []

    async def call(self, method: str, args: dict[str, Any], timeout: float = 0.0) -> Any:
        self.calls.append((method, args))
        if method == "session.messages":
            return [*self.history]
        if method == "session.create":
            return {"id": "ses_new"}
        if method == "session.promptAsync" and not self.late:
            self.keep(args["body"])
        return {}

    def keep(self, body: dict[str, Any], parts: int = 9) -> None:
        """Keep a prompt with the first of its parts."""
        self.history.append({"info": {"id": body["messageID"], "role": "user"}, "parts": body["parts"][:parts]})

    @property
    def prompts(self) -> list[dict[str, Any]]:
        return [args["body"] for method, args in self.calls if method == "session.promptAsync"]

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.calls]


def host(
    *links: FakeLink, pid: int | None = NOBODY, phantom: bool = False, headless: FakeHeadless | None = None
) -> V1Host:
    """A host that knows one session, whose last turn ran in boot ``hosting`` of process ``pid``."""
    now = system_identity().now_ms()
    turn = Turn("msg_1", "msg_2", "evt_1", now, "hosting", "build", None, pid=pid)
    known = SessionState(SESSION, SESSION, SESSION, None, True, "evt_0", directory="/project", last_turn=turn)
    state = CaptureState()
    state.sessions[SESSION] = known
    own = headless or FakeHeadless(links[0] if links else None)
    return V1Host(lambda: links, lambda _: True, state, own, lambda _: phantom, lambda: now)  # type: ignore[arg-type,return-value]


async def say(host: V1Host, *keys: str) -> bool:
    return await host.prompt(SESSION, [Part(f"text {key}", key) for key in keys], directory="/project")


@pytest.mark.parametrize("parent", [SESSION, "ses_unknown", None])
async def test_a_new_session_falls_back_to_the_model_of_its_parent(parent: str | None) -> None:
    link = FakeLink("hosting", NOBODY)
    one = host(link)
    turn = one._state.sessions[SESSION].last_turn
    assert turn is not None
    turn.model = {"provider": "mock", "model": "vendor/three"}
    await one.create("int_1", title="t", directory="/project", parent=parent)
    (body,) = (args["body"] for method, args in link.calls if method == "session.create")
    wanted = {"providerID": "mock", "id": "vendor/three"} if parent == SESSION else None
    assert (body.get("parentID"), body.get("model")) == (parent, wanted)


async def test_a_prompt_that_is_not_kept_yet_is_sent_again_with_the_same_ids() -> None:
    link = FakeLink("hosting", NOBODY, late=True)
    one = host(link)
    assert await say(one, "a", "b") and await say(one, "a", "b")
    first, second = link.prompts
    assert first == second and len({part["id"] for part in first["parts"]}) == 2
    link.keep(first)
    assert not await say(one, "a", "b")


async def test_a_prompt_that_is_half_kept_gets_what_it_lacks() -> None:
    link = FakeLink("hosting", NOBODY, late=True)
    one = host(link)
    await say(one, "a", "b")
    for parts in (0, 1):
        link.history.clear()
        link.keep(link.prompts[0], parts)
        assert await say(one, "a", "b")
        again = link.prompts[-1]
        assert again["messageID"] == link.prompts[0]["messageID"]
        assert again["parts"] == link.prompts[0]["parts"][parts:]


async def test_a_part_that_came_with_an_earlier_message_is_left_out() -> None:
    link = FakeLink("hosting", NOBODY)
    one = host(link)
    assert await say(one, "a") and await say(one, "a", "b")
    first, second = link.prompts
    assert [part["metadata"]["durable_stream"]["key"] for part in second["parts"]] == ["b"]
    assert second["messageID"] > first["messageID"]


def alive() -> int:
    """A process that runs."""
    return os.getpid()


async def test_while_the_process_that_hosts_a_session_reconnects_no_other_one_is_asked() -> None:
    other: Any = FakeLink("other", NOBODY)
    one = host(other, pid=alive())
    assert await one.status(SESSION) == "absent" and one.waiting_for(other, [SESSION]) == []
    with pytest.raises(HostError, match="not connected"):
        await say(one, "a")
    back: Any = FakeLink("hosting", alive())
    assert host(other, back, pid=alive()).waiting_for(back, ["ses_other", SESSION]) == [SESSION]


async def test_a_toast_is_shown_where_a_person_looks_and_never_in_a_headless_opencode() -> None:
    own, user = FakeLink("hosting", alive()), FakeLink("user", NOBODY)
    own.identity.headless = "id"
    assert not await host(own, phantom=True).toast(SESSION, "title", "text")
    assert await host(own, user, phantom=True).toast(SESSION, "title", "text")
    assert (own.methods, user.methods) == ([], ["tui.showToast"])


async def test_background_work_whose_process_reconnects_is_not_taken_for_stopped() -> None:
    one = host(pid=alive(), phantom=True)
    with pytest.raises(HostError, match="not connected"):
        await one.abort(SESSION, directory="/project")
    with pytest.raises(HostError, match="not connected"):
        await one.status(SESSION)


async def test_to_stop_work_of_the_headless_opencode_its_link_is_waited_for() -> None:
    back = FakeLink("hosting", alive())
    one = host(pid=alive(), phantom=True, headless=FakeHeadless(back, runs=True))
    await one.abort(SESSION, directory="/project")
    assert back.methods == ["session.abort"]


class FakeHeadless:
    """A headless OpenCode that links when it is asked for."""

    def __init__(self, back: FakeLink | None, *, runs: bool = False) -> None:
        self.back, self.is_running = back, runs

    async def link(self, directory: str, environment: str) -> FakeLink | None:
        return self.back

    async def runs(self, identity: str) -> bool:
        return self.is_running


async def test_a_fork_is_made_in_the_project_by_an_opencode_of_the_user() -> None:
    near, elsewhere, own = FakeLink("near", NOBODY), FakeLink("x", NOBODY, "/other"), FakeLink("hosting", alive())
    own.identity.headless = "id"
    for links, wanted in (((near, elsewhere), near), ((own, near, elsewhere), near), ((elsewhere, own), None)):
        one = host(*links)
        for link in links:
            link.calls.clear()
        if wanted is None:
            with pytest.raises(HostAbsent):
                await one.message_ids(SESSION, directory="/project")
        else:
            await one.message_ids(SESSION, directory="/project")
            assert [link for link in links if link.calls] == [wanted]


async def test_of_a_closed_session_the_opencode_that_does_the_work_says_what_it_may_do() -> None:
    class Knows(FakeLink):
        async def call(self, method: str, args: dict[str, Any], timeout: float = 0.0) -> Any:
            rules = [{"permission": "bash", "pattern": "*", "action": "deny"}]
            return [{"name": "build", "permission": rules}] if method == "app.agents" else {"agent": "build"}

    one = host(headless=FakeHeadless(Knows("headless", alive())))
    with pytest.raises(HostAbsent):
        await one.rights(SESSION, None)
    assert (await one.rights(SESSION, None, work="int_1")).effect("bash", "ls") == "deny"


STOPPED = {"finish": "stop", "time": {"completed": 2}}
ABORT = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}


@pytest.mark.parametrize(
    ("about", "found"),
    [
        (STOPPED, Look("answered", "for")),
        (STOPPED | {"finish": "length"}, Look("answered", "for")),
        (STOPPED | {"error": ABORT}, Look("aborted")),
        ({"time": {"completed": 2}, "error": ABORT}, Look("aborted")),
        (STOPPED | {"error": {"name": "APIError", "data": {"message": "no"}}}, Look("failed", "no")),
        ({"finish": "stop", "time": {"created": 1}}, Look("unanswered")),
        ({"time": {"completed": 2}}, Look("unanswered")),
        (STOPPED | {"finish": "tool-calls"}, Look("unanswered")),
        (STOPPED | {"finish": "unknown"}, Look("unanswered")),
    ],
)
async def test_an_answer_counts_only_if_it_is_complete_and_without_an_error(about: dict[str, Any], found: Look) -> None:
    link = FakeLink("hosting", NOBODY)
    link.keep({"messageID": "msg_1", "parts": [{"type": "text", "text": "do it"}]})
    link.history.append({"info": {"role": "assistant", **about}, "parts": [{"type": "text", "text": "for"}]})
    assert await host(link).look(SESSION, directory="/project") == found


async def test_a_plugin_that_is_older_than_the_sidecar_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(method: str, args: dict[str, Any], timeout: float = 0.0) -> Any:
        raise CallError("unknown_method", f"this shim has no method {method}")

    link = FakeLink("hosting", NOBODY)
    monkeypatch.setattr(link, "call", refuse)
    with pytest.raises(HostError, match="restart that OpenCode"):
        await host(link).message_ids(SESSION, directory="/project")


FIRST, ANSWER = "msg_20f949171002bBkbi5YrqqaBg7", "msg_20f9495e1001Z7fFDeRNTkXvlC"


def test_a_message_sorts_after_every_other_one_and_before_what_opencode_makes_next() -> None:
    made = message_id(SESSION, [FIRST, ANSWER], "key")
    assert made is not None and len(made) == len(ANSWER)
    assert ANSWER < made < "msg_20f94aa38001vR1fOHUZIqNQ91"


def test_the_first_message_of_a_session_follows_the_sessions_creation() -> None:
    made = message_id(SESSION, [], "key")
    assert made is not None and made.startswith("msg_20f949170002")


def test_the_same_key_has_the_same_id_also_when_its_message_is_there() -> None:
    made = message_id(SESSION, [FIRST], "key")
    assert made is not None and made == message_id(SESSION, [FIRST], "key")
    assert message_id(SESSION, [FIRST, made, ANSWER], "key") == made
    assert message_id(SESSION, [FIRST], "other") != made


def test_the_time_in_an_id_begins_again_at_its_end() -> None:
    assert (message_id(SESSION, ["msg_ffffffffffffZ7fFDeRNTkXvlC"], "key") or "")[:16] == "msg_000000000000"
    assert part_ids("msg_ffffffffffffZ7fFDeRNTkXvlC", ["a", "b"])[1][:16] == "prt_000000000000"


def test_foreign_ids_are_left_to_opencode() -> None:
    assert message_id("session", [], "key") is None
    assert message_id(SESSION, ["imported"], "key") is None


async def test_the_opencode_that_worked_in_a_directory_that_is_gone_removes_its_snapshots_and_forgets_it() -> None:
    gone, other, beside = FakeLink("one", 7, "/gone"), FakeLink("other", NOBODY, "/gone"), FakeLink("one", 7, "/copy")
    gone.identity.headless = beside.identity.headless = "id"
    await host(gone, other, beside).forget("/gone")
    assert (gone.calls, other.calls) == ([("snapshots.remove", {"project": "id", "directory": "/gone"})], [])
    # Not over its own link, which closes. The last directory of a process stays open.
    assert beside.calls == [("instance.dispose", {"query": {"directory": "/gone"}})]
    gone.is_open = False
    await host(gone, other, beside).forget("/copy")
    assert [each.methods for each in (gone, other)] == [["snapshots.remove"], []], "a person's own is left alone"
    assert "instance.dispose" not in beside.methods[1:]
