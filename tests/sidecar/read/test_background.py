"""The lines of agents, effects, intents and notices: every type has one, and bookkeeping is not news."""

from __future__ import annotations

from sidecar.background.intents.lifecycle import INTENT, NOTICE
from sidecar.read.telling.describe import KINDS, Line, describe, is_news
from tests.streams.builders import event


def test_every_event_of_a_life_cycle_has_a_line() -> None:
    events = {event for table in (INTENT, NOTICE) for row in table.values() for event in row}
    assert sorted(events - set(KINDS)) == []


def test_payloads_of_any_shape_are_told() -> None:
    odd = {"intent": ["x"], "reason": {"a": 1}, "title": None, "attempt": "many", "error_code": 5, "type": [{}]}
    for type_ in KINDS:
        assert describe(event(type_=type_, payload=odd)).label
    payload = {"kind": "http.post", "attempt": 3, "error": "timeout\x1b[2J"}
    told = describe(event(type_="effect.failed", payload=payload))
    assert told == Line("failed", "http.post · attempt 3 · timeout", "bad")


def test_bookkeeping_is_no_news() -> None:
    assert is_news("ses_1", "execution.step") and is_news("agent/intents", "intent.failed")
    assert not is_news("agent/intents", "agent.received") and not is_news("agent/x/effects", "effect.started")
