"""The agent ``intents`` with sessions of OpenCode 2, whose turns it looks at before it believes that work is over."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.background.intents.intent_effects import ABORT, CHECK, PROMPT
from sidecar.background.intents.state import Intent
from tests.sidecar.background.world import World


def running(**more: Any) -> tuple[World, Intent]:
    """A world of OpenCode 2 with one intent at work."""
    world = World(begin="ses_ds2")
    world.register("a", **more)
    world.settle()
    return world, world.intent("a")


def found(world: World, state: str, text: str = "") -> list[str]:
    """Answer the look that the agent has asked for."""
    (at,) = [number for number, (kind, _, _) in enumerate(world.effects) if kind == CHECK]
    kind, node, args = world.effects.pop(at)
    result = {"state": state, "text": text, "quiet_ms": 0, **{name: args[name] for name in ("resumes", "models")}}
    return world.happens("effect.completed", kind=kind, node=node, result=result)


@pytest.mark.parametrize("outcome", ["completed", "failed", "aborted", "stopped"])
def test_the_end_of_a_turn_is_only_a_reason_to_look(outcome: str) -> None:
    world, intent = running()
    assert world.ends(intent, outcome) == ["intent.checked"]
    assert found(world, "busy") == [] and world.intent("a").state == "running"
    world.ends(intent, outcome)
    assert found(world, "answered", "forty two") == [
        "intent.completed",
        "notice.queued",
        "notice.sending",
    ]
    assert world.intent("a").result == "forty two"


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
