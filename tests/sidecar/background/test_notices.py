"""Messages for sessions: sent once, again after a failure, and not at all if a call has told them."""

from __future__ import annotations

import pytest

from sidecar.background.intents.intent_effects import WAKE
from sidecar.background.intents.state import State
from tests.sidecar.background.world import World, later


def test_a_message_whose_attempts_failed_is_sent_again_later_and_later() -> None:
    world = World()
    world.register("a")
    world.settle()
    world.ends(world.intent("a"))
    pauses = []
    for _ in range(9):
        kind, node, _ = world.effects.pop()
        assert kind == WAKE and not world.effects
        world.happens("effect.failed", kind=kind, node=node, error="OpenCode answers with 500")
        assert world.happens("turn.ended", session="ses_other", outcome="completed") == []
        due = world.agent.deadline()
        assert due is not None
        pauses.append((due - world.clock.now_ms) // 60_000)
        world.clock.now_ms = due
        assert world.happens("tick", now=due) == ["notice.sending"]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    world.settle()
    assert world.agent.data.notices["ntc_a"].state == "observed" and world.agent.deadline() is None


def test_a_message_that_opencode_accepted_and_did_not_save_is_sent_again() -> None:
    world = World()
    world.register("a")
    world.settle()
    world.ends(world.intent("a"))
    world.keeps = False
    world.settle()
    parts = [{"metadata": {"durable_stream": {"key": world.agent.data.notices["ntc_a"].key}}}]
    world.happens("agent.input", session="ses_user", message="msg_1", parts=parts)
    assert world.messages == {} and world.agent.data.notices["ntc_a"].state == "sent"
    later(world, 61)
    assert len(world.messages["ses_user"]) == 1
    assert world.agent.data.notices["ntc_a"].state == "observed"


def told_by_a_call(world: World) -> None:
    """The parent waits for an intent in a tool call, which returns its result."""
    world.register("a")
    world.settle()
    world.ends(world.intent("a"))
    kind, node, _ = world.effects.pop()
    world.happens("notice.told", notice="ntc_a", session="ses_user", call="call_1")
    assert world.happens("effect.completed", kind=kind, node=node, result={"status": "busy"}) == []


@pytest.mark.parametrize(
    ("hook", "outcome", "wakes"),
    [
        ("event", "interrupted", 0),
        (None, "completed", 0),
        # OpenCode died between the hook and what it keeps.
        ("tool.execute.after", "interrupted", 1),
        (None, "interrupted", 1),
        (None, "aborted", 1),
    ],
)
def test_a_result_that_a_call_returned_wakes_nobody_if_opencode_kept_it(
    hook: str | None, outcome: str, wakes: int
) -> None:
    world = World()
    told_by_a_call(world)
    if hook is not None:
        step = {"session": "ses_user", "call": "call_1", "kind": "tool", "status": "completed"}
        world.happens("execution.step", metadata={"hook": hook}, **step)
    world.happens("turn.ended", session="ses_user", outcome="continued")
    world.happens("turn.ended", session="ses_user", outcome=outcome)
    world.settle()
    assert len(world.messages.get("ses_user", [])) == wakes
    assert world.agent.data.notices["ntc_a"].state == "observed"
    assert world.happens("notice.told", notice="ntc_a", session="ses_user", call="call_2") == []


def test_three_that_end_soon_after_one_another_are_told_in_one_message_once_the_last_has_ended() -> None:
    world = World()
    for name in "abc":
        world.register(name)
    world.settle()
    for name in "ab":
        assert world.ends(world.intent(name))[-2:] == ["notice.queued", "notice.gathering"] and not world.effects
        later(world, 1)
    assert world.ends(world.intent("c"))[-4:] == ["notice.queued", *(["notice.sending"] * 3)]
    world.settle()
    assert len(set(world.messages["ses_user"])) == 1 and world.agent.deadline() is None
    assert {notice.state for notice in world.agent.data.notices.values()} == {"observed"}


def test_a_result_waits_a_few_seconds_at_most_for_work_that_goes_on() -> None:
    world = World()
    for name in "abc":
        world.register(name)
    world.settle()
    world.ends(world.intent("a"))
    later(world, 2)
    world.ends(world.intent("b"))
    assert "ses_user" not in world.messages
    later(world, 1)
    assert len(set(world.messages["ses_user"])) == 1 and world.intent("c").state == "running"
    assert {notice.state for notice in world.agent.data.notices.values()} == {"observed"}


def test_one_message_at_a_time_is_on_its_way_to_a_session() -> None:
    world = World()

    def states() -> list[str]:
        return [notice.state for notice in world.agent.data.notices.values()]

    def works(name: str) -> None:
        """Work begins and ends, while messages wait to be sent."""
        intent = world.register(name)
        while others := [n for n, (kind, _, _) in enumerate(world.effects) if kind != WAKE]:
            world.act(others[0])
        world.ends(intent)

    works("a")
    works("b")
    assert states() == ["sending", "queued"], "the second waits while the first is being sent"
    world.keeps = False
    world.act([kind for kind, _, _ in world.effects].index(WAKE))
    works("c")
    assert states() == ["sent", "queued", "queued"], "and until the first is seen in the session"
    assert world.done[WAKE, "ses_user"] == 1 and WAKE not in [kind for kind, _, _ in world.effects]


def test_a_message_that_was_seen_stays_seen_when_what_sent_it_is_forgotten() -> None:
    """One message had the results of two sessions, and one of the sessions was forgotten."""
    state = State()
    state.fold("notice.queued", {"notice": "ntc_a", "session": "ses_user", "text": "done"})
    state.fold("notice.observed", {"notice": "ntc_a"})
    assert state.notices["ntc_a"].state == "observed"
