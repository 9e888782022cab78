"""Compares a stream on the server with the log that it mirrors, in one pass over both. Pure.

``Comparer`` gets the log's records and the stream's messages, each in order, and
reports the differences:

===============  ===============================================================================
``missing``      the stream lacks a message that it must have
``extra``        the stream has a message that it must not have: a record's second message, or a message of
                 a record that the log never had
``changed``      subject, headers or body differ from what ``messages.mirrored`` returns for the record
``order``        a message comes after a message of a later record; its content is not compared
``unforgotten``  a message still holds a payload that the log has forgotten
===============  ===============================================================================

The following are not differences:

* *Waiting*: records after the last one that was ever mirrored.
* *Expired*: messages that the stream's limits removed. Limits remove only the
  oldest messages of a stream. So a message has expired only if all of this holds,
  and is missing otherwise: the stream has a limit; the record comes before the
  first record of this log that the stream still keeps; no message was removed between the stream's first message and
  the message of that first record (``front_is_whole``); and the record is older than the maximum age, or the stream is
  full. The mirror publishes no L0 message for a record of that age, so for L0 messages the age alone decides.
* *Pruned*: messages of records that the log itself has pruned.
* A pointer or a stub where the record itself would fit, or the reverse: the
  server's size limit was different when the message was published.

If the log has removed the beginning of a stream, or its payloads, the project, depth and turn of the stream's later
records are unknown and not compared.

Memory: two bytes per record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import orjson

from bridge.nats import headers as h
from bridge.nats.jetstream.wire import HeaderBlock, Message
from bridge.nats.l0.context import RecordContext
from bridge.nats.mirror.messages import Mirror, is_forgotten, mirrored
from streams.retention import StreamRemoval
from streams.store import NOTHING, Record

if TYPE_CHECKING:
    from bridge.nats.jetstream.streams import StreamMessage

Kind = Literal["missing", "extra", "changed", "order", "unforgotten"]
Family = Literal["records", "meanings"]
"""Which messages of a record a stream stores: the record itself, or its L0 messages."""

SKEW_MS: Final = 60_000
"""How far the server's clock may be ahead of ours before an expired message is reported as missing."""

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


@dataclass(frozen=True, slots=True)
class Limits:
    """How a stream removes its oldest messages; a ``max_age_ms`` of 0 means no age limit."""

    max_age_ms: int = 0
    is_full: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any], state: Mapping[str, Any], largest: int) -> Limits:
        """The limits in the server's JSON; ``largest`` is the size of the stream's largest message in bytes."""
        most_bytes, most = int(config.get("max_bytes") or 0), int(config.get("max_msgs") or 0)
        full = 0 < most_bytes <= int(state.get("bytes") or 0) + largest
        full = full or 0 < most <= int(state.get("messages") or 0)
        return cls(int(config.get("max_age") or 0) // 1_000_000, full)


@dataclass(slots=True)
class Comparison:
    """The counts for one stream's messages.

    ``first_position`` and ``first_sequence`` describe the log's first message in the stream; ``None`` if there is none.
    """

    stream: str
    messages: int = 0
    compared: int = 0
    pruned: int = 0
    expired: int = 0
    waiting: int = 0
    first_position: int | None = None
    first_sequence: int | None = None
    differences: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        names = ("stream", "messages", "compared", "pruned", "expired", "waiting")
        return {**{name: getattr(self, name) for name in names}, "differences": dict(self.differences)}


class _Current(NamedTuple):
    """The log's newest record, with its messages by the suffix of their id."""

    record: Record
    context: RecordContext
    messages: dict[str, Message]


class Comparer:
    """Compares one stream with one log. Pass each record to ``expect``, then ``take`` every message that ``is_due``
    before the next record. After the last record, ``take`` the remaining messages and call ``finish``.

    ``head`` is the last position of the log; no record after it is passed.
    ``removed`` is what the log has pruned or forgotten. ``now_ms`` is the time, in ms UTC.
    """

    def __init__(
        self,
        stream: str,
        family: Family,
        mirror: Mirror,
        *,
        head: int,
        removed: Mapping[str, StreamRemoval],
        limits: Limits,
        now_ms: int,
    ) -> None:
        self.result = Comparison(stream)
        self._family, self._mirror, self._head = family, mirror, head
        self._removed, self._limits = removed, limits
        # The server's clock may be ahead of ours. The expiry of L0 messages depends only on the publisher's clock.
        skew = SKEW_MS if family == "records" else 0
        self._old_before = now_ms - limits.max_age_ms - skew if limits.max_age_ms else None
        self._wanted, self._seen = bytearray(head + 1), bytearray(head + 1)
        self._current: _Current | None = None
        self._latest = (NOTHING, NOTHING)
        """The position, and the place among the record's messages, of the last message that was in order."""
        self._required = NOTHING
        self._front_is_whole = False

    # --- the two sides ---

    def expect(self, record: Record, context: RecordContext, messages: tuple[Message, ...]) -> None:
        """Add the log's next record; ``messages`` are what ``mirrored`` returns for it."""
        self._current = _Current(record, context, self._mine(messages))
        flags = _THERE
        if self._is_forgotten(record):
            flags |= _FORGOTTEN
        if self._old_before is not None and record.event.ts <= self._old_before:
            flags |= _OLD
        for part in self._current.messages:
            flags |= 1 << _PARTS.index(part)
        self._wanted[record.position] = flags

    def is_due(self, message: StreamMessage) -> bool:
        """Whether this message must be passed to ``take`` before the next record."""
        position = h.read_position(message.headers)
        last = self._current.record.position if self._current is not None else NOTHING
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
        if not self._wanted[position] & _THERE:
            return self._of_no_record(position, message)
        event, part, _ = h.read_message_id(message.headers)
        bit = 1 << _PARTS.index(part) if part in _PARTS else 0
        is_wanted = self._wanted[position] & bit
        current = self._current if self._current and self._current.record.position == position else None
        if current is not None and event != current.record.event.id:
            return self._difference("extra", position, message, "it has the id of another event")
        is_told = self._wanted[position] & _FORGOTTEN and message.headers.get(h.FORM) in ("whole", None)
        told = "it has a payload that the log has forgotten"
        if is_told and not is_wanted:
            return self._difference("unforgotten", position, message, told)
        if self._seen[position] & bit:
            return self._difference("extra", position, message, "the record already has another message")
        # A message that is not wanted now was published when the server had a larger size limit.
        if not is_wanted and not (current and bit and self._fitting(message, current, part)):
            return self._difference("extra", position, message, "the record has no such message")
        self._seen[position] |= bit
        if self.result.first_position is None:
            self.result.first_position, self.result.first_sequence = position, message.sequence
        is_late, self._latest = (position, bit) < self._latest, max((position, bit), self._latest)
        if is_told:
            return self._difference("unforgotten", position, message, told)
        if current is None or is_late:
            return self._difference("order", position, message, "it comes after the message of a later record")
        self.result.compared += 1
        different = self._different(message, current, part)
        if not different:
            return None
        return self._difference("changed", position, message, f"it differs in {', '.join(different)}")

    def finish(self, mirrored_to: int, *, front_is_whole: bool) -> Iterator[Difference]:
        """Yield the missing messages. ``mirrored_to`` is the last position known to be mirrored, or ``NOTHING``.

        ``front_is_whole``: no message was removed between the stream's first message and the first message of this log
        (or the end of the stream, if it has no message of this log).
        """
        self._required = max(mirrored_to, self._latest[0])
        self._front_is_whole = front_is_whole
        first = last = NOTHING
        count = 0
        for position, flags in enumerate(self._wanted):
            lacking = self._count_lacking(position)
            if lacking:
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
        return self._family == "meanings" and message.headers.get(h.LOG) != h.header_text(self._mirror.log)

    def _mine(self, messages: tuple[Message, ...]) -> dict[str, Message]:
        if self._family == "records":
            return {"": messages[-1]}
        return {h.read_message_id(message.headers).part: message for message in messages[:-1]}

    def _is_forgotten(self, record: Record) -> bool:
        gone = self._removed.get(record.event.stream_id)
        return gone is not None and record.offset < gone.forgotten_to and is_forgotten(record.event)

    def _of_no_record(self, position: int, message: StreamMessage) -> Difference | None:
        stream, offset = _stream_and_offset(message)
        if self._family == "meanings" and self._removed:
            pruned = any(gone.first_offset for gone in self._removed.values())
        else:
            gone = self._removed.get(stream or "")
            pruned = gone is not None and offset is not None and offset < gone.first_offset
        if pruned:
            self.result.pruned += 1
            return None
        return self._difference("extra", position, message, "the log has no such record and did not prune one")

    def _fitting(self, message: StreamMessage, current: _Current, part: str) -> Message | None:
        """The message that the mirror would publish to a server with room for exactly this message's body."""
        made = mirrored(current.record, current.context, self._mirror, room=len(message.body))
        return self._mine(made.messages).get(part)

    def _different(self, message: StreamMessage, current: _Current, part: str) -> list[str]:
        expected = current.messages.get(part)
        if expected is None or message.body != expected.body:
            expected = self._fitting(message, current, part) or expected
        assert expected is not None
        gone = self._removed.get(current.record.event.stream_id)
        is_cut = gone is not None and bool(gone.first_offset or gone.forgotten_to)
        different = []
        if message.subject != expected.subject and not (is_cut and _same_place(message.subject, expected.subject)):
            different.append("subject")
        if _lines(message.headers) != _lines(expected.headers):
            there, wanted = dict(message.headers), dict(expected.headers)
            left_out = h.RECURSION_DEPTH if self._removed else ""
            names = {name for name in {*there, *wanted} if not name.startswith("Nats-")} - {left_out}
            different += sorted(name for name in names if there.get(name) != wanted.get(name))
        if message.body != expected.body and not (is_cut and self._family == "meanings"):
            different.append("body")
        return different

    def _lacking(self, position: int) -> int:
        return self._wanted[position] & ~self._seen[position] & _MESSAGES

    def _reason(self, position: int) -> Literal["waiting", "expired", ""]:
        flags = self._wanted[position]
        if position > self._required:
            return "waiting"
        if flags & _OLD and self._family == "meanings":
            return "expired"
        first = self.result.first_position
        is_before = first is None or position < first
        if is_before and self._front_is_whole and (self._limits.is_full or flags & _OLD):
            return "expired"
        return ""

    def _count_lacking(self, position: int) -> int:
        lacking = self._lacking(position).bit_count()
        if not lacking:
            return 0
        reason = self._reason(position)
        if reason:
            setattr(self.result, reason, getattr(self.result, reason) + lacking)
            return 0
        return lacking


def _lines(headers: Mapping[str, str]) -> set[str]:
    """The lines of the headers that describe the record, and not its transport to the server. Equal lines are equal
    headers, so that most messages need no parsing."""
    text = headers.raw.decode("utf-8", "replace") if isinstance(headers, HeaderBlock) else h.header_lines(headers)
    return {line for line in text.split("\r\n") if line[:5] != "Nats-"} - {"NATS/1.0"}


def _stream_and_offset(message: StreamMessage) -> tuple[str | None, int | None]:
    try:
        stream = orjson.loads(message.body)["stream_id"]
    except (ValueError, LookupError, TypeError):
        return None, None
    offset = message.headers.get(h.OFFSET, "")
    return (stream if isinstance(stream, str) else None), int(offset) if offset.isdecimal() else None


def _same_place(one: str, other: str) -> bool:
    """True if two subjects differ at most in their project."""
    if one.startswith("evt."):
        at = 1
    elif one.startswith("cg."):
        at = 2
    else:
        return False
    these, those = one.split("."), other.split(".")
    return these[:at] + these[at + 1 :] == those[:at] + those[at + 1 :]
