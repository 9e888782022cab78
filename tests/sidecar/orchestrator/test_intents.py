"""The agent ``intents`` against a host of a few lines: limits, trees, batches, and random histories."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.orchestrator.intent_state import KEPT_ENDED, Intent, Limits
from sidecar.orchestrator.intents import (
    ABORT,
    CHECK,
    COLLECT,
    CONTINUE,
    CREATE,
    ISOLATE,
    MAX_STOPS,
    PROMPT,
    IntentAgent,
)
from sidecar.orchestrator.lifecycle import ACTIVE, ENDED
from sidecar.orchestrator.notices import WAKE
from streams.event import StreamEvent
from tests.sidecar.runtime.kinds import Clock


class World:
    """The agent, and an OpenCode that does what it is asked when the test says so."""

    def __init__(self, **limits: Any) -> None:
        self.agent, self.clock = IntentAgent(Limits(**limits)), Clock()
        self.effects: list[tuple[str, str, dict[str, Any]]] = []
        self.done = Counter[tuple[str, str]]()
        self.types: list[str] = []
        self.messages: dict[str, list[str]] = {}
        self.worktrees: set[str] = set()
        self._count = 0

    def happens(self, type_: str, metadata: dict[str, Any] | None = None, **payload: Any) -> list[str]:
        """One input; the types of what the agent recorded."""
        self._count += 1
        event: StreamEvent = self.clock.identity(self._count).stamp(
            {
                "type": type_,
                "stream_id": "ses_1",
                "idempotency_key": f"test:{self._count}",
                "actor": "test",
                "source": {"agent": "test", "adapter": "test"},
                "payload": payload,
                "metadata": metadata or {},
            }
        )
        outputs = self.agent.receive(event)
        assert outputs == self.agent.receive(event)
        for output in outputs:
            if output.effect:
                self.effects.append((output.effect, output.node, dict(output.payload)))
            else:
                self.agent.data.fold(output.type, output.payload)
        self.agent.load(self.agent.state())
        found = [output.type for output in outputs if not output.effect]
        self.types += found
        return found

    def register(self, name: str, parent: str | None = "ses_user", **more: Any) -> Intent:
        given = {"intent": f"int_{name}", "prompt": "do it", "title": name, "directory": "/p", "parent": parent}
        self.happens("intent.register", **given, above=[parent] if parent else [], **more)
        return self.agent.data.intents[f"int_{name}"]

    def act(self, which: int = 0) -> None:
        """Let the host do one of the effects that wait."""
        kind, node, args = self.effects.pop(which)
        self.done[kind, node] += 1
        result: dict[str, Any] = {}
        if kind == CREATE:
            result = {"session": f"ses_{node}"}
        if kind == ISOLATE:
            result = {"directory": "/w/sub", "root": "/w", "base": "b", "repository": "/r"}
            self.worktrees.add(node)
        if kind == COLLECT:
            self.worktrees.discard(node)
            result = {"ref": f"refs/durable-stream/{node}", "files": [], "count": 0, "diff": "+one"}
        if kind == WAKE:
            result = {"status": "sent"}
            self.messages.setdefault(node, []).extend(each["key"] for each in args["texts"])
        self.happens("effect.completed", kind=kind, node=node, result=result)

    def settle(self) -> None:
        while self.effects or self.agent.deadline() == 0:
            if self.effects:
                self.act()
            else:
                self.happens("tick", now=self.clock.now_ms)

    def ends(self, intent: Intent, outcome: str = "completed", **more: Any) -> list[str]:
        return self.happens("turn.ended", session=f"ses_{intent.id}", outcome=outcome, **more)

    def spends(self, session: str, input_: int, *, finish: str = "tool-calls", cost: float = 0.0) -> list[str]:
        tokens = {"input": input_, "output": 0}
        return self.happens(
            "execution.step", session=session, kind="inference", finish=finish, tokens=tokens, cost=cost
        )

    def sees(self, session: str) -> None:
        """The session's history shows every message that it got."""
        parts = [{"metadata": {"durable_stream": {"key": key}}} for key in self.messages.get(session, [])]
        self.happens("agent.input", session=session, parts=parts)

    def states(self) -> Counter[str]:
        return Counter(intent.state for intent in self.agent.data.intents.values())

    def intent(self, name: str) -> Intent:
        return self.agent.data.intents[f"int_{name}"]


def test_a_hundred_wait_for_four_places_and_run_in_their_order() -> None:
    world = World(running=4, children=0)
    for n in range(100):
        world.register(f"{n:03}")
    world.settle()
    ran: list[str] = []
    while running := [i for i in world.agent.data.intents.values() if i.state == "running"]:
        assert sum(i.state in ACTIVE for i in world.agent.data.intents.values()) <= 4
        ran.append(running[0].id)
        world.ends(running[0])
        world.settle()
        world.sees("ses_user")
        world.settle()
    assert ran == sorted(ran) and len(ran) == 100
    assert world.states() == {"completed": 100}
    assert all(count == 1 for (kind, _), count in world.done.items() if kind in (CREATE, PROMPT))
    assert {notice.state for notice in world.agent.data.notices.values()} == {"observed"}


def test_a_model_has_its_own_limit_and_others_overtake_it() -> None:
    world = World(running=4, per_model={"slow": 1, "fast/one": 2})
    for name, model in (("a", "slow/x"), ("b", "slow/y"), ("c", "fast/one"), ("d", "fast/one"), ("e", "fast/one")):
        world.register(name, models=[model])
    world.settle()
    assert [i.id for i in world.agent.data.intents.values() if i.state == "running"] == ["int_a", "int_c", "int_d"]
    world.ends(world.intent("a"))
    world.settle()
    assert world.intent("b").state == "running" and world.intent("e").state == "queued"


def test_work_without_a_given_model_counts_for_the_one_that_answers_it() -> None:
    world = World(running=4, per_model={"slow": 1})
    world.register("a", agent="thinker")
    world.settle()
    captured = {"session": "ses_int_a", "model": {"provider": "slow", "model": "x"}}
    assert world.happens("agent.input", **captured) == ["intent.model"]
    assert world.happens("agent.input", **captured) == []
    assert world.happens("agent.input", session="ses_user", model={"provider": "slow", "model": "x"}) == []
    for name, model in (("b", "slow/y"), ("c", "fast/one")):
        world.register(name, models=[model])
    world.settle()
    assert [world.intent(name).state for name in "abc"] == ["running", "queued", "running"]


def test_cancelling_reaches_the_whole_tree() -> None:
    world = World(running=3, children=0)
    top = world.register("top")
    world.settle()
    world.register("middle", parent=f"ses_{top.id}")
    world.settle()
    for n in range(60):
        world.register(f"leaf{n}", parent="ses_int_middle")
    other = world.register("other")
    world.settle()
    aborted = len([kind for kind in world.done if kind[0] == ABORT])
    world.happens("intent.cancel", intent=top.id)
    world.settle()
    assert aborted == 0 and sum(count for (kind, _), count in world.done.items() if kind == ABORT) == 3
    assert world.states() == {"cancelled": 62, "running": 1} and world.intent("other").state == "running"
    assert other.depth == 1 and world.intent("leaf7").depth == 3 and world.intent("leaf7").root == "ses_user"
    assert max(Counter(world.types).values()) > MAX_STOPS, "more than one input has to stop them"


def test_what_a_finished_one_started_goes_on() -> None:
    world = World()
    top = world.register("top")
    world.settle()
    world.register("child", parent=f"ses_{top.id}")
    world.settle()
    world.ends(top)
    world.settle()
    assert world.intent("child").state == "running"


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"depth": 2}, "recursion_depth_exceeded"),
        ({"children": 1}, "budget-children"),
        ({"sessions": 3}, "budget-sessions"),
    ],
)
def test_a_runaway_spawner_meets_its_budget(limits: dict[str, int], code: str) -> None:
    world = World(**limits)
    parent, refused = "ses_user", None
    for n in range(10):
        intent = world.register(f"chain{n}", parent=parent)
        world.settle()
        if code == "budget-children":
            intent = world.register(f"twin{n}", parent=parent)
        if intent.state == "refused":
            refused = intent
            break
        parent = f"ses_{intent.id}"
    assert refused is not None and refused.code == code and refused.ended
    assert (CREATE, refused.id) not in world.done and "intent.refused" in world.types


def test_a_spent_budget_ends_what_runs_and_refuses_more() -> None:
    world = World(tokens=1000, running=2)
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


def test_a_long_turn_and_its_children_meet_the_budget_before_they_end() -> None:
    world = World(cost=1.0)
    world.register("a")
    world.settle()
    world.happens("lifecycle.session.created", session="ses_child", parent="ses_int_a")
    world.happens("lifecycle.session.created", session="ses_grandchild", parent="ses_child")
    assert world.spends("ses_grandchild", 1, cost=0.9) == ["intent.spent", "budget.warning"]
    assert world.spends("ses_stranger", 1, cost=5.0) == []
    assert world.intent("a").state == "running"
    assert "intent.failed" in world.spends("ses_int_a", 1, cost=0.2)
    assert (world.intent("a").code, round(world.intent("a").cost, 1)) == ("budget", 1.1)


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


def test_the_minutes_of_a_root_are_added_up() -> None:
    world = World(ran_ms=1_200_000)
    for name in "ab":
        world.register(name)
        world.settle()
    later(world, 540)
    assert world.states() == {"running": 2} and world.types.count("budget.warning") == 1
    later(world, 120)
    assert {(i.state, i.code) for i in world.agent.data.intents.values()} == {("failed", "budget")}
    assert world.register("late").code == "budget"


def test_each_budget_is_warned_of_once() -> None:
    world = World(sessions=5, tokens=100)
    for name in "abcd":
        world.register(name)
        world.settle()
    assert world.types.count("budget.warning") == 1
    assert world.spends("ses_int_a", 80) == ["intent.spent", "budget.warning"]
    assert world.spends("ses_int_a", 1) == ["intent.spent"]
    assert world.agent.data.spent["ses_user"].warnings == ["sessions", "tokens"]


def test_what_a_root_has_spent_counts_until_its_session_is_deleted() -> None:
    world = World(tokens=100)
    world.register("a")
    world.settle()
    world.spends("ses_int_a", 100, finish="stop")
    world.ends(world.intent("a"))
    world.settle()
    for n in range(KEPT_ENDED + 1):
        world.register(f"{n}", parent=f"ses_other{n % 2}")
        world.settle()
        world.happens("intent.cancel", intent=f"int_{n}")
        world.settle()
    assert "int_a" not in world.agent.data.intents and world.register("late").code == "budget"
    assert world.happens("lifecycle.session.ended", session="ses_user") == ["budget.closed"]
    for n in range(KEPT_ENDED + 1):
        world.register(f"more{n}", parent=None)
        world.happens("intent.cancel", intent=f"int_more{n}")
        world.settle()
    assert "ses_user" not in world.agent.data.spent and len(world.agent.data.spent) <= KEPT_ENDED + 3


def test_an_agent_that_may_write_gets_a_worktree_and_its_changes_are_told() -> None:
    world = World(readers=frozenset({"plan"}))
    world.register("reader", isolation="auto", agent="plan")
    world.register("writer", isolation="auto")
    assert [kind for kind, _, _ in world.effects] == [CREATE, ISOLATE]
    world.settle()
    assert (CREATE, "int_writer") in world.done and world.intent("writer").place == "/w/sub"
    assert world.ends(world.intent("writer")) == ["intent.finishing"]
    assert world.ends(world.intent("writer"), "aborted") == [] == world.happens("intent.cancel", intent="int_writer")
    world.settle()
    assert world.intent("writer").state == "completed"
    assert "+one" in world.agent.data.notices["ntc_writer"].text
    world.happens("intent.apply", intent="int_writer")
    assert world.intent("writer").applied


def test_what_a_stopped_one_changed_is_kept() -> None:
    world = World()
    for name in "ab":
        world.register(name, isolation="worktree", wall_ms=1000 if name == "a" else 0)
    world.settle()
    world.happens("intent.cancel", intent="int_b")
    world.happens("tick", now=world.clock.now_ms + 2_000_000)
    world.settle()
    assert {i.id: (i.state, i.changes["ref"] != "") for i in world.agent.data.intents.values()} == {
        "int_a": ("failed", True),
        "int_b": ("cancelled", True),
    }


def test_a_worktree_that_is_made_after_the_end_is_removed() -> None:
    world = World()
    world.register("a", isolation="worktree")
    assert world.happens("intent.cancel", intent="int_a") == ["intent.cancelled"]
    world.act()
    (kind, node, args) = world.effects[0]
    assert (kind, node, args["repository"], args["session"]) == (COLLECT, "int_a", "/r", None)
    world.settle()
    assert not world.worktrees and world.intent("a").state == "cancelled"
    late = {"kind": ISOLATE, "node": "int_forgotten", "result": {}}
    assert world.happens("effect.completed", **late) == [] and not world.effects, "there was no repository"


def test_without_a_repository_only_one_that_insists_fails() -> None:
    world = World()
    for name, isolation in (("a", "auto"), ("b", "worktree")):
        world.register(name, isolation=isolation)
        _, node, _ = world.effects.pop()
        world.happens("effect.completed", kind=ISOLATE, node=node, result={})
    assert world.intent("b").code == "no-worktree"
    world.settle()
    assert (world.intent("a").state, world.intent("a").isolation) == ("running", "shared")


def test_a_silent_one_is_stopped() -> None:
    world = World(silence_ms=60_000)
    world.register("a")
    world.settle()
    for quiet, ended in ((59_999, []), (60_000, ["intent.failed", "notice.queued", "notice.sending"])):
        result = {"state": "busy", "quiet_ms": quiet, "resumes": 0}
        assert world.happens("effect.completed", kind=CHECK, node="int_a", result=result) == ended
    assert world.intent("a").code == "silence" and world.effects[0][0] == ABORT


def later(world: World, seconds: float) -> None:
    """Time passes, in which the sidecar looks at the clock whenever the agent wants it."""
    end = world.clock.now_ms + round(seconds * 1000)
    while (deadline := world.agent.deadline()) is not None and deadline <= end:
        world.clock.now_ms = max(deadline, world.clock.now_ms)
        world.happens("tick", now=world.clock.now_ms)
        world.settle()
    world.clock.now_ms = end


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
    world = World(silence_ms=60_000)
    for name, above in (("top", "ses_user"), ("low", "ses_int_top"), ("other", "ses_user")):
        world.register(name, parent=above, wall_ms=600_000)
        world.settle()
    world.happens("checkpoint.opened", checkpoint="chk_1", intent="int_low", kind="permission")
    world.happens("checkpoint.opened", checkpoint="chk_2", intent=None, kind="permission")
    later(world, 86_400)
    assert [world.intent(name).state for name in ("top", "low", "other")] == ["running", "running", "failed"]
    silent = {"state": "busy", "quiet_ms": 60_000, "resumes": 0}
    assert world.happens("effect.completed", kind=CHECK, node="int_low", result=silent) == []
    assert world.happens("checkpoint.answered", checkpoint="chk_1") == ["intent.continued"]
    assert world.happens("checkpoint.answered", checkpoint="chk_2") == []
    later(world, 590)
    assert world.intent("top").state == "running" == world.intent("low").state
    later(world, 10)
    assert world.intent("top").code == "timeout" and world.intent("low").state in ENDED


def test_what_an_ended_one_still_asks_holds_up_nobody() -> None:
    world = World()
    for name, above in (("top", "ses_user"), ("low", "ses_int_top")):
        world.register(name, parent=above, wall_ms=600_000)
        world.settle()
    world.happens("checkpoint.opened", checkpoint="chk_1", intent="int_low", kind="ask")
    assert world.intent("top").asks == ["chk_1"]
    world.ends(world.intent("low"))
    world.settle()
    later(world, 600)
    assert world.intent("top").code == "timeout"


def test_the_time_of_work_that_waits_for_an_opencode_stands_still() -> None:
    world = World()
    world.register("a", wall_ms=600_000)
    world.settle()
    world.happens("turn.ended", session="ses_int_a", outcome="interrupted")
    kind, node, _ = world.effects.pop()
    world.happens("effect.completed", kind=kind, node=node, result={"absent": True})
    later(world, 86_400)
    assert world.intent("a").state == "resuming"


def test_a_session_is_not_looked_at_before_its_prompt_is_there() -> None:
    world = World()
    world.register("a")
    while not any(kind == PROMPT for kind, _, _ in world.effects):
        world.act()
    assert world.happens("sidecar.started") == ["resume"], "the prompt is on its way: what rests there is no answer"
    kind, node, _ = world.effects.pop()
    assert world.happens("effect.completed", kind=kind, node=node, result={"held": True})[0] == "intent.prompted"
    assert [kind for kind, _, _ in world.effects] == [CHECK], "an earlier sidecar sent it: how far did it come?"


def test_a_session_that_lost_its_prompt_gets_it_again_and_else_it_is_told_to_go_on() -> None:
    world = World()
    world.register("a")
    world.settle()
    for resumes, (state, text) in enumerate((("unprompted", "do it"), ("unanswered", CONTINUE))):
        result = {"state": state, "resumes": resumes}
        assert world.happens("effect.completed", kind=CHECK, node="int_a", result=result) == ["intent.interrupted"]
        assert world.effects[0][2]["text"] == text
        world.settle()


def test_work_waits_for_an_opencode_without_counting_that_as_a_death() -> None:
    world = World()
    world.register("a")
    world.settle()
    world.happens("turn.ended", session="ses_int_a", outcome="interrupted")
    kind, node, args = world.effects.pop()
    assert args["waits"]
    assert world.happens("effect.completed", kind=kind, node=node, result={"absent": True}) == ["intent.waiting"]
    assert (world.intent("a").state, world.intent("a").resumes) == ("resuming", 0)
    assert world.happens("host.ready", sessions=["ses_int_a"]) == ["intent.checked"]
    result = {"state": "unanswered", "resumes": 0}
    assert world.happens("effect.completed", kind=CHECK, node="int_a", result=result) == ["intent.interrupted"]
    world.settle()
    assert (world.intent("a").state, world.intent("a").resumes) == ("running", 1)


def test_work_that_its_opencode_continues_by_itself_is_not_prompted_and_its_time_counts_again() -> None:
    world = World()
    world.register("a", wall_ms=600_000)
    world.settle()
    world.happens("turn.ended", session="ses_int_a", outcome="interrupted")
    kind, node, _ = world.effects.pop()
    world.happens("effect.completed", kind=kind, node=node, result={"absent": True})
    world.happens("host.ready", sessions=["ses_int_a"])
    world.effects.clear()
    result = {"state": "busy", "resumes": 0}
    assert world.happens("effect.completed", kind=CHECK, node="int_a", result=result) == ["intent.resumed"]
    assert (world.intent("a").state, world.intent("a").resumes, world.effects) == ("running", 0, [])
    assert world.happens("effect.completed", kind=CHECK, node="int_a", result=result) == []
    later(world, 600)
    assert world.intent("a").code == "timeout"


def test_what_is_said_after_the_end_changes_no_result() -> None:
    world = World()
    world.register("a", isolation="worktree")
    world.settle()
    said = {"session": "ses_int_a", "kind": "text"}
    world.happens("execution.output", **said, text="the result")
    for _ in range(2):
        world.ends(world.intent("a"))
        assert world.happens("execution.output", **said, text="too late") == []
        world.settle()
    assert (world.intent("a").state, world.intent("a").result) == ("completed", "the result")


def test_two_that_end_together_are_told_in_one_message() -> None:
    world = World()
    for name in "ab":
        world.register(name)
    world.settle()
    world.ends(world.intent("a"))
    world.ends(world.intent("b"))
    kind, _, args = world.effects[0]
    assert kind == WAKE and len(args["texts"]) == 1
    world.settle()
    world.sees("ses_user")
    world.settle()
    assert len(world.messages["ses_user"]) == 2

    world = World()
    for name in "ab":
        world.register(name, wall_ms=1000)
    world.settle()
    world.happens("tick", now=world.clock.now_ms + 2_000_000)
    wakes = [args for kind, _, args in world.effects if kind == WAKE]
    assert len(wakes) == 1 and len(wakes[0]["texts"]) == 2
    assert {intent.code for intent in world.agent.data.intents.values()} == {"timeout"}


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
    assert world.agent.data.notices["ntc_a"].state == ("sent" if wakes else "observed")
    assert world.happens("notice.told", notice="ntc_a", session="ses_user", call="call_2") == []


def test_a_result_that_another_session_read_is_still_told() -> None:
    world = World()
    world.register("a")
    world.settle()
    world.ends(world.intent("a"))
    assert world.happens("notice.told", notice="ntc_a", session="ses_other", call="call_1") == []
    assert world.happens("notice.told", notice="ntc_none", session="ses_user", call="call_1") == []


def test_the_next_model_is_tried_after_an_error() -> None:
    world = World()
    world.register("a", models=["one/x", "two/y"])
    world.settle()
    world.ends(world.intent("a"), "failed", error="overloaded")
    assert [(kind, args["model"]) for kind, _, args in world.effects] == [(PROMPT, "two/y")]
    world.settle()
    assert world.ends(world.intent("a"), "failed", error="overloaded")[0] == "intent.failed"
    assert world.intent("a").code == "error"


STEPS = st.lists(
    st.tuples(st.sampled_from(["register", "child", "act", "end", "die", "cancel", "see", "tick"]), st.integers(0, 7)),
    max_size=60,
)


@settings(deadline=None, max_examples=150)
@given(STEPS)
def test_any_history_creates_each_once_tells_each_once_and_forgets_none(steps: list[tuple[str, int]]) -> None:
    world = World(running=2, children=4)
    for count, (step, n) in enumerate(steps):
        known = list(world.agent.data.intents.values())
        one = known[n % len(known)] if known else None
        if step == "register":
            world.register(f"{count}", isolation="auto" if n % 2 else "shared")
        elif step == "act" and world.effects:
            world.act(n % len(world.effects))
        elif step == "see":
            world.sees("ses_user")
        elif step == "tick":
            world.happens("tick", now=world.clock.now_ms)
        elif one is None:
            continue
        elif step == "cancel":
            world.happens("intent.cancel", intent=one.id)
        elif one.session is not None and step == "child":
            world.register(f"{count}", parent=one.session)
        elif one.session is not None and step in ("end", "die"):
            world.ends(one, "completed" if step == "end" else "interrupted")
        assert sum(each.state in ACTIVE for each in world.agent.data.intents.values()) <= 2
    for _ in range(3 * len(steps) + 3):
        world.settle()
        for each in list(world.agent.data.intents.values()):
            if each.state == "running":
                world.ends(each)
        for session in list(world.messages):
            world.sees(session)
    intents = world.agent.data.intents.values()
    assert all(each.state in ENDED for each in intents)
    assert all(count == 1 for (kind, _), count in world.done.items() if kind == CREATE)
    assert not world.worktrees
    told = Counter(notice.intent for notice in world.agent.data.notices.values())
    assert told == Counter(each.id for each in intents if each.state in ("completed", "failed"))
    assert all(notice.state == "observed" for notice in world.agent.data.notices.values())


def edits(world: World, session: str, file: str) -> list[str]:
    return world.happens("execution.step", session=session, tool="write", input={"filePath": file, "content": "one"})


def test_edits_of_the_same_file_are_a_warning_in_both_results() -> None:
    world = World()
    one, two = world.register("one"), world.register("two")
    alone = world.register("alone", isolation="worktree")
    world.settle()
    assert edits(world, f"ses_{one.id}", "/p/a.py") == ["intent.edited"]
    assert edits(world, f"ses_{one.id}", "/p/a.py") == []
    assert edits(world, f"ses_{two.id}", "/p/a.py") == ["intent.edited", "intent.overlap", "intent.overlap"]
    assert edits(world, "ses_user", "/p/a.py") == []
    assert edits(world, f"ses_{two.id}", "/p/b.py") == ["intent.edited"]
    assert edits(world, "ses_user", "/p/b.py") == ["intent.overlap"]
    assert edits(world, f"ses_{alone.id}", "/p/a.py") == []
    world.ends(one)
    assert world.intent("one").overlaps == {"/p/a.py": two.id}
    assert world.intent("two").overlaps == {"/p/a.py": one.id, "/p/b.py": "ses_user"}
    (notice,) = world.agent.data.notices.values()
    assert two.id in notice.text and "/p/a.py" in notice.text
    assert edits(world, f"ses_{two.id}", "/p/a.py") == []
