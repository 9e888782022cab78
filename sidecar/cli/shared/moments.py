"""The moment in a session that a person names: the number of an event, or its id."""

from __future__ import annotations

import typer

from sidecar.failure import Failure
from sidecar.read.past.records import Past
from sidecar.read.select import find_event
from streams.log.reader import LogReader


async def moment_of(reader: LogReader, past: Past, given: str | None) -> int:
    """How many of a session's records count: all without ``given``.

    Raises:
        BadParameter: the session has fewer records.
        SelectError: no event has that id, or several have.
        Failure: the event is not in the session.
    """
    if given is None:
        return len(past.records)
    if given.isascii() and given.isdigit() and len(given) < 16:
        if int(given) >= len(past.records):
            raise typer.BadParameter(f"the last event of {past.session} is {len(past.records) - 1}, not {given}")
        return int(given) + 1
    found = past.records.index((await find_event(reader, given)).position)
    if found is not None:
        return found + 1
    raise Failure("not-found", f"the event {given} is not in {past.session}; `durable-stream show {given}` shows where")
