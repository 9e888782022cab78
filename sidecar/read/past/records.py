"""A session as it was after its first N records: the same folds as everywhere else, ended at N.

Nothing here reads a clock or runs an effect, so the same N always gives the same answer.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from zlib import compress, decompress

from sidecar.read.asked import CHECKPOINT
from sidecar.read.catalog import Catalog
from sidecar.read.changes.changes import STEP, TYPES, Changes, TurnChanges, with_diffs
from sidecar.read.changes.edits import file_changes
from sidecar.read.fields import as_text, has_failed
from sidecar.read.past.journal import Journal
from sidecar.read.past.packed import Packed
from sidecar.read.past.spans import Spans
from sidecar.read.select import Family, catalog_of, family_of, find_session, records_of
from sidecar.read.transcript.conversation import Conversation
from sidecar.read.transcript.model import Session
from streams.errors import CorruptLog
from streams.lineage import RETRIED
from streams.log.reader import LogReader
from streams.store import NOTHING, Record

MARK: Final = 256
"""A jump back repeats at most so many records for a conversation, the spans and the changes."""

NEAR: Final = 16
"""A step back repeats at most so many records where somebody stepped already."""

CHUNK: Final = 64
"""How many records are folded at once beside the answers."""

WHOLE: Final = 256
"""A catalog is kept whole at every so many records."""

Mark = Literal["turn", "ask", "error", "edit"]


@dataclass(slots=True)
class _Walk:
    """A fold that has seen the first ``seen`` records, and the way back."""

    fold: Any
    seen: int = 0
    journal: Journal = field(default_factory=Journal)

    def go(self, records: Packed, wanted: int, near: int = NEAR) -> None:
        """Make the fold that of the first ``wanted`` records, with a mark at every ``near`` records before it."""
        while self.seen > wanted:
            self.seen = self.journal.back()
        with self.journal:
            for record in records.between(self.seen, wanted):
                if self.seen % (near if self.seen > wanted - MARK else MARK) == 0:
                    self.journal.mark(self.seen)
                self.fold.apply(record)
                self.seen += 1


@dataclass(slots=True)
class _Counts:
    """A catalog that has seen the first ``seen`` records, and what it was before: it is small, so it is kept whole."""

    fold: Catalog = field(default_factory=Catalog)
    seen: int = 0
    kept: list[tuple[int, bytes]] = field(default_factory=list)
    """After how many records there is a packed catalog, and that catalog; the first of them before any record."""

    def go(self, records: Packed, wanted: int) -> None:
        """Make the catalog that of the first ``wanted`` records."""
        every = WHOLE
        if self.seen > wanted:
            # A reader who steps back often does so again, so keep more catalogs on the way: the next step reads less.
            while self.kept[-1][0] > wanted:
                self.kept.pop()
            self.seen, packed = self.kept[-1]
            self.fold, every = Catalog.load(decompress(packed)), NEAR
        for record in records.between(self.seen, wanted):
            if self.seen % every == 0 and (not self.kept or self.kept[-1][0] < self.seen):
                self.kept.append((self.seen, compress(self.fold.dump(), 1)))
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
    """The number of each record that a person may want to jump to, and what it is. The first record's number is 0."""
    _marked: dict[Mark, array[int]] = field(default_factory=dict)
    """How many records there are up to each mark, by what the record is."""
    fault: CorruptLog | None = None
    before: int = 0
    """How many records come before those that are here; 0 if the session is here as a whole."""
    _seen: int = NOTHING
    """The position up to which the log was read."""
    _erred: set[tuple[str, str]] = field(default_factory=set)
    """The sessions and turns in which an error was recorded."""
    _conversation: _Walk = field(init=False)
    _spans: _Walk = field(init=False)
    _changing: array[int] = field(default_factory=lambda: array("q"))
    _changes: _Walk = field(init=False)
    _catalog: _Counts = field(init=False)

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._conversation = _Walk(Conversation(self.records.at))
        self._spans, self._changes = _Walk(Spans(self.records.at)), _Walk(Changes())
        self._catalog = _Counts()

    async def catch_up(self, reader: LogReader, pause: Callable[[], Awaitable[None]] | None = None) -> None:
        """Read what was recorded since the last call.

        With ``pause``, which is called again and again meanwhile, what was read is folded, too, so that each moment is
        near afterwards.
        """
        head = reader.head
        if head == self._seen:
            return
        await catalog_of(reader)  # it is the family's, and now knows the new sessions
        before = self.family.streams
        self.family.refresh()
        if self.family.streams != before and len(self.records):
            # What a stream that joined had recorded before belongs between the records that are here.
            self.records, self.marks, self._changing, self._seen = Packed(), [], array("q"), NOTHING
            self._marked = {}
            self._begin()
        # Only a session that is opened is read from its beginning.
        records = reader.read_all(after=self._seen) if self._seen > NOTHING else records_of(reader, self.family)
        async for record in records:
            if record in self.family:
                self.add(record)
                if pause is not None and len(self.records) % CHUNK == 0:
                    self._fold()
                    await pause()
            self._seen = record.position
        self.fault = reader.damage
        if self.fault is None:
            self._seen = max(self._seen, head)
        if pause is not None:
            self._fold()

    def _fold(self) -> None:
        for walk in (self._conversation, self._spans, self._changes):
            walk.go(self.records, len(self.records), MARK)
        self._catalog.go(self.records, len(self.records))

    def begin_at(self, begin: int, session: Session) -> None:
        """Let the conversation begin after ``begin`` records, with a session that was there before."""
        conversation = Conversation(self.records.at)
        conversation.know(session)
        self._conversation = _Walk(conversation, begin)
        self._conversation.journal.mark(begin)

    def add(self, record: Record) -> None:
        self.records.append(record)
        if (mark := self._mark_of(record)) is not None:
            self.marks.append((len(self.records) - 1, mark))
            self._marked.setdefault(mark, array("q")).append(len(self.records))
        if mark == "edit" or (record.event.type in TYPES and record.event.type != STEP):
            self._changing.append(len(self.records))

    def _mark_of(self, record: Record) -> Mark | None:
        event, payload = record.event, record.event.payload
        if event.type == "agent.error":
            self._erred.add((as_text(payload.get("session")), as_text(payload.get("turn"))))
        # The error also ends its turn: count it once.
        is_told = (as_text(payload.get("session")), as_text(payload.get("message"))) in self._erred
        return None if event.type == "turn.ended" and is_told else _mark_of(record)

    @property
    def count(self) -> int:
        """How many records the session has."""
        return self.before + len(self.records)

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

    def roots(self, at: int | None = None) -> list[Session]:
        """The sessions of the conversation that are below no call."""
        return self.conversation(at).roots

    def spans(self, at: int | None = None) -> Spans:
        """Where the time went until then."""
        self._spans.go(self.records, self.upto(at))
        found: Spans = self._spans.fold
        return found

    def catalog(self, at: int | None = None) -> Catalog:
        """The counts, costs and open asks at that moment."""
        self._catalog.go(self.records, self.upto(at))
        return self._catalog.fold

    def counts(self, at: int | None = None) -> dict[Mark, int]:
        """How many marks of each kind there are until then."""
        found = {kind: bisect_right(numbers, self.upto(at)) for kind, numbers in self._marked.items()}
        return {kind: count for kind, count in found.items() if count}

    def changed(self, at: int | None = None) -> int:
        """The number of the last record up to then that can matter to ``changes``; 0 if there is none."""
        found = bisect_right(self._changing, self.upto(at))
        return self._changing[found - 1] if found else 0

    def changes(self, at: int | None = None, since: int = 0) -> list[TurnChanges]:
        """The files that agents changed in the records after ``since``, up to ``at``, without diffs."""
        self._changes.go(self.records, self.upto(at))
        after = self.records[since - 1].position if 0 < since <= len(self.records) else NOTHING
        found: list[TurnChanges] = self._changes.fold.turns(after)
        return found

    def with_diffs(self, turns: Iterable[TurnChanges]) -> list[TurnChanges]:
        """Some of these turns with the diffs."""
        return [with_diffs(turn, self.records.at) for turn in turns]


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
    if event.type in ("agent.error", RETRIED, "capture.gap"):
        return "error"
    if event.type == "turn.ended" and payload.get("outcome") == "failed":
        return "error"
    if event.type == "execution.step" and has_failed(payload):
        return "error"
    return "edit" if event.type == "execution.step" and file_changes(payload) else None
