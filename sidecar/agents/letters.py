"""The dead letters of a log, for readers: open letters, and letters that were redriven or dropped."""

from __future__ import annotations

from typing import Final

from sidecar.agents.inputs import DEAD_LETTER
from sidecar.agents.view import DROPPED, REDRIVEN, DeadLetter
from streams.query import Filter
from streams.store import StreamReader

TYPES: Final = (DEAD_LETTER, REDRIVEN, DROPPED)


async def letters_of(reader: StreamReader) -> list[DeadLetter]:
    """All dead letters, oldest first.

    Raises:
        StreamError: the log cannot be read.
    """
    found: dict[str, DeadLetter] = {}
    async for record in reader.query(Filter(types=TYPES)):
        event = record.event
        if not event.stream_id.startswith("agent/"):
            continue
        if event.type == DEAD_LETTER:
            found[event.id] = DeadLetter.of(record)
        elif (letter := found.get(str(event.payload.get("letter")))) is not None:
            letter.state = "redriven" if event.type == REDRIVEN else "dropped"
    return list(found.values())
