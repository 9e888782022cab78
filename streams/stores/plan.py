"""Decide what an append writes: keys, expected offsets, places and hashes. Pure.

Every store plans with this module, also the one in memory of the tests, so all give the same records, errors and
hashes. Each plan sees the tails as they will be after all earlier plans, because the appends of one group commit are
planned one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from streams.errors import IdempotencyConflict, InvalidEvent, OffsetConflict
from streams.event import StreamEvent
from streams.hashing import Encoded, chain, encode, is_digest, payload_digest
from streams.retention import Entry, body_digest
from streams.store import MAX_BATCH, OnKnown, Record


class Request(NamedTuple):
    """One ``append`` call, encoded."""

    batch: Sequence[Encoded]
    expected: Mapping[str, int]
    on_known: OnKnown


class Placed(NamedTuple):
    """A new record: its event and where it goes."""

    encoded: Encoded
    offset: int
    position: int
    hash: bytes


@dataclass(slots=True)
class Plan:
    """What to write and, for each requested event in order, its new record or the first record stored under its key."""

    new: list[Placed] = field(default_factory=list)
    answers: list[Placed | Record] = field(default_factory=list)
    differences: int = 0


class Tails(Protocol):
    """What planning needs to know of a log, including earlier plans of the same commit."""

    def next_position(self) -> int:
        """The position the next new record takes."""

    def tail(self, stream_id: str) -> tuple[int, bytes]:
        """(next offset, last hash) of a stream; (0, GENESIS) for a new one."""

    def known(self, key: str) -> Known | None:
        """The record stored or already planned under a key; ``None`` if the key is new."""


Known: TypeAlias = Placed | Record | Entry
"""What is stored or planned under a known key: a new or a stored record, or what is left of a pruned one."""


def equals(known: Known, encoded: Encoded) -> bool:
    """True if an event with the same key has the stored event's type, stream, actor and payload."""
    if isinstance(known, Entry):
        return known.body == body_digest(encoded.body())
    return _body_of(known) == encoded.body()


def _first(known: Known, encoded: Encoded) -> Placed | Record:
    """The stored record. If it was pruned: a record with the pruned record's numbers and the given event."""
    if isinstance(known, Entry):
        return Record(encoded.event, known.offset, known.position, known.hash.hex())
    return known


def _body_of(first: Placed | Record) -> tuple[str, str, str, str]:
    """Type, stream, actor and payload digest of a stored event, even of one whose payload was forgotten."""
    if isinstance(first, Placed):
        return first.encoded.body()
    event = first.event
    return (event.type, event.stream_id, event.actor, payload_digest(event.payload))


def encode_batch(events: Sequence[StreamEvent]) -> list[Encoded]:
    """The events of an ``append``, encoded.

    Raises:
        ValueError: the batch is empty or over ``MAX_BATCH``.
        InvalidEvent: a payload has the form of a forgotten payload, so the two could not be distinguished.
    """
    if not 0 < len(events) <= MAX_BATCH:
        hint = ": split it" if events else ""
        raise ValueError(f"a batch must have 1 to {MAX_BATCH} events, not {len(events)}{hint}")
    batch = [encode(event) for event in events]
    for encoded in batch:
        if len(encoded.event.payload) == 1 and is_digest(encoded.event.payload):
            raise InvalidEvent(
                f"not a valid event: the payload of {encoded.event.idempotency_key} is only a digest, as in a "
                "forgotten event; append the payload itself"
            )
    return batch


def plan(request: Request, tails: Tails) -> Plan:
    """Plan a request against the tails. Changes nothing.

    Raises:
        IdempotencyConflict, OffsetConflict: see ``StreamStore.append``.
    """
    known = [tails.known(encoded.event.idempotency_key) for encoded in request.batch]
    # Nearly every append takes this fast path, which gives the same result as the code below.
    if known == [None] and not request.expected:
        encoded = request.batch[0]
        offset, previous = tails.tail(encoded.event.stream_id)
        placed = Placed(encoded, offset, tails.next_position(), chain(previous, encoded.digest_form))
        return Plan([placed], [placed])
    result = Plan()
    if request.on_known == "conflict" and (len(known) > 1 or known[0] is not None):
        refuse_conflicts(request.batch, known)
    if request.expected:
        _check_expected(request, known, tails)

    moved: dict[str, tuple[int, bytes]] = {}
    in_batch: dict[str, Placed] = {}
    position = tails.next_position()
    for encoded, earlier in zip(request.batch, known, strict=True):
        event = encoded.event
        if earlier is not None:
            result.differences += not equals(earlier, encoded)
            result.answers.append(as_duplicate(_first(earlier, encoded)))
            continue
        if event.idempotency_key in in_batch:
            first = in_batch[event.idempotency_key]
            result.differences += first.encoded.body() != encoded.body()
            result.answers.append(as_duplicate(first))
            continue
        offset, previous = moved.get(event.stream_id) or tails.tail(event.stream_id)
        placed = Placed(encoded, offset, position, chain(previous, encoded.digest_form))
        moved[event.stream_id] = (offset + 1, placed.hash)
        in_batch[event.idempotency_key] = placed
        position += 1
        result.new.append(placed)
        result.answers.append(placed)
    return result


def refuse_conflicts(batch: Sequence[Encoded], known: Sequence[Known | None]) -> None:
    """Refuse an append of ``on_known="conflict"`` that does not simply write, or repeat, all of its events.

    Raises:
        IdempotencyConflict: see ``StreamStore.append``.
    """
    found = [k for k in known if k is not None]
    keys = [encoded.event.idempotency_key for encoded in batch]
    if len(set(keys)) != len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise IdempotencyConflict(twice, "it appears twice in one batch")
    if found and len(found) != len(batch):
        first = next(e for e, k in zip(batch, known, strict=True) if k is not None)
        raise IdempotencyConflict(
            first.event.idempotency_key,
            f"{len(found)} of the batch's {len(batch)} keys are already stored, but the others are not",
        )
    for encoded, earlier in zip(batch, known, strict=True):
        if earlier is not None and not equals(earlier, encoded):
            raise IdempotencyConflict(encoded.event.idempotency_key, "it is already stored with another body")


def _check_expected(request: Request, known: Sequence[Known | None], tails: Tails) -> None:
    if all(k is not None for k in known):
        return
    for stream_id, expected in request.expected.items():
        actual, _ = tails.tail(stream_id)
        if actual != expected:
            raise OffsetConflict(stream_id, expected, actual)


def as_record(placed: Placed | Record, duplicate: bool = False) -> Record:
    if isinstance(placed, Record):
        return placed
    return Record(placed.encoded.event, placed.offset, placed.position, placed.hash.hex(), duplicate)


def as_duplicate(placed: Placed | Record) -> Record:
    if isinstance(placed, Placed):
        return as_record(placed, duplicate=True)
    return Record(placed.event, placed.offset, placed.position, placed.hash, True)
