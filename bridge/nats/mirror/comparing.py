"""Compares a stream on the server with the log that it mirrors, in one pass over both. Pure.

A message is compared by what its headers say: position, id, part, hash and form. The hash covers the whole record, so a
reader that wants the bytes can check them itself. ``Comparer`` gets the log's records and the stream's messages, each
in order, and reports the differences:

===============  ===============================================================================
``missing``      the stream lacks a message that it must have
``extra``        the stream has a message that it must not have: a record's second message, or a message of
                 a record that the log never had
``changed``      hash or form are not those of the record
``order``        a message comes behind one of a later record, perhaps a second time; it is not compared
``unforgotten``  a message still holds a payload that the log has forgotten
===============  ===============================================================================

The following are not differences:

* *Waiting*: records after the last one that is in the mirror.
* *Expired*: messages that the stream's limits removed. If the stream is as good as full, that may be every message
  before the first one of this log. L0 messages expire by age.
* *Pruned*: messages of records that the log itself has pruned.
* A pointer or a stub where the record itself would fit, or the reverse: the server's size limit was different when the
  message was published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bridge.nats import headers as h
from bridge.nats.mirror.messages import is_forgotten
from bridge.nats.subjects import escape
from streams.retention import StreamRemoval
from streams.store import NOTHING, Record

if TYPE_CHECKING:
    from bridge.nats.jetstream.streams import StreamMessage

Kind = Literal["missing", "extra", "changed", "order", "unforgotten"]
Family = Literal["records", "meanings"]
"""Which messages of a record a stream stores: the record itself, or its L0 messages."""


class Difference(NamedTuple):
    """One difference between stream and log.

    ``position`` to ``last`` are the affected records: one record, except for ``missing``, which may cover many.
    ``sequence`` is the message's sequence number in the stream, or ``None`` without a message.
    """

    kind: Kind
    stream: str
    position: int
    last: int
    sequence: int | None
    text: str
    events: tuple[str, ...] = ()

    def __str__(self) -> str:
        records = f"record {self.position}" if self.last == self.position else f"records {self.position} to {self.last}"
        where = f"{self.stream}" if self.sequence is None else f"{self.stream}, message {self.sequence}"
        return f"{self.kind}: {where}: {records}: {self.text}"

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


@dataclass(slots=True)
class Comparison:
    """The counts for one stream's messages."""

    stream: str
    messages: int = 0
    compared: int = 0
    pruned: int = 0
    expired: int = 0
    waiting: int = 0
    differences: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        names = ("stream", "messages", "compared", "pruned", "expired", "waiting")
        return {**{name: getattr(self, name) for name in names}, "differences": dict(self.differences)}


class Comparer:
    """Compares one stream with one log. For each record, call ``begin``, then ``take`` every message that ``is_due``,
    then ``end``. After the last record, ``take`` the remaining messages and call ``finish``.

    ``head``: the last position of the log; no record after it is passed. ``mirrored_to``: the last record in the
    mirror. ``removed``: what the log has pruned or forgotten. ``old_before_ms``: L0 messages of earlier events may have
    expired. ``is_full``: the stream may have removed its oldest messages. ``named``: how many missing records a
    difference names by their events at most; with more than one, a run of more records becomes several differences.
    """

    def __init__(
        self,
        stream: str,
        family: Family,
        log_id: str,
        *,
        head: int,
        mirrored_to: int,
        removed: Mapping[str, StreamRemoval],
        old_before_ms: int = 0,
        is_full: bool = False,
        named: int = 1,
    ) -> None:
        self.result = Comparison(stream)
        self._family, self._log, self._head, self._mirrored_to = family, h.header_text(log_id), head, mirrored_to
        self._removed, self._old_before_ms, self._is_full, self._named = removed, old_before_ms, is_full, named
        self._pruned = {escape(name): gone.first_offset for name, gone in removed.items() if gone.first_offset}
        self._record: Record | None = None
        self._before = NOTHING
        """The position of the record before ``_record``."""
        self._parts: Collection[str] = ()
        self._left: list[str] = []
        self._has_begun = False
        self._missing: Difference | None = None
        self._lacking = 0

    def begin(self, record: Record, parts: Collection[str]) -> None:
        """Take the log's next record; ``parts`` are the suffixes of its messages' ids in this stream."""
        self._before = self._record.position if self._record is not None else NOTHING
        self._record, self._parts, self._left = record, parts, list(parts)

    def is_due(self, message: StreamMessage) -> bool:
        """Whether this message must be passed to ``take`` before the record's ``end``."""
        position = h.read_position(message.headers)
        last = self._record.position if self._record is not None else NOTHING
        return position is None or not last < position <= self._head or self._is_others(message)

    def take(self, message: StreamMessage) -> Difference | None:
        if self._is_others(message):
            return None
        self.result.messages += 1
        position, record = h.read_position(message.headers), self._record
        if position is None:
            return self._difference("extra", NOTHING, message, "it does not name a record")
        if position > self._head:
            return self._difference("extra", position, message, "the log has no such record")
        if position <= self._before:
            return self._difference("order", position, message, "it comes after the message of a later record")
        if record is None or position != record.position:
            return self._of_no_record(position, message)
        event, part, _ = h.read_message_id(message.headers)
        if event != record.event.id:
            return self._difference("extra", position, message, "it has the id of another event")
        if self._is_forgotten(record) and message.headers.get(h.FORM) != "forgotten":
            self._left = [each for each in self._left if each != part]
            return self._difference("unforgotten", position, message, "it has a payload that the log has forgotten")
        if part not in self._parts:
            return self._difference("extra", position, message, "the record has no such message")
        if part not in self._left:
            return self._difference("extra", position, message, "the record already has another message")
        self._left.remove(part)
        self._has_begun = True
        self.result.compared += 1
        if self._family == "records" and (what := self._changed(message, record)):
            return self._difference("changed", position, message, f"its {what} is not the record's")
        return None

    def end(self) -> Iterator[Difference]:
        """Yield a run of missing messages that ends before this record."""
        record, count = self._record, len(self._left)
        assert record is not None
        if record.position > self._mirrored_to:
            self.result.waiting += count
        elif count and self._may_have_expired(record):
            self.result.expired += count
        elif count:
            if self._missing is not None and 1 < self._named <= len(self._missing.events):
                yield from self.finish()
            first = self._missing or Difference("missing", self.result.stream, record.position, 0, None, "")
            events = (*first.events, record.event.id)[: self._named]
            self._missing, self._lacking = first._replace(last=record.position, events=events), self._lacking + count
            return
        if self._parts:  # a run continues across records that have no messages
            yield from self.finish()

    def finish(self) -> Iterator[Difference]:
        """Yield the last run of missing messages."""
        if self._missing is not None:
            self.result.differences["missing"] += self._lacking
            text = "1 message is missing" if self._lacking == 1 else f"{self._lacking} messages are missing"
            yield self._missing._replace(text=text)
        self._missing, self._lacking = None, 0

    # --- inside ---

    def _difference(self, kind: Kind, position: int, message: StreamMessage, text: str) -> Difference:
        self.result.differences[kind] += 1
        event = message.headers.get(h.MESSAGE_ID, "").partition(":")[0]
        return Difference(kind, self.result.stream, position, position, message.sequence, text, (event,))

    def _is_others(self, message: StreamMessage) -> bool:
        """Whether the message is from another home, which uses the same L0 subjects."""
        return self._family == "meanings" and message.headers.get(h.LOG) != self._log

    def _is_forgotten(self, record: Record) -> bool:
        gone = self._removed.get(record.event.stream_id)
        return gone is not None and record.offset < gone.forgotten_to and is_forgotten(record.event)

    def _of_no_record(self, position: int, message: StreamMessage) -> Difference | None:
        if self._family == "meanings":
            is_pruned = bool(self._pruned)
        else:
            offset = message.headers.get(h.OFFSET, "")
            stream = message.subject.split(".")[3]
            is_pruned = offset.isdecimal() and int(offset) < self._pruned.get(stream, 0)
        if is_pruned:
            self.result.pruned += 1
            return None
        return self._difference("extra", position, message, "the log has no such record and did not prune one")

    def _changed(self, message: StreamMessage, record: Record) -> str:
        if message.headers.get(h.HASH) != record.hash or message.headers.get(h.OFFSET) != str(record.offset):
            return "hash"
        forms = ("forgotten", "stub") if is_forgotten(record.event) else ("whole", "pointer", "stub")
        return "" if message.headers.get(h.FORM) in forms else "form"

    def _may_have_expired(self, record: Record) -> bool:
        if self._family == "meanings":
            return record.event.ts <= self._old_before_ms
        return self._is_full and not self._has_begun
