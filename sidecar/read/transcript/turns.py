"""Folds the records of one session into its turns. Pure.

Records come in position order. Any field of a payload may be missing or of another type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sidecar.read.catalog import TURN_ENDED
from sidecar.read.fields import as_text, model_name
from sidecar.read.past.journal import Kept, Map
from sidecar.read.sums import add_step
from sidecar.read.telling.describe import input_text
from sidecar.read.transcript.model import Turn
from streams.lineage import TURN_STARTED
from streams.store import Record


@dataclass(slots=True)
class TurnFold(Kept):
    """The turns of a session by their messages, in order, without what was said and done in them."""

    turns: dict[str, Turn] = field(default_factory=Map)
    current: Turn | None = None

    def apply(self, record: Record) -> None:
        """Apply one record of the session."""
        fold = _FOLDS.get(record.event.type)
        if fold is not None:
            fold(self, record, record.event.payload)

    def turn(self, message: str) -> Turn:
        """The turn of a user message; without a message, the latest turn."""
        turn = self.turns.get(message) if message else self.current
        if turn is None:
            turn = self.turns[message] = Turn(message)
            self._begun(turn)
            if self.current is None or self.current.outcome or self.current.started_ms is None:
                self.current = turn
        return turn

    def _begun(self, turn: Turn) -> None:
        """Take a turn that is new."""

    def turn_of(self, payload: dict[str, Any]) -> Turn:
        """The turn that a step or an answer belongs to."""
        return self.turn(as_text(payload.get("turn")))

    def asked(self, record: Record, payload: dict[str, Any]) -> None:
        self.turn(as_text(payload.get("message")) or record.event.id).asked = input_text(payload)

    def started(self, record: Record, payload: dict[str, Any]) -> None:
        turn, earlier = self.turn(as_text(payload.get("message"))), self.current
        if earlier is not None and earlier is not turn and earlier.started_ms is not None and not earlier.outcome:
            earlier.outcome = "unknown"  # the earlier turn never ended, because OpenCode died
        turn.model = model_name(payload.get("model"))
        turn.agent = as_text(payload.get("agent")) or record.event.actor
        turn.trigger = as_text(payload.get("trigger"))
        turn.started_ms, turn.ended_ms, turn.outcome = turn.started_ms or record.event.ts, None, ""
        self.current = turn

    def ended(self, record: Record, payload: dict[str, Any]) -> None:
        turn = self.turn(as_text(payload.get("message")))
        turn.outcome = as_text(payload.get("outcome")) or "ended"
        turn.error = as_text(payload.get("error"))
        turn.ended_ms = record.event.ts

    def stepped(self, record: Record, payload: dict[str, Any]) -> None:
        add_step(self.turn_of(payload), payload)

    def spawned(self, record: Record, payload: dict[str, Any]) -> None:
        self.turn_of(payload).spawned.append(as_text(payload.get("child")))


_FOLDS = {
    "human.input": TurnFold.asked,
    "agent.input": TurnFold.asked,
    TURN_STARTED: TurnFold.started,
    TURN_ENDED: TurnFold.ended,
    "execution.step": TurnFold.stepped,
    "agent.spawned": TurnFold.spawned,
}
