"""Which sessions are background work, who is told what they ask, and what an ask says of them."""

from __future__ import annotations

from bridge.opencode.capture.state import CaptureState, SessionState
from sidecar.background.intents.works import Asker, Works
from tests.sidecar.background.world import World


def captured(state: CaptureState, session: str, parent: str | None = None, directory: str = "/w/int_a") -> None:
    state.sessions[session] = SessionState(session, "s", session, parent, known=True, event_id="e")
    state.sessions[session].directory = directory


def test_a_session_belongs_to_the_work_above_it_until_that_ends() -> None:
    world, state = World(), CaptureState()
    works = Works(lambda: world.agent.data, state)
    world.register("a")
    world.settle()
    world.register("b", "ses_int_a")
    world.settle()
    captured(state, "ses_user", directory="/home/ada/shop")
    captured(state, "ses_int_a", "ses_user")
    captured(state, "ses_task", "ses_int_a")
    captured(state, "ses_int_b", "ses_int_a")
    for session in ("ses_int_a", "ses_task"):
        assert works.asker(session) == Asker("int_a", "ses_user", "a", "/p")
    assert works.asker("ses_int_b") == Asker("int_b", "ses_user", "b", "/p"), "the user's session, at any depth"
    assert works.asker("ses_user") == Asker(None, "ses_user", "", "/home/ada/shop")
    assert works.asker("") == Asker(None, None)
    world.ends(world.intent("a"))
    world.settle()
    assert works.asker("ses_int_a") == Asker(None, "ses_int_a", "a", "/p"), "what a person lets it ask later"
    assert works.asker("ses_task").intent is None and works.asker("ses_int_b").intent == "int_b"
