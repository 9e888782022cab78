"""The watches over background work: the time that counts, and the silence of a session."""

from __future__ import annotations

from sidecar.background.intents.intent_effects import ABORT, CHECK
from sidecar.background.intents.lifecycle import ENDED
from tests.sidecar.background.world import World, later


def test_a_silent_one_is_stopped() -> None:
    world = World(silence_minutes=1)
    world.register("a")
    world.settle()
    for quiet, ended in ((59_999, []), (60_000, ["intent.failed", "notice.queued", "notice.sending"])):
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
    world.happens("checkpoint.opened", checkpoint="chk_1", intent="int_low", kind="permission")
    world.happens("checkpoint.opened", checkpoint="chk_2", intent=None, kind="permission")
    later(world, 7_200)
    assert [world.intent(name).state for name in ("top", "low", "other")] == ["running", "running", "failed"]
    silent = {"state": "busy", "quiet_ms": 60_000, "resumes": 0}
    assert world.happens("effect.completed", kind=CHECK, node="int_low", result=silent) == []
    assert world.happens("checkpoint.answered", checkpoint="chk_1") == ["intent.continued"]
    assert world.happens("checkpoint.answered", checkpoint="chk_2") == []
    later(world, 590)
    assert world.intent("top").state == "running" == world.intent("low").state
    later(world, 10)
    assert world.intent("top").code == "timeout" and world.intent("low").state in ENDED


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
