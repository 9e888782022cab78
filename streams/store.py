"""The append-only log: the one interface every backend implements.

Two numbers locate a record, and they are never interchangeable:

* ``offset``   - place within one stream: 0, 1, 2, ...
* ``position`` - place within the whole log: 0, 1, 2, ...

Both are assigned densely; pruning leaves holes and never renumbers, so
compare, never subtract.

``StreamReader`` is what a reader needs, also in another process next to a
running sidecar; ``StreamStore`` adds the one write and the live tail.

Backends: memory, jsonl, sqlite. Each passes ``tests/streams/store_contract.py``.
This module does no I/O.

Source: seed 004, 2.2 (IStreamStore); seed 003, "Idempotency Check"; seed 002, 4.1 (CAS).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from streams.event import StreamEvent
from streams.query import Filter
from streams.retention import Forgotten, Gone, Pruned, StreamSize

MAX_BATCH = 512
"""Most events one ``append`` takes; bounds how long the writer is held."""

NOTHING = -1
"""The head of an empty log, and the cursor of a reader that has read nothing."""

OnKnown = Literal["conflict", "keep_first"]
"""What ``append`` does with a key that is already stored: refuse differences, or keep the first."""


class Record(NamedTuple):
    """An event together with where the log put it.

    ``hash`` is the stream's chain hash at this offset, in hex. ``duplicate``
    is true when this append wrote nothing because the idempotency key was
    already stored; the event and the numbers are then the first write's.
    """

    event: StreamEvent
    offset: int
    position: int
    hash: str
    duplicate: bool = False

    def as_json(self) -> dict[str, Any]:
        """The record as commands print it: ``{event, offset, position, hash}``."""
        return {
            "event": self.event.fields(),
            "offset": self.offset,
            "position": self.position,
            "hash": self.hash,
        }


class Snapshot(NamedTuple):
    """A projection's state after the record at ``position``; ``version`` is the form of ``state``."""

    version: int
    position: int
    state: bytes


class StreamReader(Protocol):
    """Reading a log. Every method sees only durable records: nothing above ``head``."""

    @property
    def head(self) -> int:
        """Position of the last durable record; ``NOTHING`` for an empty log."""
        ...

    def read(self, stream_id: str, *, from_offset: int = 0) -> AsyncIterator[Record]:
        """Replay one stream from ``from_offset`` (inclusive) to the tail seen at call time.

        An unknown stream yields nothing: absence is not an error, since the
        first hook of a session can arrive after its first reader.

        Raises:
            CorruptLog: a record below head is damaged; what came before was yielded.
        """
        ...

    def read_all(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        """Every record with a position greater than ``after``, in position order, to the head at call time."""
        ...

    def query(self, wanted: Filter) -> AsyncIterator[Record]:
        """The records that match ``wanted`` across streams, in position order; finding none is not an error."""
        ...

    async def find(self, idempotency_key: str) -> Record | None:
        """The record stored under a key, or ``None``."""
        ...

    async def removed(self) -> dict[str, Gone]:
        """What was pruned and forgotten, by stream; streams that lost nothing are not named."""
        ...

    async def close(self) -> None:
        """Release everything. Idempotent; running appends finish first."""
        ...


class StreamStore(StreamReader, Protocol):
    """Ordered, durable, replayable storage for events, with one writer."""

    async def append(
        self,
        events: Sequence[StreamEvent],
        *,
        expected: Mapping[str, int] | None = None,
        on_known: OnKnown = "conflict",
    ) -> list[Record]:
        """Write all of ``events`` or none, across their streams; one record each, in order.

        When this returns, the batch survives ``kill -9`` and power loss.
        Cancelling leaves it wholly written or wholly absent: retry with the
        same keys to find out. ``expected`` maps a stream id to the offset its
        first new record must take.

        Keys are checked before ``expected``. A batch whose keys are all
        known, with the same bodies (type, stream, actor, payload), returns the
        first records with ``duplicate=True``. ``on_known="keep_first"`` writes
        what is new and keeps the first record of what is known, also when the
        body differs (counted in ``differences``).

        Raises:
            ValueError: the batch is empty or over ``MAX_BATCH``.
            InvalidEvent: a payload is only a digest, as of a forgotten one.
            OffsetConflict: another writer moved a stream past its expected offset.
            IdempotencyConflict: ``on_known="conflict"`` and a key is stored with
                another body, stands twice in the batch, or only part of the batch is known.
            StoreUnavailable: disk full, failed, or closed. Safe to retry after reopening.
        """
        ...

    def subscribe(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        """Every record after position ``after``, then each new one as it becomes durable, without end.

        Nothing is skipped and nothing is buffered without bound: a slow
        subscriber reads from the log at its own pace. Ends when the store
        closes; cancelling it is safe.
        """
        ...

    async def cursor(self, name: str) -> int:
        """The position that a named reader reached; ``NOTHING`` for a new one, or when the hint was lost.

        ``name``: small letters, digits and ``-``, 63 at most; else ``ValueError``.
        """
        ...

    async def advance(self, name: str, position: int) -> None:
        """Remember how far a named reader is. A hint: after a crash it may be an earlier one, or none."""
        ...

    async def snapshot(self, name: str, version: int) -> Snapshot | None:
        """A projection's last snapshot in this form and not beyond head; ``None``: fold from the beginning."""
        ...

    async def put_snapshot(self, name: str, snapshot: Snapshot) -> None:
        """Keep a projection's state in place of the one before. A hint, as a cursor is."""
        ...

    async def sizes(self) -> list[StreamSize]:
        """Every stream that holds records, by name: what a retention policy decides by. May read the whole log."""
        ...

    @property
    def differences(self) -> int:
        """How many ``keep_first`` appends met a known key with another body."""
        ...


class RetentionStore(StreamStore, Protocol):
    """A store from which records can be removed: memory, sqlite, and a ``Log``, which moves to sqlite for it."""

    async def prune(self, cuts: Mapping[str, int], *, at_ms: int) -> Pruned:
        """Remove the records of each named stream below an offset, durably; ``at_ms`` is the time, in ms UTC.

        An offset at or beyond the stream's end removes all there is; unknown
        streams and offsets that are gone already are no error. What is removed is
        never read again, by ``find`` neither, but its keys stay known: a resend is
        answered as a duplicate, with the event that was given. Positions and
        offsets are not given again. Snapshots are dropped, cursors stay.

        Appends, reads and subscriptions continue meanwhile; a reader that has not read a
        removed record yet skips it. Cancelling stops the waiting only. Once the
        removal is durable, what is left to do after a crash is done by the next opening.

        Raises:
            CorruptLog: a record that is to go is damaged; nothing was removed.
            StoreUnavailable: the disk failed or is full; what was begun is finished by the next call or opening.
        """
        ...

    async def forget(self, streams: Collection[str], *, at_ms: int, positions: Collection[int] = ()) -> Forgotten:
        """Replace payloads by their digests, durably: of all records that these streams hold now, and of single ones.

        ``positions``: single records, of any streams; positions that hold no record are no error.

        The records stay, and so do their hashes: the chain still verifies. What is
        appended later is kept. When it returns, no file of the store holds the
        payloads: not the log, its write-ahead file, the search index, snapshots,
        or what recovery set aside. A resend of the event is still a duplicate.
        Unknown streams are no error. Everything else as ``prune``.
        """
        ...
