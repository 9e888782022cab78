"""Leaves out that a call started where its end is told, too. Pure."""

from __future__ import annotations

from streams.lineage import STEP_STARTED
from streams.store import Record

Told = tuple[Record, str, int]
"""A record with its place in a list: see ``Lines.print``."""


class Starts:
    """The calls that have started but not ended, in the records so far."""

    def __init__(self) -> None:
        self._held: dict[str, Told] = {}

    def holds(self, record: Record, place: str, depth: int) -> bool:
        """Take the next record; true if it is a start, which is held until its call ends."""
        event, payload = record.event, record.event.payload
        session = f"{payload.get('session')}:"
        call = f"{session}{payload.get('part')}"
        if event.type == STEP_STARTED:
            self._held[call] = record, place, depth
        elif event.type == "execution.step":
            self._held.pop(call, None)
        elif event.type == "turn.ended":
            self._held = {each: told for each, told in self._held.items() if not each.startswith(session)}
        return event.type == STEP_STARTED

    def running(self) -> list[Told]:
        """The starts that are still held, oldest first."""
        return list(self._held.values())
