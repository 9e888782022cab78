"""The jsonl backend: one global, size-rotated, segmented log with a single writer.

::

    store/  store.json  format and log id       lock  held by the writer
            head        last durable record     log/  00000000000000000000.jsonl …
            torn/       what recovery cut off

A commit plans what its appends write, writes the lines, syncs, rewrites ``head`` (without a separate sync), and then
acknowledges.

jsonl is a log's first stage. Nothing is ever removed from a jsonl log: pruning and forgetting first migrate the log to
sqlite (``streams/log/log.py``). A log that has grown large migrates, too.

This module implements the contract and plans commits. ``writer.py`` opens the log and writes its end, ``lookup.py``
reads through the index, and ``reader.py`` scans.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

from streams.errors import StreamError
from streams.hashing import GENESIS
from streams.query import Filter
from streams.store import NOTHING, Record
from streams.stores.commit import GroupCommit, GroupedStore, Pending
from streams.stores.disk import Disk
from streams.stores.jsonl.lookup import Lookup
from streams.stores.jsonl.reader import JsonlReader
from streams.stores.jsonl.writer import JsonlWriter
from streams.stores.keys import key_digest
from streams.stores.plan import Known, Placed, Plan, as_record, plan
from streams.stores.stored import Stored

SEGMENT_BYTES = 64 * 1024 * 1024


class JsonlStore(GroupedStore, JsonlReader):
    """The writing backend over a directory that exists and whose lock the caller holds.

    Creating it recovers and indexes the log; the time this takes grows with the log (about a second for 300 MB).

    Raises:
        CorruptLog: a record below head is damaged or missing; nothing was changed.
        ForeignStore: another program or a newer version wrote the store.
        OSError: the directory cannot be read or written.
    """

    def __init__(self, store: Path, disk: Disk, segment_bytes: int) -> None:
        GroupedStore.__init__(self)
        JsonlReader.__init__(self, store)
        self._path = store
        self._fresh: dict[int, Placed] = {}
        self._writer = JsonlWriter(store, disk, segment_bytes)
        self.torn = self._writer.torn
        self.head_lost = self._writer.head_lost
        self._index = self._writer.index
        self._lookup = Lookup(self._index)
        self._commits = GroupCommit(self._commit, self._writer.abandon, store.name)

    # --- reading ---

    @property
    def head(self) -> int:
        return self._writer.head

    async def read(self, stream_id: str, *, from_offset: int = 0) -> AsyncIterator[Record]:
        tail = self._index.streams.get(stream_id)
        if tail is None:
            return
        head = self._writer.head
        positions = [p for p in tail.positions[max(from_offset, 0) :] if p <= head]
        async for record in self._lookup.read(positions):
            yield record

    def read_all(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        segments = self._index.segments
        passed_over = after + 1 - segments[-1].first if segments else 0
        # Use the index to follow the log, because scans start at a segment's beginning and would read the last segment
        # over and over.
        return self._by_place(after) if passed_over > self.head - after else super().read_all(after=after)

    async def _by_place(self, after: int) -> AsyncIterator[Record]:
        """Yield the records after position ``after``, found through the index."""
        async for record in self._lookup.read(range(after + 1, self._writer.head + 1)):
            yield record

    async def query(self, wanted: Filter) -> AsyncIterator[Record]:
        if len(wanted.streams) != 1:
            async for record in super().query(wanted):
                yield record
            return
        async for record in self.read(wanted.streams[0]):
            if wanted.matches(record.event):
                yield record

    async def find_each(self, idempotency_keys: Sequence[str]) -> list[Record | None]:
        places = [self._index.keys.get(key_digest(key)) for key in idempotency_keys]
        places = [place if place is not None and place <= self._writer.head else None for place in places]
        durable = [place for place in places if place is not None]
        found = iter(await asyncio.to_thread(self._lookup.records_at, durable) if durable else ())
        return [next(found) if place is not None else None for place in places]

    # --- planning (see ``Tails``), called only by the writer thread ---

    def next_position(self) -> int:
        return self._index.next_position()

    def tail(self, stream_id: str) -> tuple[int, bytes]:
        tail = self._index.streams.get(stream_id)
        return (0, GENESIS) if tail is None else (tail.next_offset(), tail.hash)

    def known(self, key: str) -> Known | None:
        position = self._index.keys.get(key_digest(key))
        if position is None:
            return None
        # Look in ``_fresh`` first, because a record of the current commit cannot be read from disk yet.
        return self._fresh.get(position) or self._lookup.records_at([position])[0]

    # --- writing ---

    def _commit(self, group: Sequence[Pending]) -> float:
        seconds = 0.0
        self._writer.roll_if_full()
        lines: list[bytes] = []
        decided: list[tuple[Pending, Plan]] = []
        for pending in group:
            try:
                plan_ = plan(pending.request, self)
            except StreamError as refusal:
                pending.outcome = refusal
                continue
            for number, placed in enumerate(plan_.new):
                self._fresh[placed.position] = placed
                lines.append(self._writer.add(placed, number, len(plan_.new)))
            self.differences += plan_.differences
            decided.append((pending, plan_))
        if lines:
            seconds = self._writer.make_durable(lines)
            self.recent.add(self._fresh.values())
            self._fresh.clear()
        for pending, plan_ in decided:
            pending.outcome = [as_record(answer) for answer in plan_.answers]
        return seconds

    # --- migrating a log from or to another backend ---

    def _copy(self, records: Sequence[Stored]) -> None:
        self._writer.copy(records)

    async def tails(self, among: Collection[str] | None = None) -> dict[str, tuple[int, bytes]]:
        known = self._index.streams
        names = known if among is None else known.keys() & set(among)
        return {name: (known[name].next_offset(), known[name].hash) for name in names}

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._commits.close()
        self._writer.close()
