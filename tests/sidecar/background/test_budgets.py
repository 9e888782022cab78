"""The budgets of background work: what is refused, what waits, what is stopped, and what a person is warned of."""

from __future__ import annotations

import pytest

from sidecar.background.intents import state as intent_state
from sidecar.background.intents.intent_effects import CREATE
from tests.sidecar.background.world import World


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
    ("limits", "code"),
    [
        ({"max_depth": 2}, "recursion_depth_exceeded"),
        ({"max_children": 1}, "budget-children"),
        ({"max_sessions": 3}, "budget-sessions"),
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
