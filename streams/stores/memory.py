"""The memory backend: the contract with nothing durable, for tests and short-lived tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import orjson

from streams.errors import StoreClosed
from streams.event import StreamEvent
from streams.hashing import GENESIS, Encoded, encode
from streams.query import Filter
from streams.store import NOTHING, OnKnown, Record, Snapshot
from streams.stores.hints import checked_name
from streams.stores.live import LiveTail
from streams.stores.plan import Placed, Request, as_record, check_size, plan


class _Known:
    def __init__(self, placed: Placed) -> None:
        self._placed = placed

    def body(self) -> tuple[str, str, str, str]:
        return self._placed.encoded.body()

    def placed(self) -> Record:
        return _stored(self._placed)


def _stored(placed: Placed) -> Record:
    """The record from its bytes: what a caller does to an event's payload later must not change the log."""
    event = StreamEvent.trusted(orjson.loads(placed.encoded.canonical))
    return Record(event, placed.offset, placed.position, placed.hash.hex())


class MemoryStore:
    """``StreamStore`` in lists and dictionaries. One event loop."""

    def __init__(self) -> None:
        self._records: list[Placed] = []
        self._streams: dict[str, list[Placed]] = {}
        self._keys: dict[str, Placed] = {}
        self._live = LiveTail(lambda after: self.read_all(after=after))
        self._cursors: dict[str, int] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._closed = False
        self.differences = 0

    @property
    def head(self) -> int:
        """See ``StreamReader.head``."""
        return len(self._records) - 1

    def next_position(self) -> int:
        """See ``Tails``."""
        return len(self._records)

    def tail(self, stream_id: str) -> tuple[int, bytes]:
        """See ``Tails``."""
        records = self._streams.get(stream_id)
        return (records[-1].offset + 1, records[-1].hash) if records else (0, GENESIS)

    def known(self, key: str) -> _Known | None:
        """See ``Tails``."""
        placed = self._keys.get(key)
        return None if placed is None else _Known(placed)

    async def append(
        self,
        events: Sequence[StreamEvent],
        *,
        expected: Mapping[str, int] | None = None,
        on_known: OnKnown = "conflict",
    ) -> list[Record]:
        """See ``StreamStore.append``; durable only as long as the process lives."""
        if self._closed:
            raise StoreClosed("the store is closed", "open another one")
        check_size(events)
        batch: list[Encoded] = [encode(event) for event in events]
        decided = plan(Request(batch, expected or {}, on_known), self)
        for placed in decided.new:
            self._records.append(placed)
            self._streams.setdefault(placed.encoded.event.stream_id, []).append(placed)
            self._keys[placed.encoded.event.idempotency_key] = placed
        self.differences += decided.differences
        self._live.notify()
        return [as_record(answer) for answer in decided.answers]

    async def read(self, stream_id: str, *, from_offset: int = 0) -> AsyncIterator[Record]:
        """See ``StreamReader.read``."""
        for placed in self._streams.get(stream_id, [])[max(from_offset, 0) :]:
            yield _stored(placed)

    async def read_all(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        """See ``StreamReader.read_all``."""
        for placed in self._records[max(after + 1, 0) :]:
            yield _stored(placed)

    async def query(self, wanted: Filter) -> AsyncIterator[Record]:
        """See ``StreamReader.query``."""
        async for record in self.read_all():
            if wanted.matches(record.event):
                yield record

    async def find(self, idempotency_key: str) -> Record | None:
        """See ``StreamReader.find``."""
        placed = self._keys.get(idempotency_key)
        return None if placed is None else _stored(placed)

    async def cursor(self, name: str) -> int:
        """See ``StreamStore.cursor``."""
        position = self._cursors.get(checked_name(name), NOTHING)
        return position if position <= self.head else NOTHING

    async def advance(self, name: str, position: int) -> None:
        """See ``StreamStore.advance``."""
        self._cursors[checked_name(name)] = position

    async def snapshot(self, name: str, version: int) -> Snapshot | None:
        """See ``StreamStore.snapshot``."""
        found = self._snapshots.get(checked_name(name))
        return found if found is not None and found.version == version and found.position <= self.head else None

    async def put_snapshot(self, name: str, snapshot: Snapshot) -> None:
        """See ``StreamStore.put_snapshot``."""
        self._snapshots[checked_name(name)] = snapshot

    def subscribe(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        """See ``StreamStore.subscribe``."""
        return self._live.follow(after)

    async def close(self) -> None:
        """See ``StreamReader.close``."""
        self._closed = True
        self._live.close()
