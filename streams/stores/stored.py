"""A record as a store holds it, byte for byte. A migration copies such records between backends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import NamedTuple, Protocol

import orjson

from streams.event import StreamEvent
from streams.hashing import stored_form_of
from streams.retention import Removal


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
        """The event."""
        return StreamEvent.trusted(orjson.loads(self.event))

    def digest_form(self) -> bytes:
        """The form of the event that the hash chain covers."""
        return stored_form_of(orjson.loads(self.event))[1]


class Copyable(Protocol):
    """What a backend must offer so that a log can migrate to or from it."""

    @property
    def head(self) -> int:
        """Position of the last durable record."""
        ...

    def copy_out(self, *, after: int, most: int) -> AsyncIterator[list[Stored]]:
        """Yield the records from after a position up to the head at the time of the call, in lists of about ``most``
        records; a batch is never split between lists.

        Raises:
            CorruptLog: a record is damaged.
        """
        ...

    async def copy_in(self, records: Sequence[Stored]) -> None:
        """Write whole batches that follow the head, unchanged. The records are durable when this method returns.

        Use this only for a store to which nobody is appending.

        Raises:
            ValueError: the records do not follow the head.
            StoreUnavailable: nothing was written.
        """
        ...

    async def tails(self, among: Collection[str] | None = None) -> dict[str, tuple[int, bytes]]:
        """(next offset, last hash) of every stream, or only of ``among``, if given."""
        ...

    async def removal(self) -> Removal:
        """What was pruned and forgotten. A log with anything removed stays in sqlite."""
        ...
