"""Finding what a person named: a stream or an event by its id, or by a beginning or end of it that is unique."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from difflib import get_close_matches
from pathlib import Path
from typing import cast

from sidecar.cli.command import Failure
from streams.event import ULID_TEXT
from streams.lineage import Lineage
from streams.query import Filter
from streams.store import NOTHING, Record
from streams.stores.jsonl_reader import JsonlReader

_SHOWN = 5
"""Near matches that an error names."""

LINEAGE = Filter(types=("lifecycle.session.*", "lineage.linked"))


def open_reader(store: Path) -> JsonlReader:
    """The log beside a running sidecar, or of a stopped one; one that does not exist yet reads as empty."""
    return JsonlReader(store)


async def find_stream(reader: JsonlReader, given: str) -> str:
    """The stream that ``given`` names.

    Raises:
        Failure: there is none, or several; names some.
    """
    known = await first(reader.read(given))
    if known is not None:
        return known.event.stream_id
    seen: dict[str, None] = {}
    lineage = Lineage()
    async for record in reader.read_all():
        seen[record.event.stream_id] = None
        lineage.apply(record)
    if not seen:
        raise Failure(f"the log holds no stream yet, so not {given!r} either; {EMPTY_HINT}")
    found = [stream for stream in seen if stream.startswith(given)] or [s for s in seen if s.endswith(given)]
    if len(found) == 1:
        return found[0]
    if found:
        raise Failure(f"{given!r} fits {len(found)} streams: {_some(found)}; give more of the id")
    inner = lineage.sessions.get(given)
    if inner is not None:
        raise Failure(f"{given!r} is a session in the stream {inner.stream}; name that stream")
    near = get_close_matches(given, seen, n=_SHOWN, cutoff=0.5) or [s for s in seen if given.lower() in s.lower()]
    hint = f"near it: {_some(near)}" if near else "`durable-stream streams` lists what there is"
    raise Failure(f"there is no stream {given!r}; {hint}")


async def find_event(reader: JsonlReader, given: str) -> Record:
    """The record whose event id is ``given``, begins or ends with it; case does not matter.

    Raises:
        Failure: there is none, or several; names some.
    """
    wanted = given.upper()
    if ULID_TEXT.fullmatch(wanted):
        record = await reader.find_event(wanted)
        if record is not None:
            return record
    begins: list[Record] = []
    ends: list[Record] = []
    near: list[str] = []
    async for record in reader.read_all():
        identifier = record.event.id
        if len(wanted) >= 3 and identifier.startswith(wanted):
            begins.append(record)
        elif len(wanted) >= 3 and identifier.endswith(wanted):
            ends.append(record)
        elif len(near) < _SHOWN and _is_near(identifier, wanted):
            near.append(identifier)
        del begins[_SHOWN + 1 :], ends[_SHOWN + 1 :]
    found = begins or ends
    if len(found) == 1:
        return found[0]
    if found:
        count = "several" if len(found) > _SHOWN else str(len(found))
        raise Failure(f"{given!r} fits {count} events: {_some([r.event.id for r in found])}; give more of the id")
    hint = f"near it: {_some(near)}" if near else "`durable-stream log STREAM` and `query` show ids"
    raise Failure(f"there is no event {given!r}; {hint}")


async def first(records: AsyncIterator[Record]) -> Record | None:
    """The first record, or ``None``; what was open for the others is closed at once."""
    async with aclosing(cast("AsyncGenerator[Record, None]", records)) as source:
        async for record in source:
            return record
    return None


class Family:
    """The streams that belong to one root session, joined by ``lineage.linked``; grows as records are applied."""

    def __init__(self, stream: str, lineage: Lineage | None = None, *, only: bool = False) -> None:
        self.stream, self.lineage, self._only = stream, lineage or Lineage(), only
        self.streams: set[str] = set()
        self._refresh()

    def apply(self, record: Record) -> set[str]:
        """Take a record in position order; returns the streams that this one joined to the family."""
        before = self.streams
        self.lineage.apply(record)
        if record.event.type.startswith(("lifecycle.", "lineage.")):
            self._refresh()
        return self.streams - before

    def _refresh(self) -> None:
        session = next((s for s in self.lineage.sessions.values() if s.stream == self.stream), None)
        if session is None or self._only:
            self.streams = {self.stream}
        else:
            self.streams = {self.stream, *self.lineage.streams_of(session.id)}

    def __contains__(self, record: Record) -> bool:
        return record.event.stream_id in self.streams

    def depth(self, record: Record) -> int:
        """How many sessions stand above the record's; 0 for a root and for what belongs to no session."""
        session = record.event.payload.get("session")
        depth, seen = 0, set[str]()
        while isinstance(session, str) and session in self.lineage.sessions and session not in seen:
            seen.add(session)
            session = self.lineage.sessions[session].parent
            depth += isinstance(session, str) and session in self.lineage.sessions
        return depth


async def family_of(reader: JsonlReader, stream: str, *, only: bool = False) -> Family:
    """The family of ``stream``; ``only`` leaves the joined streams out."""
    lineage = Lineage()
    async for record in reader.query(LINEAGE):
        lineage.apply(record)
    return Family(stream, lineage, only=only)


async def records_of(
    reader: JsonlReader, family: Family, *, after: int = NOTHING, up_to: int | None = None
) -> AsyncIterator[Record]:
    """The family's records in position order, above ``after``, not above ``up_to``."""
    if len(family.streams) == 1 and after == NOTHING:
        source = reader.read(family.stream)
    else:
        source = reader.read_all(after=after)
    async for record in source:
        if up_to is not None and record.position > up_to:
            return
        if record in family:
            yield record


EMPTY_HINT = "install the plugin with `durable-stream install` and work in OpenCode, or look at `durable-stream status`"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _is_near(identifier: str, wanted: str) -> bool:
    if len(wanted) < 3:
        return False
    return (
        wanted in identifier or identifier[-4:] == wanted[-4:] or (len(wanted) >= 12 and identifier[:12] == wanted[:12])
    )
