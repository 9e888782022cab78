"""Whether what an OpenCode 2 service tells of a session shows that numbers without events stand for something."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.opencode.capture.state import SessionState
from bridge.opencode.capture.v2.missing import Told, tells_more
from bridge.opencode.capture.v2.shapes import read_event
from tests.bridge.opencode.playing2 import SERVICE, Player2, Recording, play2

LATE = 2**50


def session() -> SessionState:
    (found,) = play2("chat").translator.state.sessions.values()
    assert found.turn is None and found.last_turn is not None
    return found


def test_what_is_recorded_is_not_more() -> None:
    known, end = session(), session().last_turn
    assert end is not None
    messages: tuple[dict[str, Any], ...] = (
        {"time": {"created": end.started_ms, "completed": end.last_ms}},
        {"time": "odd"},
        {},
    )
    told = Told({"title": known.title}, messages, ({"id": next(iter(known.inputs)), "timeCreated": LATE},))
    assert not tells_more(known, told)
    assert not tells_more(known, Told())


@pytest.mark.parametrize(
    "told",
    [
        Told({"title": "another"}),
        Told(messages=({"time": {"created": LATE}},)),
        Told(messages=({"time": {"created": 1, "completed": LATE}},)),
        Told(waiting=({"id": "msg_new", "timeCreated": LATE},)),
        Told(waiting=({"id": "msg_new", "time": {"created": LATE}},)),
    ],
)
def test_a_message_an_input_or_a_title_that_is_new_is_more(told: Told) -> None:
    assert tells_more(session(), told)
    assert tells_more(session(), told, before_ms=LATE) == bool(told.info)


def test_while_a_turn_is_open_anything_may_be_missing_and_the_gap_does_not_make_it_newer() -> None:
    player, recording = Player2(), Recording("tools")
    player.feed(recording.events()[:30], recording.sessions)
    (known,) = player.translator.state.sessions.values()
    assert known.turn is not None
    assert tells_more(known, Told())
    last_ms = known.turn.last_ms
    player.translator.gap(SERVICE, known.id, known.host_seq, known.host_seq + 9, "no_session_log")
    (gap,) = player.translator.drain().events
    assert gap.ts == last_ms == known.turn.last_ms
    assert known.host_seq == gap.payload["last_seq"]


def test_a_fork_stands_for_the_numbers_that_it_inherits() -> None:
    def reach(type_: str, **data: Any) -> int:
        event = read_event({"id": "e", "type": type_, "durable": {"seq": 0}, "data": {"sessionID": "S", **data}})
        assert event is not None
        return event.reach

    assert reach("session.forked", parentID="P", parentSeq=34) == 34
    assert reach("session.forked", parentID="P", parentSeq=-1) == 0
    assert reach("session.created", parentSeq=34) == 0
