"""A session as it was after its first N records: the same folds as everywhere else, ended at N.

Nothing here reads a clock or runs an effect, so the same N always gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sidecar.read.asked import CHECKPOINT
from sidecar.read.catalog import Catalog
from sidecar.read.changes.changes import Changes
from sidecar.read.changes.edits import file_changes
from sidecar.read.past.journal import Journal
from sidecar.read.past.packed import Packed
from sidecar.read.past.spans import Spans
from sidecar.read.select import Family, catalog_of, family_of, find_session, records_of
from sidecar.read.transcript.conversation import Conversation
from streams.errors import CorruptLog
from streams.log.reader import LogReader
from streams.store import NOTHING, Record

MARK: Final = 64
"""A step back repeats at most so many records for a conversation and the spans."""

WHOLE: Final = 256
"""A catalog is kept whole at every so many records."""

Mark = Literal["turn", "ask", "error", "edit"]


@dataclass(slots=True)
class _Walk:
    """A fold that has seen the first ``seen`` records, and the way back."""

    fold: Any
    seen: int = 0
    journal: Journal = field(default_factory=Journal)

    def go(self, records: Packed, wanted: int) -> None:
        """Make the fold that of the first ``wanted`` records."""
        while self.seen > wanted:
            self.seen = self.journal.back()
        with self.journal:
            for record in records.between(self.seen, wanted):
                if self.seen % MARK == 0:
                    self.journal.mark(self.seen)
                self.fold.apply(record)
                self.seen += 1


@dataclass(slots=True)
class _Counts:
    """A catalog that has seen the first ``seen`` records, and what it was before: it is small, so it is kept whole."""

    fold: Catalog = field(default_factory=Catalog)
    seen: int = 0
    kept: list[bytes] = field(default_factory=list)
    """The catalog at every so many records, the first of them before any."""

    def go(self, records: Packed, wanted: int) -> None:
        """Make the catalog that of the first ``wanted`` records."""
        if self.seen > wanted:
            del self.kept[wanted // WHOLE + 1 :]
            self.fold, self.seen = Catalog.load(self.kept[-1]), (len(self.kept) - 1) * WHOLE
        for record in records.between(self.seen, wanted):
            if self.seen == len(self.kept) * WHOLE:
                self.kept.append(self.fold.dump())
            self.fold.apply(record)
            self.seen += 1


@dataclass(slots=True)
class Past:
    """The records of one session and everything that it started, oldest first, and folds of them.

    ``session`` is the session whose page it is. ``records`` grows with the log: see ``catch_up``. ``fault`` is the
    damage that ended reading, if any.
    """

    stream: str
    session: str
    family: Family
    records: Packed = field(default_factory=Packed)
    marks: list[tuple[int, Mark]] = field(default_factory=list)
    """The number of each record that a person may want to jump to, and what it is."""
    fault: CorruptLog | None = None
    _seen: int = NOTHING
    """The position up to which the log was read."""
    _conversation: _Walk = field(default_factory=lambda: _Walk(Conversation()))
    _spans: _Walk = field(default_factory=lambda: _Walk(Spans()))
    _catalog: _Counts = field(default_factory=_Counts)

    async def catch_up(self, reader: LogReader) -> None:
        """Read what was recorded since the last call."""
        await catalog_of(reader)  # it is the family's, and now knows the new sessions
        before = self.family.streams
        self.family.refresh()
        if self.family.streams != before and len(self.records):
            # What a stream that joined had recorded before belongs between the records that are here.
            self.records, self.marks, self._seen = Packed(), [], NOTHING
            self._conversation, self._spans, self._catalog = _Walk(Conversation()), _Walk(Spans()), _Counts()
        head = reader.head
        # Only a session that is opened is read from its beginning.
        records = reader.read_all(after=self._seen) if self._seen > NOTHING else records_of(reader, self.family)
        try:
            async for record in records:
                if record in self.family:
                    self.add(record)
                self._seen = record.position
        except CorruptLog as error:
            self.fault = error
        else:
            self._seen = max(self._seen, head)

    def add(self, record: Record) -> None:
        """Take the next record."""
        self.records.append(record)
        if (mark := _mark_of(record)) is not None:
            self.marks.append((len(self.records), mark))

    def upto(self, at: int | None) -> int:
        """How many records count: all without ``at``, never more than there are."""
        return len(self.records) if at is None else max(0, min(at, len(self.records)))

    def last_ts(self, at: int | None = None) -> int:
        """When the last of these records was made; 0 if there is none."""
        upto = self.upto(at)
        return self.records[upto - 1].event.ts if upto else 0

    # What these methods return is the caller's until the next call of the same method.

    def conversation(self, at: int | None = None) -> Conversation:
        """The conversation after ``at`` records."""
        self._conversation.go(self.records, self.upto(at))
        found: Conversation = self._conversation.fold
        return found

    def spans(self, at: int | None = None) -> Spans:
        """Where the time went until then."""
        self._spans.go(self.records, self.upto(at))
        found: Spans = self._spans.fold
        return found

    def catalog(self, at: int | None = None) -> Catalog:
        """The counts, costs and open asks at that moment."""
        self._catalog.go(self.records, self.upto(at))
        return self._catalog.fold

    def changes(self, at: int | None = None, since: int = 0) -> Changes:
        """The files that agents changed in the records after ``since``, up to ``at``."""
        # A turn may have begun before: its prompt is needed, its earlier edits are not.
        found = Changes(with_diffs=True)
        upto = self.upto(at)
        for number, record in enumerate(self.records.between(0, upto), 1):
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
