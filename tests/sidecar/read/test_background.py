"""The lines of agents, effects, intents and notices: every type has one, and bookkeeping is not news."""

from __future__ import annotations

from sidecar.background.intents.lifecycle import INTENT, NOTICE
from sidecar.read.background import NEWS, is_news, tell


def test_every_event_of_a_life_cycle_has_a_line() -> None:
    events = {event for table in (INTENT, NOTICE) for row in table.values() for event in row}
    assert [event for event in sorted(events) if tell(event, {}) is None] == []


def test_payloads_of_any_shape_are_told() -> None:
    for type_ in NEWS:
        told = tell(type_, {"intent": ["x"], "reason": {"a": 1}, "title": None, "attempt": "many", "error_code": 5})
        assert told is None or all(isinstance(part, str) for part in told)
    assert tell("effect.failed", {"kind": "http.post", "attempt": 3, "error": "timeout\x1b[2J"}) == (
        "failed",
        "http.post · attempt 3 · timeout",
        "bad",
    )


def test_bookkeeping_is_no_news() -> None:
    assert is_news("ses_1", "execution.step") and is_news("agent/intents", "intent.failed")
    assert not is_news("agent/intents", "agent.received") and not is_news("agent/x/effects", "effect.started")
