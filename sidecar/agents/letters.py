"""The dead letters of a log, for readers: open letters, and letters that were redriven or dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from sidecar.agents.inputs import DEAD_LETTER
from sidecar.agents.view import DROPPED, REDRIVEN
from streams.query import Filter
from streams.store import Record, StreamReader

State = Literal["open", "redriven", "dropped"]

TYPES: Final = (DEAD_LETTER, REDRIVEN, DROPPED)
_SETTLED: Final[dict[str, State]] = {REDRIVEN: "redriven", DROPPED: "dropped"}


@dataclass(slots=True)
class Letter:
    """A command or event that an agent could not handle.

    ``can_redrive`` is false for a message that was never a command.
    """

    id: str
    agent: str
    type: str
    reason: str
    code: str
    ts: int
    state: State
    can_redrive: bool
    subject: str | None
    attempts: int | None
    record: Record

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "record"}


async def letters_of(reader: StreamReader) -> list[Letter]:
    """All dead letters, oldest first.

    Raises:
        StreamError: the log cannot be read.
    """
    found: dict[str, Letter] = {}
    async for record in reader.query(Filter(types=TYPES)):
        event = record.event
        if not event.stream_id.startswith("agent/"):
            continue
        if event.type == DEAD_LETTER:
            found[event.id] = _letter(record)
        elif (letter := found.get(str(event.payload.get("letter")))) is not None:
            letter.state = _SETTLED[event.type]
    return list(found.values())


def _letter(record: Record) -> Letter:
    event, payload = record.event, record.event.payload
    subject, attempts = payload.get("subject"), payload.get("attempts")
    return Letter(
        event.id,
        event.source.agent,
        str(payload.get("type")),
        str(payload.get("reason")),
        str(payload.get("code") or "agent-failed"),
        event.ts,
        "open",
        "position" in payload or isinstance(payload.get("payload"), dict),
        subject if isinstance(subject, str) else None,
        attempts if isinstance(attempts, int) else None,
        record,
    )
