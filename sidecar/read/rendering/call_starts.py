"""Leaves out that a call started where its end is shown, too. Pure."""

from __future__ import annotations

from streams.lineage import STEP_STARTED
from streams.store import Record

Placed = tuple[Record, str, int]
"""A record with its place in a list: see ``Lines.print``."""


class Starts:
    """The calls that have started but not ended, in the records so far."""

    def __init__(self) -> None:
        self._starts: dict[str, Placed] = {}

    def holds(self, record: Record, place: str, depth: int) -> bool:
        """Take the next record; true if it is a start, which waits until its call ends."""
        event, payload = record.event, record.event.payload
        session = f"{payload.get('session')}:"
        call = f"{session}{payload.get('part')}"
        if event.type == STEP_STARTED:
            self._starts[call] = record, place, depth
        elif event.type == "execution.step":
            self._starts.pop(call, None)
        elif event.type == "turn.ended":
            self._starts = {each: start for each, start in self._starts.items() if not each.startswith(session)}
        return event.type == STEP_STARTED

    def running(self) -> list[Placed]:
        """The starts that still wait, oldest first."""
        return list(self._starts.values())
