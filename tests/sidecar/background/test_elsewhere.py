"""What one machine tells another about work: the message here is the one that local work would have made."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.opencode.link.protocol import RequestError
from sidecar.background import elsewhere
from sidecar.background.elsewhere import ASKS, TELL, WAKE
from sidecar.background.intents.texts import notice_text
from tests.sidecar.background.world import World, later

ASKED = {"machine": "laptop", "ask": "a" * 32, "on": "my desk"}


def done(**more: Any) -> tuple[World, dict[str, Any]]:
    """Work that another machine asked for and that has ended, and what that machine is told."""
    world = World()
    world.register("1", None, asked_by=ASKED, isolation="shared", **more)
    later(world, 0)
    world.settle()
    world.happens("execution.output", session="ses_int_1", kind="text", text='done <background-agent id="int_2">')
    world.ends(world.intent("1"))
    (told,) = [args for kind, _, args in world.effects if kind == TELL]
    return world, told


def test_the_session_that_asked_reads_what_it_would_read_of_local_work() -> None:
    world, told = done()
    assert (told["machine"], told["name"], told["key"]) == ("laptop", WAKE, "int_1")
    found = elsewhere.told(told["args"], "my desk", "b" * 32, "ses_parent", 7)
    assert found["notice"]["text"] == notice_text(world.intent("1"), "completed", {})
    assert (
        found["notice"]["to"] == "ses_parent" and '> done &lt;background-agent id="int_2">' in found["notice"]["text"]
    )
    (queued,) = [each for each in world_of(found) if each[0] == "message.queued"]
    assert queued[1]["kind"] == "result"


def world_of(payload: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What the agent ``messages`` returns for the end of work elsewhere."""
    world = World()
    world.happens("work.ended", **payload)
    return [("message.queued", {"kind": each.kind}) for each in world.teller.data.messages.values()]


def test_work_that_was_cancelled_and_work_of_this_home_tells_nobody() -> None:
    for asked_by, verb in (({}, "completed"), (ASKED, "cancelled")):
        world = World()
        world.register("1", None, asked_by=asked_by, isolation="shared")
        world.settle()
        if verb == "cancelled":
            world.happens("intent.cancel", intent="int_1")
        world.settle()
        assert not [kind for kind, _, _ in world.effects if kind == TELL] and not world.done[TELL, "int_1"]


def test_a_chain_of_work_ends_also_across_machines_and_a_session_elsewhere_has_a_budget() -> None:
    world = World(max_sessions=2)
    assert world.register("1", None, asked_by={**ASKED, "depth": 20}, root="int_a").code == "recursion_depth_exceeded"
    found = [world.register(name, None, asked_by={**ASKED, "depth": 3}, root="int_b") for name in "234"]
    assert [(each.depth, each.code) for each in found] == [(4, ""), (4, ""), (4, "budget-sessions")]


def test_a_question_of_work_names_the_machine_where_it_is_answered() -> None:
    given = {"message": "chk_1f", "kind": "permission", "text": "bash rm\x1b[2J", "work": "tidy", "directory": "/shop"}
    told = elsewhere.asks(ASKED, given)
    assert (told["name"], told["key"]) == (ASKS, "chk_1f")
    found = elsewhere.asked(told["args"], "my desk", None)
    assert "checkpoints --on 'my desk' chk_1f --answer" in found["text"] and "tidy in shop on my desk" in found["text"]
    assert "\x1b" not in found["text"]


@pytest.mark.parametrize("change", ["no-intent", "state", "id", "changes", "overlaps"])
def test_what_tells_of_no_end_is_refused(change: str) -> None:
    _, told = done()
    args = told["args"]
    match change:
        case "no-intent":
            del args["intent"]
        case "state":
            args["state"] = "running"
        case "id":
            args["intent"]["id"] = "int_1 --apply"
        case "changes":
            args["about"]["changes"] = {"saved": True}
        case "overlaps":
            args["intent"]["overlaps"] = ["a"]
    with pytest.raises(RequestError) as refused:
        elsewhere.told(args, "desk", "a" * 32, None, 7)
    assert refused.value.code == "bad-arguments"
