"""The agent ``intents`` against a host of a few lines: places, trees, copies, models, and random histories."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.background.intents.intent_effects import ABORT, CHECK, COLLECT, CREATE, ISOLATE, PROMPT
from sidecar.background.intents.intents import MAX_STOPS
from sidecar.background.intents.lifecycle import ACTIVE, ENDED
from sidecar.background.messages.deliver import WAKE
from tests.sidecar.background.world import World


def test_forty_wait_for_four_places_and_run_in_their_order() -> None:
    world = World(max_running=4)
    for n in range(40):
        world.register(f"{n:03}")
    world.settle()
    ran: list[str] = []
    while running := [i for i in world.agent.data.intents.values() if i.state == "running"]:
        assert sum(i.state in ACTIVE for i in world.agent.data.intents.values()) <= 4
        ran.append(running[0].id)
        world.ends(running[0])
        world.settle()
    assert ran == sorted(ran) and len(ran) == 40
    assert world.states() == {"completed": 40}
    assert all(count == 1 for (kind, _), count in world.done.items() if kind in (CREATE, PROMPT))
    assert set(world.heard()) == {"seen"}


def test_cancelling_reaches_the_whole_tree() -> None:
    world = World(max_running=3)
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


def test_an_agent_that_may_write_gets_a_copy_and_its_changes_are_told() -> None:
    world = World(readers=("plan",))
    world.register("reader", isolation="auto", agent="plan")
    world.register("writer", isolation="auto")
    assert [kind for kind, _, _ in world.effects] == [CREATE, ISOLATE]
    world.settle()
    assert (CREATE, "int_writer") in world.done and world.intent("writer").place == "/w/sub"
    assert world.ends(world.intent("writer")) == ["intent.finishing"]
    assert world.ends(world.intent("writer"), "aborted") == [] == world.happens("intent.cancel", intent="int_writer")
    world.settle()
    assert world.intent("writer").state == "completed"
    assert "+one" in world.notice("writer").text
    world.happens("intent.apply", intent="int_writer")
    assert world.intent("writer").applied
    world.happens("intent.undo", intent="int_writer")
    assert world.intent("writer").applied is None


def test_one_that_insists_gets_a_copy_or_fails() -> None:
    world = World()
    for name, isolation in (("a", "auto"), ("b", "copy")):
        world.register(name, isolation=isolation)
        _, node, args = world.effects.pop()
        assert args.get("always", False) is (isolation == "copy")
        failed = {"type_": "effect.failed", "error": "disk full"} if isolation == "copy" else {}
        world.happens(failed.pop("type_", "effect.completed"), kind=ISOLATE, node=node, result={}, **failed)
    assert world.intent("b").code == "no-copy"
    world.settle()
    assert (world.intent("a").state, world.intent("a").isolation) == ("running", "shared")


def test_a_copy_that_does_not_get_ready_fails_the_work_and_tells_why() -> None:
    world = World()
    runs = [{"command": "npm ci", "code": 1, "seconds": 2.0, "output": "no network"}]
    for name in ("a", "cancelled"):
        world.register(name, isolation="auto")
        _, node, _ = world.effects.pop()
        if name == "cancelled":
            world.happens("intent.cancel", intent=node)
        world.happens("effect.completed", kind=ISOLATE, node=node, result={"failed": "setup: npm ci", "setup": runs})
    intent = world.intent("a")
    assert (intent.state, intent.code, intent.setup) == ("failed", "setup-failed", runs) and not intent.copy
    assert "npm ci" in next(iter(world.teller.data.messages.values())).text
    assert {kind for kind, _, _ in world.effects} == {WAKE}, "there is no copy to collect"
    world.register("b", isolation="auto")
    _, node, _ = world.effects.pop()
    result = {"directory": "/w", "root": "/w", "name": "int_b", "setup": runs}
    world.happens("effect.completed", kind=ISOLATE, node=node, result=result)
    assert world.intent("b").setup == runs and "setup" not in world.intent("b").copy


def test_ended_work_goes_on_in_its_session_and_copy_as_new_work() -> None:
    world = World()
    old = world.register("old", isolation="copy")
    world.settle()
    world.ends(old)
    world.settle()
    world.spends(f"ses_{old.id}", 7)
    old = world.intent("old")
    before = {"intent": old.id, "session": old.session, "copy": old.copy, "saved": True, "kept": False}
    world.register("new", isolation="copy", continues=before)
    ((kind, _, args),) = world.effects
    assert (kind, args["continues"]) == (ISOLATE, before)
    world.register("other", continues=before)
    assert (world.intent("other").state, world.intent("other").code) == ("refused", "still-running")
    world.settle()
    new = world.intent("new")
    assert (new.session, new.state, world.done[PROMPT, new.id]) == (old.session, "running", 1)
    world.spends(f"ses_{old.id}", 5, finish="stop")
    assert (world.intent("new").tokens, world.intent("old").tokens) == (5, 7), "each pays for its own"
    world.happens("execution.output", session=old.session, kind="text", text="the second answer")
    world.happens("turn.ended", session=old.session, outcome="completed")
    (collect,) = [args for kind, node, args in world.effects if (kind, node) == (COLLECT, new.id)]
    assert (collect["intent"], collect["name"]) == (new.id, old.id), "the copy has the old place"
    world.settle()
    assert (world.intent("new").result, world.intent("old").result) == ("the second answer", "")
    assert world.intent("new").state == "completed" and len(world.messages["ses_user"]) == 2


def test_work_waits_for_an_opencode_without_counting_that_as_a_death() -> None:
    world = World()
    world.register("a")
    world.settle()
    world.loses_its_opencode("a")
    assert (world.intent("a").state, world.intent("a").resumes) == ("resuming", 0)
    assert world.happens("host.ready", sessions=["ses_int_a"]) == ["intent.checked"]
    result = {"state": "unanswered", "resumes": 0}
    assert world.happens("effect.completed", kind=CHECK, node="int_a", result=result) == ["intent.interrupted"]
    world.settle()
    assert (world.intent("a").state, world.intent("a").resumes) == ("running", 1)


def test_work_that_failed_names_the_cause_and_not_only_its_kind() -> None:
    world = World()
    world.register("a", models=["one/x", "two/y"])
    world.settle()
    for model, reason in (("one/x", "overloaded"), ("two/y", "invalid key\nat line 1")):
        intent = world.intent("a")
        assert intent.runs_on == model
        error = {"name": "APIError", "status": 401, "reason": reason, "turn": "msg_1", "message": "msg_2"}
        assert world.happens("agent.error", session="ses_int_a", **error) == ["intent.erred"]
        world.ends(intent, "failed", error="APIError")
        world.settle()
    assert (world.intent("a").state, world.intent("a").reason) == ("failed", "HTTP 401: invalid key")


def test_a_prompt_that_arrives_after_the_abort_is_aborted_too() -> None:
    world = World()
    world.register("late", isolation="shared")
    world.act()  # the session exists
    world.happens("intent.cancel", intent="int_late")
    world.act(1)  # the abort, before OpenCode accepts the prompt
    assert world.intent("late").state == "cancelled"
    world.act()
    assert world.busy == {"ses_int_late"}
    ((kind, _, args),) = world.effects
    assert kind == ABORT and args["late"]
    world.settle()
    assert not world.busy


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "register",
                "child",
                "act",
                "fail",
                "end",
                "die",
                "cancel",
                "lose",
                "tick",
                "ask",
                "answer",
                "tell",
                "turn",
            ]
        ),
        st.integers(0, 7),
    ),
    min_size=30,
    max_size=60,
)


@settings(deadline=None, max_examples=30)
@given(STEPS)
def test_any_history_creates_each_once_tells_each_once_and_forgets_none(steps: list[tuple[str, int]]) -> None:
    world = World(max_running=2)
    asked: list[str] = []
    for count, (step, n) in enumerate(steps):
        world.clock.now_ms += 10_000
        known = list(world.agent.data.intents.values())
        one = known[n % len(known)] if known else None
        if step == "register":
            world.register(f"{count}", isolation="auto" if n % 2 else "shared")
        elif step == "act" and world.effects:
            world.act(n % len(world.effects))
        elif step == "lose":
            world.keeps = False
        elif step == "tick":
            world.happens("tick", now=world.clock.now_ms)
        elif step == "turn":
            world.happens("turn.ended", session="ses_user", outcome="interrupted" if n % 2 else "completed")
        elif step == "answer" and asked:
            type_ = "message.answered" if n % 3 else "message.left"
            world.happens(type_, message=asked.pop(n % len(asked)))
        elif step == "fail" and (wakes := [each for each in world.effects if each[0] == WAKE]):
            world.effects.remove(wakes[0])
            world.happens("effect.failed", kind=WAKE, node=wakes[0][1], error="OpenCode answers with 500")
        elif one is None:
            continue
        elif step == "ask":
            asked.append(f"chk_{count}")
            world.happens("message.waiting", message=asked[-1], intent=one.id)
        elif step == "tell":
            world.happens("message.return", message=f"ntc_{one.id[4:]}", session="ses_user", call=f"call_{count}")
        elif step == "cancel":
            world.happens("intent.cancel", intent=one.id)
        elif one.session is not None and step == "child":
            world.register(f"{count}", parent=one.session)
        elif one.session is not None and step in ("end", "die"):
            world.ends(one, "completed" if step == "end" else "interrupted")
        assert sum(each.state in ACTIVE for each in world.agent.data.intents.values()) <= 2
        assert all((each.since is not None) == each.works for each in world.agent.data.intents.values())
        assert all(each.ran_ms <= 10_000 * (count + 1) for each in world.agent.data.intents.values())
    for checkpoint in asked:
        world.happens("message.expired", message=checkpoint)
    assert not any(each.asks for each in world.agent.data.unfinished())
    for _ in range(3 * len(steps) + 3):
        world.settle()
        for each in list(world.agent.data.intents.values()):
            if each.state == "running":
                world.ends(each)
        world.happens("turn.ended", session="ses_user", outcome="completed")
        if (deadline := world.deadline()) is not None:
            world.clock.now_ms = max(deadline, world.clock.now_ms)
            world.happens("tick", now=world.clock.now_ms)
    intents = world.agent.data.intents.values()
    assert all(each.state in ENDED for each in intents)
    stopped = {f"ses_{each.id}" for each in intents if each.state in ("cancelled", "failed")}
    assert not stopped & world.busy, "work that was stopped goes on"
    assert all(count == 1 for (kind, _), count in world.done.items() if kind == CREATE)
    assert not world.copies
    told = Counter(notice.intent for notice in world.teller.data.messages.values())
    assert told == Counter(each.id for each in intents if each.state in ("completed", "failed"))
    assert all(notice.state == "seen" for notice in world.teller.data.messages.values())


def edits(world: World, session: str, file: str) -> list[str]:
    return world.happens("execution.step", session=session, tool="write", input={"filePath": file, "content": "one"})


def test_edits_of_the_same_file_are_a_warning_in_both_results() -> None:
    world = World()
    one, two = world.register("one"), world.register("two")
    alone = world.register("alone", isolation="copy")
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
    (notice,) = world.teller.data.messages.values()
    assert two.id in notice.text and "/p/a.py" in notice.text
    assert edits(world, f"ses_{two.id}", "/p/a.py") == []


def test_a_session_whose_opencode_ended_before_its_first_prompt_gets_it_from_the_next() -> None:
    world = World()
    world.register("a")
    world.act()  # its session
    _, node, _ = world.effects.pop()
    world.happens("effect.completed", kind=PROMPT, node=node, result={"absent": True})
    assert (world.intent("a").state, world.intent("a").resumes) == ("resuming", 0)
    kind, node, _ = world.effects.pop()
    found = {"state": "unprompted", "resumes": 0, "models": 0}
    world.happens("effect.completed", kind=kind, node=node, result=found)
    assert [(kind, args["text"]) for kind, _, args in world.effects] == [(PROMPT, "do it")]
    world.settle()
    assert world.intent("a").state == "running"


def test_work_whose_environment_is_lost_waits_until_an_opencode_has_it_and_takes_no_place_meanwhile() -> None:
    world = World(max_running=1)
    intent = world.register("lost", isolation="copy", environment="env_1")
    world.act()  # its copy
    world.effects.pop()
    world.happens("effect.completed", kind=CREATE, node=intent.id, result={"absent": True})
    assert (world.intent("lost").state, world.intent("lost").waits) == ("queued", "environment")
    world.register("other", environment="env_2")
    assert world.intent("other").state == "starting"
    world.settle()
    world.ends(world.intent("other"))
    assert world.happens("host.ready", sessions=[], environments=["env_2"]) == []
    assert world.happens("host.ready", sessions=[], environments=["env_1"]) == ["intent.hosted", "intent.starting"]
    world.settle()
    assert world.intent("lost").state == "running" and world.done[ISOLATE, intent.id] == 1


def test_work_whose_environment_ended_goes_on_with_the_one_that_a_person_gives_it_to() -> None:
    world = World()
    intent = world.register("lost", isolation="copy", environment="box_1")
    world.act()  # its copy
    world.effects.pop()
    world.happens("effect.completed", kind=CREATE, node=intent.id, result={"absent": True})
    resumed = world.happens("intent.resume", intent=intent.id, environment="env_2")
    assert resumed == ["intent.hosted", "intent.starting"]
    world.settle()
    assert (world.intent("lost").state, world.intent("lost").environment) == ("running", "env_2")


def test_what_a_person_aborted_takes_along_what_it_started() -> None:
    world = World()
    top = world.register("top")
    world.settle()
    world.register("child", parent=f"ses_{top.id}")
    world.register("other")
    world.settle()
    world.ends(top, "aborted")
    world.settle()
    assert (world.intent("top").state, world.intent("top").code) == ("failed", "user-abort")
    assert (world.intent("child").state, world.intent("child").code) == ("cancelled", "cancelled")
    assert world.intent("other").state == "running"
