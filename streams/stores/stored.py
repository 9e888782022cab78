"""A record as the log holds it, byte for byte: what moves from the journal to the database."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from streams.event import StreamEvent
from streams.hashing import digest_form_of


class Stored(NamedTuple):
    """One record. ``event`` is its canonical JSON; ``batch_index`` and ``batch_count`` are its place in its batch."""

    position: int
    offset: int
    hash: bytes
    batch_index: int
    batch_count: int
    event: bytes

    def begun(self) -> int:
        """The position of the first record in this record's batch, which identifies the batch."""
        return self.position - self.batch_index

    def parse(self) -> StreamEvent:
        return StreamEvent.trusted(orjson.loads(self.event), self.event)

    def digest_form(self) -> bytes:
        """The form of the event that the hash chain covers."""
        return digest_form_of(self.event)[1]
