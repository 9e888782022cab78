"""Compares a stream on the server with the log that it mirrors, in one pass over both. Pure.

``Comparer`` gets the log's records and the stream's messages, each in order, and
reports the differences:

===============  ===============================================================================
``missing``      the stream lacks a message that it must have
``extra``        the stream has a message that it must not have: a record's second message, or a message of
                 a record that the log never had
``changed``      subject, headers or body differ from what ``messages.mirrored`` returns for the record
``order``        a message comes after a message of a later record
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

Memory: two bytes per record, and up to ``HELD_BYTES`` of records whose messages have not arrived yet.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, Protocol

import orjson

from bridge.nats import headers as h
from bridge.nats.jetstream.wire import HeaderBlock, Message, wire_size
from bridge.nats.l0.context import RecordContext
from bridge.nats.mirror.messages import BATCH_RESERVE, Mirror, is_forgotten, mirrored
from streams.retention import StreamRemoval
from streams.store import NOTHING, Record

Kind = Literal["missing", "extra", "changed", "order", "unforgotten"]
Family = Literal["records", "meanings"]
"""Which messages of a record a stream stores: the record itself, or its L0 messages."""

HELD_RECORDS: Final = 10_000
HELD_BYTES: Final = 32 * 1024 * 1024
SKEW_MS: Final = 60_000
"""How far the server's clock may be ahead of ours before an expired message is reported as missing."""

_OWN: Final = ""
_ID: Final = re.compile(r"([^:]{1,128})((?::[a-z][a-z0-9_]*)*)(?::([1-9][0-9]{0,17}))?")
_POSITION: Final = re.compile(r"0|[1-9][0-9]{0,17}")
_THERE, _OLD, _FORGOTTEN = 0x80, 0x40, 0x20
_PARTS: Final = ("", "l0", "l0:state")
"""Suffixes of message ids. The index of a suffix is the number of its bit in ``_wanted`` and ``_seen``. A test compares
them with the table.
"""


class KeptMessage(Protocol):
    """A message of a stream; ``jetstream.streams.StreamMessage`` is one."""

    @property
    def subject(self) -> str: ...
    @property
    def sequence(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> bytes: ...


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
    """How a stream removes its oldest messages. A ``max_age_ms`` of 0 means no age limit; ``is_full``: the stream has
    no room."""

    max_age_ms: int = 0
    is_full: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any], state: Mapping[str, Any], largest: int) -> Limits:
        """Read the limits from a stream's configuration and state; ``largest`` is the size of its largest message in
        bytes."""
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


class _Held(NamedTuple):
    """A record whose expected messages have not all arrived. ``open`` holds the missing messages; its keys are the
    suffixes of their ids."""

    record: Record
    context: RecordContext
    open: dict[str, Message]
    size: int


class Comparer:
    """Compares one stream with one log. Pass each record to ``expect``, then ``take`` every message that ``is_due``
    before the next record (``takes_exactly`` does both quickly when it returns true). After the last record, ``take``
    the remaining messages and call ``finish``.

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
        self._current: _Held | None = None
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._held_bytes = 0
        self._last = self._latest = NOTHING
        self._required = NOTHING
        self._front_is_whole = False
        self.rebuild = mirror.rebuild
        """Number of the rebuild that published the last message that ``take`` compared."""

    # --- the two sides ---

    def expect(self, record: Record, context: RecordContext, messages: tuple[Message, ...]) -> None:
        """Add the log's next record; ``messages`` are what ``mirrored`` returns for it."""
        mine = messages[-1:] if self._family == "records" else messages[:-1]
        opened: dict[str, Message] = {}
        flags = _THERE
        if self._is_forgotten(record):
            flags |= _FORGOTTEN
        if self._old_before is not None and record.event.ts <= self._old_before:
            flags |= _OLD
        for message in mine:
            part = _OWN if self._family == "records" else _split_id(message.headers[h.MESSAGE_ID])[1]
            flags |= 1 << _PARTS.index(part)
            opened[part] = message
        self._wanted[record.position] = flags
        self._last = record.position
        self._move_on(_Held(record, context, opened, sum(len(message.body) for message in mine) + 1024))

    def takes_exactly(self, message: KeptMessage) -> bool:
        """Take the message and return true if it equals the next expected message byte for byte; otherwise change
        nothing."""
        current, headers = self._current, message.headers
        if current is None or not current.open or not isinstance(headers, HeaderBlock):
            return False
        part, expected = next(iter(current.open.items()))
        if (
            message.body != expected.body
            or message.subject != expected.subject
            or not headers.begins_with(expected.headers)
        ):
            return False
        position, bit = current.record.position, _PARTS.index(part)
        place = position * len(_PARTS) + bit
        if place < self._latest:
            return False
        del current.open[part]
        self._seen[position] |= 1 << bit
        self._latest = place
        self._came(position, message)
        self.result.messages += 1
        self.result.compared += 1
        return True

    def is_due(self, message: KeptMessage) -> bool:
        """Whether this message must be passed to ``take`` before the next record."""
        position = self.position_of(message)
        return position is None or position <= self._last or position > self._head

    def take(self, message: KeptMessage) -> list[Difference]:
        """Take the stream's next message; return its differences."""
        if self._family == "meanings" and message.headers.get(h.LOG) != h.header_text(self._mirror.log):
            return []  # the message is from another home, which uses the same subjects
        self.result.messages += 1
        position = self.position_of(message)
        if position is None:
            return [self._difference("extra", NOTHING, message, "it does not name a record")]
        if position > self._head:
            return [self._difference("extra", position, message, "the log has no such record")]
        if not self._wanted[position] & _THERE:
            return self._of_no_record(position, message)
        event, part, rebuild = _split_id(message.headers.get(h.MESSAGE_ID, ""))
        bit = 1 << _PARTS.index(part) if part in _PARTS else 0
        held = self._known(position)
        if held is not None and event != held.record.event.id:
            return [self._difference("extra", position, message, "it has the id of another event")]
        if not self._wanted[position] & bit & 0x1F:
            return self._not_wanted(position, message, held, part, rebuild)
        if self._seen[position] & bit:
            return [self._difference("extra", position, message, "the record already has another message")]
        self._seen[position] |= bit
        self.rebuild = rebuild
        found = self._content(message, held, part, rebuild)
        place = position * len(_PARTS) + _PARTS.index(part)
        if place < self._latest:
            found.append(self._difference("order", position, message, "it comes after the message of a later record"))
        self._latest = max(self._latest, place)
        self._came(position, message)
        if held is not None:
            held.open.pop(part, None)
            if not held.open:
                self._drop(position)
        return found

    def finish(self, mirrored_to: int, *, front_is_whole: bool) -> Iterator[Difference]:
        """Yield the missing messages. ``mirrored_to`` is the last position known to be mirrored, or ``NOTHING``.

        ``front_is_whole``: no message was removed between the stream's first message and the first message of this log
        (or the end of the stream, if it has no message of this log).
        """
        self._held.clear()
        self._required = max(mirrored_to, self._latest // len(_PARTS) if self._latest != NOTHING else NOTHING)
        self._front_is_whole = front_is_whole
        first = last = NOTHING
        count = 0
        for position in range(self._head + 1):
            lacking = self._count_lacking(position)
            if not lacking:
                continue
            # A run of missing messages continues across positions that have no messages, such as pruned ones.
            if count and any(self._wanted[between] & 0x1F for between in range(last + 1, position)):
                yield self._missing(first, last, count)
                count = 0
            first, last, count = (position if not count else first), position, count + lacking
        if count:
            yield self._missing(first, last, count)

    def is_missing(self, position: int) -> bool:
        """After ``finish``: whether a message of this record is missing."""
        return bool(self._lacking(position)) and not self._reason(position)

    @staticmethod
    def position_of(message: KeptMessage) -> int | None:
        """The position of the record that a message names; ``None`` if the message names no record."""
        text = message.headers.get(h.POSITION, "")
        return int(text) if _POSITION.fullmatch(text) else None

    # --- inside ---

    def _difference(self, kind: Kind, position: int, message: KeptMessage, text: str) -> Difference:
        self.result.differences[kind] += 1
        event = message.headers.get(h.MESSAGE_ID, "").partition(":")[0]
        return Difference(kind, self.result.stream, position, position, message.sequence, text, (event,))

    def _missing(self, first: int, last: int, count: int) -> Difference:
        self.result.differences["missing"] += count
        text = "1 message is missing" if count == 1 else f"{count} messages are missing"
        return Difference("missing", self.result.stream, first, last, None, text)

    def _came(self, position: int, message: KeptMessage) -> None:
        if self.result.first_position is None:
            self.result.first_position, self.result.first_sequence = position, message.sequence

    def _known(self, position: int) -> _Held | None:
        current = self._current
        return current if current is not None and current.record.position == position else self._held.get(position)

    def _move_on(self, held: _Held) -> None:
        """Make this the current record; keep the previous record while messages of it are still expected."""
        before, self._current = self._current, held
        if before is None or not before.open:
            return
        self._held[before.record.position] = before
        self._held_bytes += before.size
        while len(self._held) > HELD_RECORDS or self._held_bytes > HELD_BYTES:
            self._drop(next(iter(self._held)))

    def _drop(self, position: int) -> None:
        gone = self._held.pop(position, None)
        self._held_bytes -= gone.size if gone is not None else 0

    def _is_forgotten(self, record: Record) -> bool:
        gone = self._removed.get(record.event.stream_id)
        return gone is not None and record.offset < gone.forgotten_to and is_forgotten(record.event)

    def _of_no_record(self, position: int, message: KeptMessage) -> list[Difference]:
        stream, offset = _stream_and_offset(message)
        if self._family == "meanings" and self._removed:
            pruned = any(gone.first_offset for gone in self._removed.values())
        else:
            gone = self._removed.get(stream or "")
            pruned = gone is not None and offset is not None and offset < gone.first_offset
        if pruned:
            self.result.pruned += 1
            return []
        return [self._difference("extra", position, message, "the log has no such record and did not prune one")]

    def _not_wanted(
        self, position: int, message: KeptMessage, held: _Held | None, part: str, rebuild: int
    ) -> list[Difference]:
        if self._wanted[position] & _FORGOTTEN:
            return [
                self._difference("unforgotten", position, message, "it contains a payload that the log has forgotten")
            ]
        if held is not None and self._fitting(message, held, part, rebuild) is not None:
            return []  # the message was published when the server had a larger size limit
        return [self._difference("extra", position, message, "the record has no such message")]

    def _content(self, message: KeptMessage, held: _Held | None, part: str, rebuild: int) -> list[Difference]:
        if held is None or part not in held.open:
            return []  # memory no longer holds the record, so its message is reported as out of order
        self.result.compared += 1
        record, expected = held.record, held.open[part]
        if self._is_forgotten(record) and message.headers.get(h.FORM) in ("whole", None):
            return [
                self._difference(
                    "unforgotten", record.position, message, "it contains a payload that the log has forgotten"
                )
            ]
        different = self._different(message, expected, record)
        if different:
            other = self._fitting(message, held, part, rebuild)
            different = different if other is None else self._different(message, other, record)
        if not different:
            return []
        return [self._difference("changed", record.position, message, f"it differs in {', '.join(different)}")]

    def _fitting(self, message: KeptMessage, held: _Held, part: str, rebuild: int) -> Message | None:
        """The message that the mirror would publish to a server whose limit is exactly this message's size."""
        sent = {name: value for name, value in message.headers.items() if _is_ours(name) or name == h.MESSAGE_ID}
        if h.FORM in sent:
            # The mirror measures headers with this longest form, before it knows the real form.
            sent[h.FORM] = "forgotten"
        limit = BATCH_RESERVE + wire_size(sent, len(message.body))
        made = mirrored(held.record, held.context, replace(self._mirror, rebuild=rebuild, max_payload=limit))
        return next((each for each in made.messages if _split_id(each.headers[h.MESSAGE_ID])[1] == part), None)

    def _different(self, message: KeptMessage, expected: Message, record: Record) -> list[str]:
        gone = self._removed.get(record.event.stream_id)
        is_cut = gone is not None and bool(gone.first_offset or gone.forgotten_to)
        different = []
        if message.subject != expected.subject and not (is_cut and _same_place(message.subject, expected.subject)):
            different.append("subject")
        left_out = {h.RECURSION_DEPTH} if self._removed else set()
        names = {name for name in {*message.headers, *expected.headers} if _is_ours(name)} - left_out
        different += sorted(name for name in names if message.headers.get(name) != expected.headers.get(name))
        if message.body != expected.body and not (is_cut and self._family == "meanings"):
            different.append("body")
        return different

    def _lacking(self, position: int) -> int:
        return self._wanted[position] & ~self._seen[position] & 0x1F

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


def _is_ours(name: str) -> bool:
    """True if the publisher set this header, and the header describes the record, not the record's transport to the
    server.
    """
    return not name.startswith("Nats-")


def _split_id(text: str) -> tuple[str, str, int]:
    """The event id, the suffix (see ``_PARTS``) and the rebuild number in a message id; ``""``, ``"?"`` and 0 for an id
    that no mirror made.
    """
    found = _ID.fullmatch(text)
    if found is None:
        return "", "?", 0
    return found[1], found[2][1:], int(found[3] or 0)


def _stream_and_offset(message: KeptMessage) -> tuple[str | None, int | None]:
    try:
        stream = orjson.loads(message.body)["stream_id"]
    except (ValueError, LookupError, TypeError):
        return None, None
    text = message.headers.get(h.OFFSET, "")
    return (stream if isinstance(stream, str) else None), int(text) if _POSITION.fullmatch(text) else None


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
