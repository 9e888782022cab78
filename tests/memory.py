"""A ``RetentionStore`` in memory, for tests that need no disk. ``test_differential.py`` holds it to the real ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace

import orjson

from streams.errors import StoreClosed
from streams.event import StreamEvent
from streams.hashing import GENESIS
from streams.query import Filter
from streams.retention import (
    NOTHING_REMOVED,
    Base,
    Entry,
    Mark,
    Ranges,
    Removed,
    StreamRemoval,
    StreamSize,
    Tally,
    body_digest,
)
from streams.store import NOTHING, OnKnown, Record, Snapshot, Wanted, every_event
from streams.stores.key_digest import key_digest
from streams.stores.live import LiveTail
from streams.stores.plan import Known, Placed, Request, as_record, encode_batch, plan
from streams.stores.sqlite.cursors_and_snapshots import checked_name


def _with(ranges: Ranges, more: Sequence[Placed]) -> Ranges:
    return Ranges([*ranges.pairs(), *((placed.position, placed.position + 1) for placed in more)])


def _stored(placed: Placed) -> Record:
    """The record, made from its bytes, so that a caller who changes a payload later does not change the log."""
    event = StreamEvent.trusted(orjson.loads(placed.encoded.canonical))
    return Record(event, placed.offset, placed.position, placed.hash.hex())


def _forgotten(placed: Placed) -> Placed:
    """The record without its payload. Everything that the digest form determines stays."""
    encoded = placed.encoded
    event = StreamEvent.trusted(orjson.loads(encoded.digest_form))
    return placed._replace(encoded=encoded._replace(event=event, canonical=encoded.digest_form))


class MemoryStore:
    """``StreamStore`` in lists and dictionaries. Bound to one event loop."""

    def __init__(self) -> None:
        self._records: list[Placed | None] = []
        """The records by position; ``None`` for a pruned record."""
        self._streams: dict[str, list[Placed]] = {}
        self._keys: dict[str, Placed | Entry] = {}
        self._removal = NOTHING_REMOVED
        self._live = LiveTail(lambda after: self.read_all(after=after))
        self._cursors: dict[str, int] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._closed = False
        self.differences = 0

    @property
    def head(self) -> int:
        return len(self._records) - 1

    def next_position(self) -> int:
        return len(self._records)

    def tail(self, stream_id: str) -> tuple[int, bytes]:
        records = self._streams.get(stream_id)
        if records:
            return (records[-1].offset + 1, records[-1].hash)
        base = self._removal.bases.get(stream_id)
        return (0, GENESIS) if base is None else (base.offset, base.hash)

    def known(self, key: str) -> Known | None:
        found = self._keys.get(key)
        return _stored(found) if isinstance(found, Placed) else found

    async def append(
        self,
        events: Sequence[StreamEvent],
        *,
        expected: Mapping[str, int] | None = None,
        on_known: OnKnown = "conflict",
    ) -> list[Record]:
        self._check_open()
        decided = plan(Request(encode_batch(events), expected or {}, on_known), self)
        for placed in decided.new:
            self._records.append(placed)
            self._streams.setdefault(placed.encoded.event.stream_id, []).append(placed)
            self._keys[placed.encoded.event.idempotency_key] = placed
        self.differences += decided.differences
        self._live.notify()
        return [as_record(answer) for answer in decided.answers]

    async def read(self, stream_id: str, *, from_offset: int = 0) -> AsyncIterator[Record]:
        records = self._streams.get(stream_id, [])
        for placed in records[max(from_offset - self._removal.first_offset(stream_id), 0) :]:
            if self._records[placed.position] is not None:
                yield _stored(placed)

    async def read_all(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        for position in range(max(after + 1, 0), len(self._records)):
            placed = self._records[position]
            if placed is not None:
                yield _stored(placed)

    async def query(self, wanted: Filter) -> AsyncIterator[Record]:
        async for record in self.read_all():
            if wanted.matches(record.event):
                yield record

    async def find(self, idempotency_key: str) -> Record | None:
        found = self._keys.get(idempotency_key)
        return _stored(found) if isinstance(found, Placed) else None

    async def find_each(self, idempotency_keys: Sequence[str]) -> list[Record | None]:
        return [await self.find(key) for key in idempotency_keys]

    async def removed(self) -> dict[str, StreamRemoval]:
        return self._removal.gone()

    async def sizes(self) -> list[StreamSize]:
        tally = Tally()
        for placed in self._records:
            if placed is not None:
                event = placed.encoded.event
                tally.add(event.stream_id, placed.offset, event.ts, len(placed.encoded.canonical))
        return tally.sizes()

    async def prune(self, cuts: Mapping[str, int], *, at_ms: int) -> Removed:
        self._check_open()
        gone: list[Placed] = []
        bases: dict[str, Base] = {}
        for name, cut in cuts.items():
            records = self._streams.get(name, [])
            count = min(max(cut - self._removal.first_offset(name), 0), len(records))
            if count:
                last = records[count - 1]
                gone += records[:count]
                bases[name] = Base(last.offset + 1, last.hash, at_ms)
                self._streams[name] = records[count:]
        if not gone:
            return Removed()
        for placed in gone:
            key = placed.encoded.event.idempotency_key
            body = body_digest(placed.encoded.body())
            self._keys[key] = Entry(key_digest(key), body, placed.position, placed.offset, placed.hash)
            self._records[placed.position] = None
        ranges = _with(self._removal.ranges, gone)
        self._removal = replace(self._removal, ranges=ranges, bases={**self._removal.bases, **bases})
        self._snapshots.clear()
        return Removed(len(gone), sum(len(placed.encoded.canonical) for placed in gone), len(bases))

    async def forget(self, streams: Collection[str], *, at_ms: int, positions: Collection[int] = ()) -> Removed:
        self._check_open()
        marks: dict[str, Mark] = {}
        records = saved = 0
        for name in set(streams):
            wanted = [p for p in self._streams.get(name, []) if not self._is_forgotten(p)]
            if not wanted:
                continue
            marks[name] = Mark(wanted[-1].offset + 1, at_ms)
            saved += sum(self._forget_one(placed) for placed in wanted)
            records += len(wanted)
        singles = self._singles(positions, set(marks))
        saved += sum(self._forget_one(placed) for placed in singles)
        last = {placed.encoded.event.stream_id: Mark(placed.offset + 1, at_ms) for placed in singles}
        if marks or singles:
            was = self._removal
            self._removal = replace(
                was,
                marks={**was.marks, **marks},
                singles=_with(was.singles, singles),
                singles_in={
                    **was.singles_in,
                    **{name: max(m, was.singles_in.get(name, m)) for name, m in last.items()},
                },
            )
            self._snapshots.clear()
        return Removed(records + len(singles), saved, len({*marks, *last}))

    def _forget_one(self, placed: Placed) -> int:
        """Forget a record's payload; return the number of bytes freed."""
        shorter = _forgotten(placed)
        name = placed.encoded.event.stream_id
        self._streams[name][placed.offset - self._removal.first_offset(name)] = shorter
        self._records[placed.position] = shorter
        self._keys[placed.encoded.event.idempotency_key] = shorter
        return len(placed.encoded.canonical) - len(shorter.encoded.canonical)

    def _singles(self, positions: Collection[int], streams: Collection[str]) -> list[Placed]:
        """The records at these positions that still have a payload, except the records of ``streams``."""
        found = (self._records[each] for each in sorted(set(positions)) if 0 <= each < len(self._records))
        return [p for p in found if p and p.encoded.event.stream_id not in streams and not self._is_forgotten(p)]

    def _is_forgotten(self, placed: Placed) -> bool:
        return self._removal.is_forgotten(placed.encoded.event.stream_id, placed.offset, placed.position)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed", "open another one")

    async def cursor(self, name: str) -> int:
        position = self._cursors.get(checked_name(name), NOTHING)
        return position if position <= self.head else NOTHING

    async def advance(self, name: str, position: int) -> None:
        self._cursors[checked_name(name)] = position

    async def snapshot(self, name: str, version: int) -> Snapshot | None:
        found = self._snapshots.get(checked_name(name))
        return found if found is not None and found.version == version and found.position <= self.head else None

    async def put_snapshot(self, name: str, snapshot: Snapshot) -> None:
        self._snapshots[checked_name(name)] = snapshot

    async def write_hints(self) -> None:
        self._check_open()

    def subscribe(self, *, after: int = NOTHING, wanted: Wanted = every_event) -> AsyncIterator[Record]:
        return self._live.follow(after, wanted)

    async def close(self) -> None:
        self._closed = True
        self._live.close()
