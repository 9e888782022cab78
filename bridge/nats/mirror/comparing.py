"""Compares a stream on the server with the log that it mirrors, in one pass over both. Pure.

A message is compared by what its headers say: position, id, part, hash and form. The hash covers the whole record, so a
reader that wants the bytes can check them itself. ``Comparer`` gets the log's records and the stream's messages, each
in order, and reports the differences:

===============  ===============================================================================
``missing``      the stream lacks a message that it must have
``extra``        the stream has a message that it must not have: a record's second message, or a message of
                 a record that the log never had
``changed``      hash or form are not those of the record
``order``        a message comes after a message of a later record; its hash is not compared
``unforgotten``  a message still holds a payload that the log has forgotten
===============  ===============================================================================

The following are not differences:

* *Waiting*: records after the last one that is in the mirror.
* *Expired*: messages that the stream's limits removed. If the stream is as good as full, that may be every message
  before the first one of this log. L0 messages expire by age.
* *Pruned*: messages of records that the log itself has pruned.
* A pointer or a stub where the record itself would fit, or the reverse: the server's size limit was different when the
  message was published.

Memory: two bytes per record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

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

_THERE, _OLD, _FORGOTTEN = 0x80, 0x40, 0x20
_MESSAGES: Final = 0x1F
_PARTS: Final = ("", "l0", "l0:state")
"""Suffixes of message ids. The index of a suffix is the number of its bit in ``_wanted`` and ``_seen``. A test compares
them with the table.
"""


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
    """Compares one stream with one log. Pass each record to ``expect``, then ``take`` every message that ``is_due``
    before the next record. After the last record, ``take`` the remaining messages and call ``finish``.

    ``head``: the last position of the log; no record after it is passed. ``mirrored_to``: the last record in the
    mirror. ``removed``: what the log has pruned or forgotten. ``old_before_ms``: L0 messages of earlier events may have
    expired. ``is_full``: the stream may have removed its oldest messages.
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
    ) -> None:
        self.result = Comparison(stream)
        self._family, self._log, self._head, self._mirrored_to = family, h.header_text(log_id), head, mirrored_to
        self._removed, self._old_before_ms, self._is_full = removed, old_before_ms, is_full
        self._pruned = {escape(name): gone.first_offset for name, gone in removed.items() if gone.first_offset}
        self._wanted, self._seen = bytearray(head + 1), bytearray(head + 1)
        self._current: Record | None = None
        self._first = head + 1
        """The position of the log's first message in the stream."""
        self._latest = (NOTHING, NOTHING)
        """The position, and the place among the record's messages, of the last message that was in order."""

    # --- the two sides ---

    def expect(self, record: Record, parts: Collection[str]) -> None:
        """Add the log's next record; ``parts`` are the suffixes of its messages' ids in this stream."""
        self._current = record
        flags = _THERE
        gone = self._removed.get(record.event.stream_id)
        if gone is not None and record.offset < gone.forgotten_to and is_forgotten(record.event):
            flags |= _FORGOTTEN
        if record.event.ts <= self._old_before_ms:
            flags |= _OLD
        for part in parts:
            flags |= 1 << _PARTS.index(part)
        self._wanted[record.position] = flags

    def is_due(self, message: StreamMessage) -> bool:
        """Whether this message must be passed to ``take`` before the next record."""
        position = h.read_position(message.headers)
        last = self._current.position if self._current is not None else NOTHING
        return position is None or not last < position <= self._head or self._is_others(message)

    def take(self, message: StreamMessage) -> Difference | None:
        if self._is_others(message):
            return None
        self.result.messages += 1
        position = h.read_position(message.headers)
        if position is None:
            return self._difference("extra", NOTHING, message, "it does not name a record")
        if position > self._head:
            return self._difference("extra", position, message, "the log has no such record")
        wanted = self._wanted[position]
        if not wanted & _THERE:
            return self._of_no_record(position, message)
        event, part, _ = h.read_message_id(message.headers)
        bit = 1 << _PARTS.index(part) if part in _PARTS else 0
        current = self._current if self._current and self._current.position == position else None
        if current is not None and event != current.event.id:
            return self._difference("extra", position, message, "it has the id of another event")
        if wanted & _FORGOTTEN and message.headers.get(h.FORM) != "forgotten":
            self._seen[position] |= bit
            return self._difference("unforgotten", position, message, "it has a payload that the log has forgotten")
        if not wanted & bit:
            return self._difference("extra", position, message, "the record has no such message")
        if self._seen[position] & bit:
            return self._difference("extra", position, message, "the record already has another message")
        self._seen[position] |= bit
        self._first = min(self._first, position)
        is_late, self._latest = (position, bit) < self._latest, max((position, bit), self._latest)
        if current is None or is_late:
            return self._difference("order", position, message, "it comes after the message of a later record")
        self.result.compared += 1
        if self._family == "records" and (what := self._changed(message, current)):
            return self._difference("changed", position, message, f"its {what} is not the record's")
        return None

    def finish(self) -> Iterator[Difference]:
        """Yield the missing messages, and count those that wait or have expired."""
        first = last = NOTHING
        count = 0
        for position, flags in enumerate(self._wanted):
            if lacking := self._count_lacking(position):
                first, last, count = (position if not count else first), position, count + lacking
            elif count and flags & _MESSAGES:
                # A run of missing messages continues across positions that have no messages, such as pruned ones.
                yield self._missing(first, last, count)
                count = 0
        if count:
            yield self._missing(first, last, count)

    def is_missing(self, position: int) -> bool:
        """After ``finish``: whether a message of this record is missing."""
        return bool(self._lacking(position)) and not self._reason(position)

    # --- inside ---

    def _difference(self, kind: Kind, position: int, message: StreamMessage, text: str) -> Difference:
        self.result.differences[kind] += 1
        event = message.headers.get(h.MESSAGE_ID, "").partition(":")[0]
        return Difference(kind, self.result.stream, position, position, message.sequence, text, (event,))

    def _missing(self, first: int, last: int, count: int) -> Difference:
        self.result.differences["missing"] += count
        text = "1 message is missing" if count == 1 else f"{count} messages are missing"
        return Difference("missing", self.result.stream, first, last, None, text)

    def _is_others(self, message: StreamMessage) -> bool:
        """Whether the message is from another home, which uses the same L0 subjects."""
        return self._family == "meanings" and message.headers.get(h.LOG) != self._log

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

    def _lacking(self, position: int) -> int:
        return self._wanted[position] & ~self._seen[position] & _MESSAGES

    def _reason(self, position: int) -> Literal["waiting", "expired", ""]:
        if position > self._mirrored_to:
            return "waiting"
        if self._family == "meanings":
            return "expired" if self._wanted[position] & _OLD else ""
        return "expired" if self._is_full and position < self._first else ""

    def _count_lacking(self, position: int) -> int:
        lacking = self._lacking(position).bit_count()
        if lacking and (reason := self._reason(position)):
            setattr(self.result, reason, getattr(self.result, reason) + lacking)
            return 0
        return lacking
