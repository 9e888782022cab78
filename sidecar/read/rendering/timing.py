"""How long turns took, and how long steps waited for a person. Both durations depend on earlier records. Pure."""

from __future__ import annotations

from typing import Any, Final

from sidecar.read.ask_text import CHECKPOINT
from sidecar.read.changes.approvals import Approval, add_answer, approval_of
from sidecar.read.fields import as_text, is_number
from streams.event import StreamEvent
from streams.store import Record

STARTED, ENDED = "turn.started", "turn.ended"

_NAMES: Final = ("session", "request", "turn", "call")

LEAST_SHOWN_MS = 1000
"""Steps that took fewer ms are shown without their duration."""


class Timing:
    """A fold over the starts of turns, asks and answers; other records are ignored."""

    def __init__(self) -> None:
        self._asks: dict[tuple[str, str], Approval] = {}
        self._calls: dict[tuple[str, str, str], list[Approval]] = {}
        self._started: dict[tuple[str, str], int] = {}

    def apply(self, record: Record) -> None:
        """Apply one record; applying it again changes nothing."""
        event = record.event
        if event.type == STARTED:
            self._started[_turn(event)] = event.ts
        elif event.type == CHECKPOINT:
            self._checkpoint(record)

    def _checkpoint(self, record: Record) -> None:
        session, request, turn, call = (as_text(record.event.payload.get(each)) for each in _NAMES)
        known = self._asks.get((session, request))
        if record.event.payload.get("state") != "asked":
            if known is not None and known.answer is None:
                known.answer = record
                add_answer(known.ask, record)
        elif known is None or known.asked.event.id != record.event.id:
            known = self._asks[session, request] = approval_of(record, None)
            self._calls.setdefault((session, turn, call), []).append(known)

    def took_ms(self, event: StreamEvent) -> int | None:
        """How long the turn that ends with ``event`` took; ``None`` if the event ends no turn, or if the start of the
        turn is unknown."""
        started = self._started.get(_turn(event)) if event.type == ENDED else None
        return None if started is None else event.ts - started

    def waited_ms(self, event: StreamEvent) -> int:
        """How long the step of ``event`` waited for a person; 0 if its call asked nothing."""
        return sum(each.ask.waited_ms or 0 for each in self._of_step(event))

    def _of_step(self, event: StreamEvent) -> list[Approval]:
        """What the call of a step asked for. Call ids repeat, so the turn and the input must match, too."""
        session, turn, call = (as_text(event.payload.get(each)) for each in ("session", "turn", "call"))
        known = self._calls.get((session, turn, call), ()) if event.type == "execution.step" and call else ()
        return [each for each in known if each.is_about(event.payload)]

    def lacks(self, event: StreamEvent) -> bool:
        """Whether an unseen earlier record may add a duration to ``event``."""
        if event.type == ENDED:
            return _turn(event) not in self._started
        return event.type == "execution.step" and _is_long(event.payload) and not self._of_step(event)


def _is_long(payload: dict[str, Any]) -> bool:
    """True if the step is a call and its duration should be shown."""
    took = payload.get("duration_ms")
    return is_number(took) and took >= LEAST_SHOWN_MS and bool(payload.get("call"))


def _turn(event: StreamEvent) -> tuple[str, str]:
    return str(event.payload.get("session")), str(event.payload.get("message"))
