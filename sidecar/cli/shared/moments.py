"""The moment in a session that a person names: the number of an event, or its id."""

from __future__ import annotations

from collections.abc import Callable

import typer

from sidecar.failure import Failure
from sidecar.read.find_by_id import find_event
from sidecar.read.story.past import Past
from streams.log.reader import LogReader


async def moment_of(reader: LogReader, given: str | None) -> Callable[[Past], int]:
    """A function that returns how many of a session's records count: all without ``given``. It raises ``BadParameter``
    if the session has fewer records, and ``Failure`` if the event is not in the session.

    Raises:
        SelectError: no event has that id, or several have.
    """
    if given is None:
        return lambda past: past.count
    if given.isascii() and given.isdigit() and len(given) < 16:
        return lambda past: _numbered(past, int(given))
    position = (await find_event(reader, given)).position

    def counted(past: Past) -> int:
        found = past.number(position)
        if found is not None:
            return found + 1
        where = f"`durable-stream show {given}` shows where"
        raise Failure("not-found", f"the event {given} is not in {past.session}; {where}")

    return counted


def _numbered(past: Past, number: int) -> int:
    if number >= past.count:
        raise typer.BadParameter(f"the last event of {past.session} is {past.count - 1}, not {number}")
    return number + 1
