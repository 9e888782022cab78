"""How long turns took, and how long steps waited for a person. Both durations depend on earlier records. Pure."""

from __future__ import annotations

from typing import Any

from sidecar.read.asked import CHECKPOINT
from sidecar.read.changes.approvals import Approvals
from sidecar.read.fields import is_number
from streams.event import StreamEvent
from streams.store import Record

STARTED, ENDED = "turn.started", "turn.ended"

LEAST_SHOWN_MS = 1000
"""Steps that took fewer ms are shown without their duration."""


class Timing:
    """A fold over the starts of turns, asks and answers; other records are ignored."""

    def __init__(self) -> None:
        self.approvals = Approvals()
        self._started: dict[tuple[str, str], int] = {}

    def apply(self, record: Record) -> None:
        """Apply one record; applying it again changes nothing."""
        event = record.event
        if event.type == STARTED:
            self._started[_turn(event)] = event.ts
        elif event.type == CHECKPOINT:
            self.approvals.apply(record)

    def took_ms(self, event: StreamEvent) -> int | None:
        """How long the turn that ends with ``event`` took; ``None`` if the event ends no turn, or if the start of the
        turn is unknown."""
        started = self._started.get(_turn(event)) if event.type == ENDED else None
        return None if started is None else event.ts - started

    def waited_ms(self, event: StreamEvent) -> int:
        """How long the step of ``event`` waited for a person."""
        return self.approvals.waited_ms(event.payload) if event.type == "execution.step" else 0

    def lacks(self, event: StreamEvent) -> bool:
        """Whether an unseen earlier record may add a duration to ``event``."""
        if event.type == ENDED:
            return _turn(event) not in self._started
        return event.type == "execution.step" and _is_long(event.payload) and not self.approvals.of_step(event.payload)


def _is_long(payload: dict[str, Any]) -> bool:
    """True if the step is a call and its duration should be shown."""
    took = payload.get("duration_ms")
    return is_number(took) and took >= LEAST_SHOWN_MS and bool(payload.get("call"))


def _turn(event: StreamEvent) -> tuple[str, str]:
    return str(event.payload.get("session")), str(event.payload.get("message"))
