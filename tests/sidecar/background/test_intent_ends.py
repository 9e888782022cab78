"""How work of the agent ``intents`` ends: its result, what it left running, and what comes after its end."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.opencode.redact import Redactor
from sidecar.agents.effects.ledger import bounded
from sidecar.background.effects import HostActs
from sidecar.background.hosts.host import Look
from sidecar.background.intents import afterwards
from sidecar.background.intents.intent_effects import ABORT, CHECK, COLLECT, PROMPT
from sidecar.background.intents.state import Intent
from sidecar.background.intents.texts import MAX_RESULT
from sidecar.background.messages.deliver import WAKE
from sidecar.background.unredacted import Said
from tests.sidecar.background.support import Only
from tests.sidecar.background.world import World, later


def running(**more: Any) -> tuple[World, Intent]:
    """A world of OpenCode 2 with one intent at work."""
    world = World(begin="ses_ds2")
    world.register("a", **more)
    world.settle()
    return world, world.intent("a")


def found(world: World, state: str, text: str = "", **more: Any) -> list[str]:
    """Answer the look that the agent has asked for."""
    (at,) = [number for number, (kind, _, _) in enumerate(world.effects) if kind == CHECK]
    kind, node, args = world.effects.pop(at)
    result = {"state": state, "text": text, "quiet_ms": 0, **{name: args[name] for name in ("resumes", "models")}}
    result |= more
    return world.happens("effect.completed", kind=kind, node=node, result=result)


LONG = pytest.mark.parametrize("size", [MAX_RESULT + 1, 300_000, 9_000_000])
"""Longer than a result, than what the log keeps of an effect, and than the log keeps of any string."""


def cut(intent: Intent, session: str) -> str:
    """The end of a result, which says that it is cut and what prints all of it."""
    assert (intent.state, len(intent.result)) == ("completed", MAX_RESULT) and "xxx" in intent.result
    end = intent.result.rpartition("\n")[2]
    assert "cut" in end and f"durable-stream read {session}`" in end
    return end


@LONG
def test_a_long_result_says_where_it_is_cut(size: int) -> None:
    world = World()
    world.register("a")
    world.settle()
    text = Redactor().clean("x" * size)
    world.happens("execution.output", session="ses_int_a", kind="text", text=text)
    world.ends(world.intent("a"))
    assert cut(world.intent("a"), "ses_int_a") in world.notice("a").text


@LONG
async def test_a_long_result_that_the_host_tells_says_where_it_is_cut(size: int) -> None:
    world, intent = running()
    world.ends(intent)
    ((kind, node, args),) = world.effects

    class Host:
        async def look(self, session: str, *, directory: str) -> Look:
            return Look("answered", "x" * size)

    acts = HostActs(Only(Host()), Said(Redactor().clean, str), print)
    world.happens("effect.completed", kind=kind, node=node, result=bounded(await acts.check(args, "key")))
    cut(world.intent("a"), "ses_ds2int_a")


@pytest.mark.parametrize("outcome", ["completed", "failed", "aborted", "stopped"])
def test_the_end_of_a_turn_is_only_a_reason_to_look(outcome: str) -> None:
    world, intent = running()
    assert world.ends(intent, outcome) == ["intent.checked"]
    assert found(world, "busy") == [] and world.intent("a").state == "running"
    world.ends(intent, outcome)
    assert found(world, "answered", "forty two") == [
        "intent.completed",
        "message.queued",
        "message.sending",
    ]
    assert world.intent("a").result == "forty two"


def heard(*said: str) -> World:
    """A world of OpenCode 1 with one intent, whose turn ends after its model was heard to say this and to stop."""
    world = World(isolation="shared")
    world.register("a")
    world.settle()
    for text in said:
        world.happens("execution.output", session="ses_int_a", kind="text", text=text)
    world.spends("ses_int_a", 1, finish="stop" if said[-1:] != ("I begin",) else "tool-calls")
    world.happens("turn.ended", session="ses_int_a", outcome="completed")
    return world


@pytest.mark.parametrize("said", [(), ("I begin",)])
def test_an_answer_that_a_dying_opencode_took_along_is_read_in_its_session(said: tuple[str, ...]) -> None:
    world = heard(*said)
    assert world.intent("a").state == "running"
    found(world, "answered", "forty two")
    assert (world.intent("a").state, world.intent("a").result) == ("completed", "forty two")


def test_an_answer_that_was_heard_needs_no_look() -> None:
    world = heard("I begin", "forty two")
    assert (world.intent("a").state, world.intent("a").result) == ("completed", "forty two")


@pytest.mark.parametrize("more", [0, 1])
def test_work_that_only_talked_after_it_was_interrupted_says_so(more: int) -> None:
    world = World(isolation="shared")
    intent = world.register("a")
    world.settle()
    world.ends(intent, "interrupted")
    world.settle()
    for _ in range(more):
        world.spends("ses_int_a", 1)
    world.spends("ses_int_a", 1, finish="stop")
    world.ends(intent)
    (notice,) = world.teller.data.messages.values()
    assert "interrupted" in notice.text and ("no tool ran" in notice.text) is (more == 0)


@pytest.mark.parametrize("isolation", ["copy", "shared"])
def test_what_finished_work_left_running_is_stopped_and_told(isolation: str) -> None:
    world, intent = running(isolation=isolation)
    world.ends(intent)
    found(world, "answered", "started a server", left=["npm start"])
    stops = [kind for kind, _, args in world.effects if kind == ABORT or args.get("stop")]
    assert stops == [COLLECT if isolation == "copy" else ABORT]
    world.settle()
    (notice,) = world.teller.data.messages.values()
    assert world.intent("a").state == "completed" and "npm start" in notice.text


def test_a_report_of_what_was_stopped_begins_no_turn_and_a_person_s_own_later_does() -> None:
    world, intent = running()
    report: dict[str, Any] = {"session": "ses_ds2int_a", "message": "msg_1", "parts": [], "synthetic": True}
    assert world.happens("agent.input", **report) == [] and not world.effects, "it works"
    world.ends(intent)
    found(world, "answered", "done")
    world.settle()
    stopped = world.done[ABORT, "int_a"]
    world.happens("agent.input", **report)
    world.settle()
    assert world.done[ABORT, "int_a"] == stopped + 1
    world.clock.now_ms += afterwards.REPORTS_MS
    world.happens("agent.input", **report)
    assert not world.effects


@pytest.mark.parametrize("meets", ["ended", "busy"])
def test_a_result_for_work_that_has_ended_goes_to_the_session_above(meets: str) -> None:
    world = World(isolation="shared")
    top = world.register("top")
    world.settle()
    leaf = world.register("leaf", parent="ses_int_top")
    world.settle()
    if meets == "busy":  # its session works while the result comes
        world.ends(leaf)
        kind, node, _ = world.effects.pop()
        assert (kind, node) == (WAKE, "ses_int_top")
        world.happens("effect.completed", kind=kind, node=node, result={"status": "busy"})
    world.ends(top)
    if meets == "ended":
        world.ends(leaf)
    world.settle()
    later(world, 10.0)
    assert set(world.messages) == {"ses_user"} and world.states() == {"completed": 2}
    said = {each.intent: (each.to, each.state) for each in world.teller.data.messages.values()}
    assert said == dict.fromkeys(["int_top", "int_leaf"], ("ses_user", "seen"))


def test_what_a_person_asked_in_the_session_of_ended_work_is_told_there() -> None:
    world = World(isolation="shared")
    world.ends(world.register("top"))
    world.settle()
    world.ends(world.intent("top"))
    world.settle()
    world.clock.now_ms += 1
    world.register("leaf", parent="ses_int_top")
    world.settle()
    world.ends(world.intent("leaf"))
    world.settle()
    assert set(world.messages) == {"ses_user", "ses_int_top"}


def test_an_error_lets_the_next_model_take_over_once() -> None:
    world, intent = running(models=["x/one", "x/two"])
    for _ in range(2):
        world.ends(intent, "failed")
    kind, node, args = world.effects.pop()
    assert found(world, "failed", "no") == ["intent.fallback"]
    world.settle()
    assert world.done[PROMPT, "int_a"] == 2
    result = {"state": "failed", "text": "no", "quiet_ms": 0, "resumes": args["resumes"], "models": args["models"]}
    assert world.happens("effect.completed", kind=kind, node=node, result=result) == [], "a look from before"
    world.ends(intent, "failed")
    assert "intent.failed" in found(world, "failed", "no") and world.intent("a").code == "error"


@pytest.mark.parametrize(("state", "code", "closes"), [("aborted", "user-abort", False), ("stopped", "stopped", True)])
def test_what_a_person_ended_has_failed_and_a_refused_turn_is_closed(state: str, code: str, closes: bool) -> None:
    world, intent = running()
    world.ends(intent, state)
    found(world, state)
    assert (world.intent("a").state, world.intent("a").code) == ("failed", code)
    assert (ABORT in [kind for kind, _, _ in world.effects]) is closes
    world.settle()
    assert world.done[PROMPT, "int_a"] == 1


def test_finished_work_meets_no_budget_before_it_was_looked_at_and_unfinished_work_does() -> None:
    for child_calls in (False, True):
        world, intent = running(max_tokens=100)
        world.spends("ses_ds2int_a", 150, finish="stop")
        world.ends(intent)
        assert world.agent.deadline() != 0
        if child_calls:
            world.happens("lifecycle.session.created", session="ses_child", parent="ses_ds2int_a")
            found(world, "busy")  # a subagent that it started runs
            world.spends("ses_child", 1)
            world.settle()
        else:
            found(world, "answered", "forty two")
        assert (world.intent("a").state, world.intent("a").code) == (
            ("failed", "budget") if child_calls else ("completed", "")
        )


def test_an_interrupted_turn_is_not_looked_at_but_waits_for_its_service() -> None:
    world, _ = running()
    world.loses_its_opencode("a")
    assert world.happens("host.ready", sessions=["ses_ds2int_a"]) == ["intent.checked"]
    assert found(world, "busy") == ["intent.resumed"]
    assert world.done[PROMPT, "int_a"] == 1
