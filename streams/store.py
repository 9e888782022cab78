"""The append-only log: the one interface that every store implements.

Two numbers locate a record, and they are never interchangeable:

* ``offset``   - place within one stream: 0, 1, 2, ...
* ``position`` - place within the whole log: 0, 1, 2, ...

Both numbers are assigned without gaps. Pruning leaves gaps and never renumbers, so you may compare numbers but must not
subtract them.

``StreamReader`` is the interface for readers, even in a process next to a
running sidecar; ``StreamStore`` adds ``append``, the only way to write events, and ``subscribe``, which follows the
log.

Every store passes ``tests/streams/store_contract.py``. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from streams.event import StreamEvent
from streams.query import Filter
from streams.retention import Removed, StreamRemoval, StreamSize

MAX_BATCH = 512
"""Maximum number of events per ``append``; limits how long one append holds the writer."""

NOTHING = -1
"""The head of an empty log, and the cursor of a reader that has read nothing."""

OnKnown = Literal["conflict", "keep_first"]
"""What ``append`` does with an already stored key: refuse a different event, or keep the first one."""

Wanted: TypeAlias = Callable[[StreamEvent], bool]
"""Whether a subscriber wants the record of an event."""


def every_event(event: StreamEvent) -> bool:
    return True


class Record(NamedTuple):
    """An event together with its place in the log.

    ``hash`` is the stream's chain hash at this offset, in hex. ``duplicate`` is true if this append wrote nothing
    because the idempotency key was already stored; the event and the numbers are then those of the first write.
    """

    event: StreamEvent
    offset: int
    position: int
    hash: str
    duplicate: bool = False

    def as_json(self) -> dict[str, Any]:
        """The record in the form that commands print: ``{event, offset, position, hash}``."""
        return {
            "event": self.event.fields(),
            "offset": self.offset,
            "position": self.position,
            "hash": self.hash,
        }


class Snapshot(NamedTuple):
    """A projection's state after the record at ``position``; ``version`` is the version of the format of ``state``."""

    version: int
    position: int
    state: bytes


class StreamReader(Protocol):
    """Reading a log. Every method sees only durable records: nothing above ``head``."""

    @property
    def head(self) -> int:
        """Position of the last durable record; ``NOTHING`` for an empty log."""

    def read(self, stream_id: str, *, from_offset: int = 0) -> AsyncIterator[Record]:
        """Replay one stream from ``from_offset`` (inclusive) up to the head at the time of the call.

        An unknown stream yields nothing, which is not an error, because a session's
        first hook can arrive after its first reader.

        Raises:
            CorruptLog: a record below head is damaged; the records before it have been yielded.
        """

    def read_all(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        """Yield the records with a position above ``after``, in position order, up to the head at the time of the
        call.
        """

    def query(self, wanted: Filter) -> AsyncIterator[Record]:
        """Yield the records that match ``wanted``, of any stream, in position order."""

    async def find(self, idempotency_key: str) -> Record | None:
        """The record stored under a key, or ``None``."""

    async def removed(self) -> dict[str, StreamRemoval]:
        """What was pruned and forgotten, by stream; omits streams that lost nothing."""

    async def close(self) -> None:
        """Release everything. Idempotent; running appends finish first."""


class StreamStore(StreamReader, Protocol):
    """Ordered, durable, replayable storage for events, with one writer."""

    async def find_each(self, idempotency_keys: Sequence[str]) -> list[Record | None]:
        """What ``find`` returns for each key, in the order of the keys. Faster than a call for each key."""

    async def append(
        self,
        events: Sequence[StreamEvent],
        *,
        expected: Mapping[str, int] | None = None,
        on_known: OnKnown = "conflict",
    ) -> list[Record]:
        """Write all of ``events`` or none, across their streams. Return one record each, in order.

        When this returns, the batch survives ``kill -9`` and power loss. After a cancellation, the batch is wholly
        written or wholly absent. To find out which, retry with the same keys. ``expected`` maps a stream id to the
        offset its first new record must take.

        Keys are checked before ``expected``. A batch whose keys are all known, with the same bodies (type, stream,
        actor, payload), returns the first records with ``duplicate=True``. ``on_known="keep_first"`` writes events with
        new keys and keeps the first record of known keys, even if the body differs (counted in ``differences``).

        Raises:
            ValueError: the batch is empty or over ``MAX_BATCH``.
            InvalidEvent: a payload is only a digest, as in a forgotten event.
            OffsetConflict: another writer moved a stream past its expected offset.
            IdempotencyConflict: ``on_known="conflict"`` and a key is stored with
                another body or is twice in the batch, or only part of the batch is known.
            StoreUnavailable: the disk is full or failed, or the store is closed. It is safe to retry after reopening.
        """

    def subscribe(self, *, after: int = NOTHING, wanted: Wanted = every_event) -> AsyncIterator[Record]:
        """Yield every record after position ``after``, then each new record once it is durable, without end.

        Skips nothing, except that records whose event ``wanted`` rejects may be left out; reading those costs little.
        The newest of the durable records is always yielded, so the subscriber knows how far it has read. ``wanted``
        gets the event as it was appended and must not change it. If ``wanted`` rejected the newest record, the record
        comes with that same event object.

        Buffers only a bounded amount, because a slow subscriber reads from the log at its own pace. Ends
        when the store closes; safe to cancel.
        """

    async def cursor(self, name: str) -> int:
        """The position that a named reader reached; ``NOTHING`` for a new reader, or if the hint was lost.

        ``name``: lower-case letters, digits and ``-``, at most 63 characters; anything else raises ``ValueError``.
        """

    async def advance(self, name: str, position: int) -> None:
        """Remember a named reader's position. The position is only a hint: after a crash, an earlier position or none
        may be remembered."""

    async def snapshot(self, name: str, version: int) -> Snapshot | None:
        """A projection's last snapshot of this version that is not beyond head. If it is ``None``, fold from the
        beginning.
        """

    async def put_snapshot(self, name: str, snapshot: Snapshot) -> None:
        """Store a projection's state in place of its previous state. A snapshot is only a hint, like a cursor."""

    async def write_hints(self) -> None:
        """Return once the cursors and snapshots so far survive a crash, except those that are beyond head.

        Raises:
            StreamError, OSError: they cannot be written now. They are still noted.
        """

    async def sizes(self) -> list[StreamSize]:
        """Every stream that holds records, by name, for a retention policy. May read the whole log."""

    @property
    def differences(self) -> int:
        """How many times an append with ``keep_first`` had a known key with another body."""


class RetentionStore(StreamStore, Protocol):
    """A store that can remove records."""

    async def prune(self, cuts: Mapping[str, int], *, at_ms: int) -> Removed:
        """Remove the records of each named stream below an offset, durably; ``at_ms`` is the time, in ms UTC.

        An offset at or beyond the stream's end removes all records; unknown streams, and offsets that are already gone,
        are not errors. Removed records are never read again, not even by ``find``, but their keys stay known, so an
        event that is sent again is answered as a duplicate, with the event as it was sent. Positions and offsets are
        not reused. Snapshots are dropped, cursors stay.

        Appends, reads and subscriptions continue in the meantime; a reader that has not yet read a removed record skips
        it. Cancelling ends only the wait. Once the removal has been durably noted, a crash cannot stop it: the removal
        is finished the next time the store is opened.

        Raises:
            CorruptLog: a record to remove is damaged; nothing was removed.
            StoreUnavailable: the disk failed or is full. What was begun is finished by the next call, or when the store
                is next opened.
        """

    async def forget(self, streams: Collection[str], *, at_ms: int, positions: Collection[int] = ()) -> Removed:
        """Durably replace payloads by their digests, both in all records that these streams hold now and in single
        records.

        ``positions``: the positions of the single records, in any streams; a position without a record is not an error.

        The records and their hashes stay, so the chain still passes verification. Later appends are kept. When this
        returns, no file of the store holds the payloads: not the log, its write-ahead file, the search index,
        snapshots, or what recovery set aside. If a forgotten event is sent again, it still counts as a duplicate.
        Unknown streams are not errors. In all other respects, ``forget`` works like ``prune``.
        """
