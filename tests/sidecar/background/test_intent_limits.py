"""Background work under watches and budgets, and the messages for sessions about it, which are sent once."""

from __future__ import annotations

import pytest

from sidecar.background.intents import state as intent_state
from sidecar.background.intents.budgets import MAX_DEPTH
from sidecar.background.intents.intent_effects import ABORT, CHECK, CREATE
from sidecar.background.intents.lifecycle import ENDED
from sidecar.background.messages.deliver import WAKE
from sidecar.background.messages.message import State
from tests.sidecar.background.world import World, later
from tests.streams.builders import event


def test_a_silent_one_is_stopped() -> None:
    world = World(silence_minutes=1)
    world.register("a")
    world.settle()
    for quiet, ended in ((59_999, []), (60_000, ["intent.failed", "message.queued", "message.sending"])):
        result = {"state": "busy", "quiet_ms": quiet, "resumes": 0}
        assert world.happens("effect.completed", kind=CHECK, node="int_a", result=result) == ended
    assert world.intent("a").code == "silence" and world.effects[0][0] == ABORT


def test_time_counts_only_while_a_sidecar_runs_and_the_machine_is_awake() -> None:
    world = World()
    world.register("a", wall_ms=600_000)
    world.settle()
    later(world, 300)
    world.clock.now_ms += 8 * 3_600_000  # the machine was off
    world.happens("sidecar.started")
    world.settle()
    world.happens("tick", now=world.clock.now_ms)
    world.clock.now_ms += 8 * 3_600_000  # the machine slept, and the sidecar with it
    world.happens("tick", now=world.clock.now_ms)
    world.settle()
    later(world, 120)
    assert world.intent("a").state == "running"
    later(world, 240)
    assert (world.intent("a").state, world.intent("a").code) == ("failed", "timeout")


def test_the_time_of_work_that_waits_for_a_person_stands_still() -> None:
    world = World(silence_minutes=1)
    for name, above in (("top", "ses_user"), ("low", "ses_int_top"), ("other", "ses_user")):
        world.register(name, parent=above, wall_ms=600_000)
        world.settle()
    world.happens("message.queued", message="chk_1", intent="int_low", kind="permission")
    world.happens("message.queued", message="chk_2", intent=None, kind="permission")
    later(world, 7_200)
    assert [world.intent(name).state for name in ("top", "low", "other")] == ["running", "running", "failed"]
    silent = {"state": "busy", "quiet_ms": 60_000, "resumes": 0}
    assert world.happens("effect.completed", kind=CHECK, node="int_low", result=silent) == []
    assert world.happens("message.answered", message="chk_1") == ["intent.continued"]
    assert world.happens("message.answered", message="chk_2") == []
    later(world, 590)
    assert world.intent("top").state == "running" == world.intent("low").state
    later(world, 10)
    assert world.intent("top").code == "timeout" and world.intent("low").state in ENDED


def test_the_time_of_work_counts_while_no_call_waits_for_its_ask() -> None:
    world = World()
    world.register("a", wall_ms=600_000)
    world.settle()
    world.happens("message.queued", message="chk_1", intent="int_a", kind="ask")
    for _ in range(2):  # the call was sent again, to the next sidecar
        world.happens("message.waiting", message="chk_1", intent="int_a")
    later(world, 7_200)
    assert world.happens("message.left", message="chk_1") == ["intent.continued"]
    assert world.happens("message.answered", message="chk_1") == []
    later(world, 590)
    assert (world.intent("a").state, world.intent("a").asks) == ("running", [])
    later(world, 10)
    assert world.intent("a").code == "timeout"


def test_a_prompt_that_opencode_refuses_fails_or_goes_to_the_next_model() -> None:
    world = World()
    world.register("a", models=["foo/bar"])
    world.register("b", models=["foo/bar", "mock/one"])
    world.settle()
    for name in "ab":
        for reason in ("Model not found: foo/bar.", "UnknownError: Model not found\n    at <anonymous>"):
            world.happens("agent.error", session=f"ses_int_{name}", name="UnknownError", reason=reason)
    world.settle()
    a, b = world.intent("a"), world.intent("b")
    assert (a.state, a.code, a.reason) == ("failed", "error", "Model not found: foo/bar.")
    assert (b.state, b.models) == ("running", ["mock/one"])
    world.happens("agent.error", session="ses_int_b", turn="msg_1", reason="the turn says how it ended")
    assert world.intent("b").state == "running"


def test_an_endless_loop_is_stopped() -> None:
    world = World(max_steps=3)
    world.register("a")
    world.settle()
    world.happens("lifecycle.session.created", session="ses_child", parent="ses_int_a")
    for _ in range(4):
        world.spends("ses_child", 1)
    for _ in range(3):
        assert world.spends("ses_int_a", 0) == ["intent.spent"], "also if the provider reports no tokens"
    assert "intent.failed" in world.spends("ses_int_a", 0)
    assert world.intent("a").code == "endless-loop"


def test_a_model_has_its_own_limit_and_others_overtake_it() -> None:
    world = World(max_running=4, per_model={"slow": 1, "fast/one": 2})
    for name, model in (("a", "slow/x"), ("b", "slow/y"), ("c", "fast/one"), ("d", "fast/one"), ("e", "fast/one")):
        world.register(name, models=[model])
    world.settle()
    assert [i.id for i in world.agent.data.intents.values() if i.state == "running"] == ["int_a", "int_c", "int_d"]
    world.ends(world.intent("a"))
    world.settle()
    assert world.intent("b").state == "running" and world.intent("e").state == "queued"


@pytest.mark.parametrize(
    ("limits", "code"), [({"max_running": 99}, "recursion_depth_exceeded"), ({"max_sessions": 3}, "budget-sessions")]
)
def test_a_runaway_spawner_meets_its_budget(limits: dict[str, int], code: str) -> None:
    world = World(**limits)
    parent, refused = "ses_user", None
    for n in range(MAX_DEPTH + 2):
        intent = world.register(f"chain{n}", parent=parent)
        world.settle()
        if intent.state == "refused":
            refused = intent
            break
        parent = f"ses_{intent.id}"
    assert refused is not None and refused.code == code and refused.ended
    assert (CREATE, refused.id) not in world.done and "intent.refused" in world.types


def test_a_spent_budget_ends_what_runs_and_refuses_more() -> None:
    world = World(max_tokens=1000, max_running=2)
    for name in "abcd":
        world.register(name)
    world.settle()
    assert "budget.warning" not in world.types
    world.spends("ses_int_a", 850, finish="stop")
    world.ends(world.intent("a"))
    assert world.types.count("budget.warning") == 1
    world.settle()
    assert world.spends("ses_int_b", 160, finish="stop") == ["intent.spent"], "its turn is over: let it end"
    world.ends(world.intent("b"))
    world.settle()
    assert [world.intent(name).state for name in "abcd"] == ["completed", "completed", "failed", "failed"]
    assert {world.intent(name).code for name in "cd"} == {"budget"}
    assert world.register("late").code == "budget"
    assert world.register("other", parent="ses_other").state == "starting"


@pytest.mark.parametrize("total", [{"total": 100}, {}], ids=["opencode 1", "opencode 2"])
def test_tokens_are_counted_once_and_as_everywhere(total: dict[str, int]) -> None:
    world = World()
    world.register("a")
    world.settle()
    tokens = {"input": 10, "output": 5, "reasoning": 15, "cache": {"read": 60, "write": 10}, **total}
    world.happens("execution.step", session="ses_int_a", kind="inference", finish="tool-calls", tokens=tokens, cost=0.0)
    assert world.intent("a").tokens == 100


def test_one_intent_has_a_budget_of_its_own() -> None:
    world = World()
    for name, most in (("a", {"max_tokens": 100}), ("b", {"max_cost": 0.5}), ("c", {})):
        world.register(name, **most)
        world.settle()
        world.spends(f"ses_int_{name}", 99, cost=0.4)
    world.register("child", parent="ses_int_a")
    world.settle()
    assert world.states() == {"running": 4}
    for name in "abc":
        world.spends(f"ses_int_{name}", 1, cost=0.2)
    world.settle()
    states = {name: (world.intent(name).state, world.intent(name).code) for name in ("a", "b", "c", "child")}
    ended, cancelled = ("failed", "budget"), ("cancelled", "cancelled")
    assert states == {"a": ended, "b": ended, "c": ("running", ""), "child": cancelled}


def test_what_a_root_has_spent_counts_until_its_session_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = 20
    monkeypatch.setattr(intent_state, "KEPT_ENDED", kept)
    world = World(max_tokens=100)
    world.register("a")
    world.settle()
    world.spends("ses_int_a", 100, finish="stop")
    world.ends(world.intent("a"))
    world.settle()
    for n in range(kept + 1):
        world.register(f"{n}", parent=f"ses_other{n % 2}")
        world.settle()
        world.happens("intent.cancel", intent=f"int_{n}")
        world.settle()
    assert "int_a" not in world.agent.data.intents and world.register("late").code == "budget"
    assert world.happens("lifecycle.session.ended", session="ses_user") == ["budget.closed"]
    for n in range(kept + 1):
        world.register(f"more{n}", parent=None)
        world.happens("intent.cancel", intent=f"int_more{n}")
        world.settle()
    assert "ses_user" not in world.agent.data.spent and len(world.agent.data.spent) <= kept + 3


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
        due = world.deadline()
        assert due is not None
        pauses.append((due - world.clock.now_ms) // 60_000)
        world.clock.now_ms = due
        assert world.happens("tick", now=due) == ["message.sending"]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    world.settle()
    assert world.notice("a").state == "seen" and world.deadline() is None


def test_a_message_that_opencode_accepted_and_did_not_save_is_sent_again() -> None:
    world = World()
    world.register("a")
    world.settle()
    world.ends(world.intent("a"))
    world.keeps = False
    world.settle()
    parts = [{"metadata": {"durable_stream": {"key": world.notice("a").key}}}]
    world.happens("agent.input", session="ses_user", message="msg_1", parts=parts)
    assert world.messages == {} and world.notice("a").state == "sent"
    later(world, 61)
    assert len(world.messages["ses_user"]) == 1
    assert world.notice("a").state == "seen"


def told_by_a_call(world: World) -> None:
    """The parent waits for an intent in a tool call, which returns its result."""
    world.register("a")
    world.settle()
    world.ends(world.intent("a"))
    kind, node, _ = world.effects.pop()
    world.happens("message.return", message="ntc_a", session="ses_user", call="call_1")
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
    assert world.notice("a").state == "seen"
    assert world.happens("message.return", message="ntc_a", session="ses_user", call="call_2") == []


def test_three_that_end_soon_after_one_another_are_told_in_one_message_once_the_last_has_ended() -> None:
    world = World()
    for name in "abc":
        world.register(name)
    world.settle()
    for name in "ab":
        assert world.ends(world.intent(name))[-2:] == ["message.queued", "message.postponed"] and not world.effects
        later(world, 1)
    assert world.ends(world.intent("c"))[-4:] == ["message.queued", *(["message.sending"] * 3)]
    world.settle()
    assert len(set(world.messages["ses_user"])) == 1 and world.deadline() is None
    assert set(world.heard()) == {"seen"}


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
    assert set(world.heard()) == {"seen"}


def test_one_message_at_a_time_is_on_its_way_to_a_session() -> None:
    world = World()

    def states() -> list[str]:
        return world.heard()

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
    queued = {"message": "ntc_a", "kind": "result", "to": "ses_user", "text": "done"}
    for type_, payload in (("message.queued", queued), ("message.seen", {"message": "ntc_a"})):
        state.fold(event("a", stream="agent/messages", type_=type_, payload=payload))
    assert state.messages["ntc_a"].state == "seen"
