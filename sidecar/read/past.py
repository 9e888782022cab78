"""A session as it was after its first N records: the same folds as everywhere else, ended at N.

Nothing here reads a clock or runs an effect, so the same N always gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from sidecar.read.asked import CHECKPOINT
from sidecar.read.catalog import Catalog
from sidecar.read.changes.changes import Changes
from sidecar.read.changes.edits import file_changes
from sidecar.read.select import Family, family_of, find_session, records_of
from sidecar.read.spans import Spans
from sidecar.read.transcript.conversation import Conversation
from streams.errors import CorruptLog
from streams.log.reader import LogReader
from streams.store import NOTHING, Record

Mark = Literal["turn", "ask", "error", "edit"]


class Fold(Protocol):
    """What a fold has in common."""

    def apply(self, record: Record) -> None:
        """Apply one record."""


F = TypeVar("F", bound=Fold)


@dataclass(slots=True)
class _Kept:
    """A fold that has seen the first ``seen`` records."""

    fold: Any
    seen: int = 0


@dataclass(slots=True)
class Past:
    """The records of one session and everything that it started, oldest first, and folds of them.

    ``session`` is the session whose page it is. ``records`` grows with the log: see ``catch_up``. ``fault`` is the
    damage that ended reading, if any.
    """

    stream: str
    session: str
    family: Family
    records: list[Record] = field(default_factory=list)
    marks: list[tuple[int, Mark]] = field(default_factory=list)
    """The number of each record that a person may want to jump to, and what it is."""
    fault: CorruptLog | None = None
    _folds: dict[str, _Kept] = field(default_factory=dict)

    async def catch_up(self, reader: LogReader) -> None:
        """Read what was recorded since the last call."""
        after = self.records[-1].position if self.records else NOTHING
        try:
            async for record in records_of(reader, self.family, after=after):
                self.add(record)
        except CorruptLog as error:
            self.fault = error

    def add(self, record: Record) -> None:
        """Take the next record."""
        self.records.append(record)
        if (mark := _mark_of(record)) is not None:
            self.marks.append((len(self.records), mark))

    def upto(self, at: int | None) -> int:
        """How many records count: all without ``at``, never more than there are."""
        return len(self.records) if at is None else max(0, min(at, len(self.records)))

    def fold(self, name: str, make: Callable[[], F], at: int | None) -> F:
        """A fold of the first ``at`` records. It is the caller's until the next call of this method.

        A step forward continues the fold that is there; a step back starts again.
        """
        wanted = self.upto(at)
        kept = self._folds.get(name)
        if kept is None or kept.seen > wanted:
            kept = self._folds[name] = _Kept(make())
        for record in self.records[kept.seen : wanted]:
            kept.fold.apply(record)
        kept.seen = wanted
        found: F = kept.fold
        return found

    def conversation(self, at: int | None = None) -> Conversation:
        """The conversation after ``at`` records."""
        return self.fold("conversation", Conversation, at)

    def spans(self, at: int | None = None) -> Spans:
        """Where the time went until then."""
        return self.fold("spans", Spans, at)

    def catalog(self, at: int | None = None) -> Catalog:
        """The counts, costs and open asks at that moment."""
        return self.fold("catalog", Catalog, at)

    def changes(self, at: int | None = None, since: int = 0) -> Changes:
        """The files that agents changed in the records after ``since``, up to ``at``."""
        # A turn may have begun before: its prompt is needed, its earlier edits are not.
        found = Changes(with_diffs=True)
        upto = self.upto(at)
        for number, record in enumerate(self.records[:upto], 1):
            if number > since or record.event.type != "execution.step":
                found.apply(record)
        return found


async def open_past(reader: LogReader, given: str) -> Past:
    """The records so far of the session that ``given`` names, and of everything that it started.

    Raises:
        SelectError: there is no match, or more than one.
    """
    stream, session = await find_session(reader, given)
    past = Past(stream, session or stream, await family_of(reader, stream, session=session))
    await past.catch_up(reader)
    return past


def _mark_of(record: Record) -> Mark | None:
    event, payload = record.event, record.event.payload
    if event.type == "turn.started":
        return "turn"
    if event.type == CHECKPOINT:
        return "ask" if payload.get("state") == "asked" else None
    if event.type in ("agent.error", "capture.gap") or (
        event.type == "turn.ended" and payload.get("outcome") == "failed"
    ):
        return "error"
    if event.type == "execution.step" and payload.get("status") == "error":
        return "error"
    return "edit" if event.type == "execution.step" and file_changes(payload) else None


def counted(marks: Iterable[tuple[int, Mark]], upto: int) -> dict[str, int]:
    """How many marks of each kind there are up to a record."""
    found: dict[str, int] = {}
    for number, mark in marks:
        if number <= upto:
            found[mark] = found.get(mark, 0) + 1
    return found
