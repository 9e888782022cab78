"""A record as the log holds it, byte for byte: what moves from the journal to the database."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import orjson

from streams.event import StreamEvent
from streams.hashing import digest_form_of
from streams.store import Record


class EventKeys(msgspec.Struct):
    """The fields of an event by which its record is found. The payload is skipped, not parsed."""

    id: str
    stream_id: str
    idempotency_key: str
    ts: int
    type: str
    actor: str
    correlation_id: str | None
    causation_id: str | None


class Stored(NamedTuple):
    """One record. ``event`` is its canonical JSON; ``batch_index`` and ``batch_count`` are its place in its batch."""

    position: int
    offset: int
    hash: bytes
    batch_index: int
    batch_count: int
    event: bytes
    keys: EventKeys

    def digest_form(self) -> bytes:
        """The form of the event that the hash chain covers."""
        return digest_form_of(self.event)[1]


def as_record(stored: Stored) -> Record:
    event = StreamEvent.trusted(orjson.loads(stored.event), stored.event)
    return Record(event, stored.offset, stored.position, stored.hash.hex())
