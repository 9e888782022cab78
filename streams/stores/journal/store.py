"""The writing store: a journal that acknowledges, a database that is read.

::

    append ──► journal/…jsonl   one line a record, group commit, one sync: this acknowledges
                  │ mover
                  ▼
               log.db           SQLite: this is read

A commit plans what its appends write, writes the lines, syncs, rewrites ``head`` (without a separate sync), and then
acknowledges. It asks the database only for keys and for streams that the journal does not hold, in one query for all
keys of a group.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from streams.derived import Derived, Write
from streams.errors import StoreUnavailable, StreamError
from streams.query import Filter
from streams.retention import Removed
from streams.store import Record
from streams.stores.commit import GroupCommit, Pending
from streams.stores.disk import Disk
from streams.stores.journal.index import Index, Place
from streams.stores.journal.mover import Mover
from streams.stores.journal.segments import sizes_of
from streams.stores.journal.whole_log import Journal, JournalLine, Moved, TwoPlaces
from streams.stores.journal.writer import JournalWriter
from streams.stores.key_digest import key_digest
from streams.stores.plan import Known as KnownRecord
from streams.stores.plan import Placed, Plan, as_record, plan
from streams.stores.recent import Recent
from streams.stores.sqlite.database import Database, Known
from streams.stores.sqlite.files import LOG_FILE, wal_bytes
from streams.system.files import open_to_read
from streams.system.threads import in_thread

SEGMENT_BYTES: Final = 4 * 1024 * 1024

ROLLED_BYTES: Final = 1024 * 1024
"""A segment of this size that is wholly in the database is deleted when appends pause."""

_READ_BATCH: Final = 256


class LogStore(TwoPlaces):
    """The writing store over a directory that exists and whose lock the caller holds. Creating it blocks, for a time
    that does not grow with the log.

    Raises:
        CorruptLog: an acknowledged record is damaged or missing; nothing was changed.
        ForeignStore: a file is damaged, or another program or a newer version wrote it.
        StoreUnavailable: another program holds the database.
        OSError: the directory cannot be read or written.
    """

    def __init__(
        self,
        store: Path,
        disk: Disk,
        segment_bytes: int,
        check: Callable[[], None],
        derived: Derived | None = None,
    ) -> None:
        """``check`` raises ``StoreFenced`` if this process may no longer write."""
        self.recent = Recent()
        self.differences = 0
        self._closed = False
        self._stored = self._database = Database(store, self.recent.clear, derived)
        try:
            self._known = Known(store)
        except BaseException:
            self._stored.close_at_once()
            raise
        try:
            self._writer = JournalWriter(store, disk, segment_bytes, self._stored.last, self._known)
        except BaseException:
            # The last connection that closes folds the write-ahead file into the database and deletes it. That must not
            # happen to a refused log, so a connection that cannot write is the last one, unless the file is empty.
            closings = [self._stored.close_at_once, self._known.close]
            for close in closings if wal_bytes(store / LOG_FILE) else closings[::-1]:
                close()
            raise
        self.torn, self.head_lost = self._writer.torn, self._writer.head_lost
        self._index = self._writer.index
        self._journal = _IndexedJournal(self._index)
        self._tails = self._writer.tails
        self._fresh: dict[bytes, Placed] = {}
        self._known_keys: dict[bytes, int] = {}
        """For the current commit: the positions of the keys that are stored already."""
        self._commits = GroupCommit(self._commit, self._writer.abandon, store.name)
        self._commits.check = self._stored.check = check
        self.mover = Mover(self._stored, self._writer, self._shorten, store.name)

    # --- reading ---

    @property
    def head(self) -> int:
        return self._writer.head

    async def _head_now(self) -> int:
        return self.head

    def waiting(self) -> dict[str, object]:
        """What the journal holds: ``{records, files, bytes, fault, derived}``. ``records`` counts those that are not in
        the database yet, and ``fault`` says why they cannot be moved; ``None`` if they can. ``derived`` is ``{records,
        fault}``: how many records of the database the derived tables lack, and why they cannot be applied; ``None``
        without such tables. Blocks briefly.
        """
        fault, deriving = self.mover.fault or self._known.fault, self._stored.deriving
        lacking = deriving and {"records": deriving.lacking(self._stored.head), "fault": deriving.fault}
        return {
            "records": self.mover.waiting,
            **sizes_of(self._writer.folder),
            "fault": fault,
            "derived": lacking,
        }

    async def find_each(self, idempotency_keys: Sequence[str]) -> list[Record | None]:
        found: dict[str, Record | None] = {}
        for key in idempotency_keys:
            position = self._index.key(key_digest(key))
            if position is not None and position <= self._writer.head:
                found[key] = await asyncio.to_thread(self._in_journal_at, position)
        missing = [key for key in idempotency_keys if found.get(key) is None]
        if missing:
            found |= dict(zip(missing, await self._stored.find_each(missing), strict=True))
        return [found[key] for key in idempotency_keys]

    async def find(self, idempotency_key: str) -> Record | None:
        return (await self.find_each([idempotency_key]))[0]

    def _in_journal_at(self, position: int) -> Record | None:
        """The record, or ``None`` if it has moved."""
        places = self._index.places([position])
        with suppress(FileNotFoundError):
            if places is not None:
                return JournalLine(_lines_at(places)[0], str(places[0].path), places[0].line, position).record()
        return None

    # --- planning (see ``Tails``), called only by the writer thread ---

    def next_position(self) -> int:
        return self._index.next_position()

    def tail(self, stream_id: str) -> tuple[int, bytes]:
        tail = self._tails.get(stream_id)
        if tail is None:
            tail = self._tails[stream_id] = self._known.tail(stream_id)
        return tail

    def known(self, key: str) -> KnownRecord | None:
        digest = key_digest(key)
        fresh = self._fresh.get(digest)
        if fresh is not None:
            return fresh
        position = self._known_keys.get(digest)
        found = None if position is None else self._in_journal_at(position) or self._known.at(position)
        return found or (self._known.removed(digest) if self._stored.has_removed else None)

    # --- writing ---

    def _commit(self, group: Sequence[Pending]) -> float:
        seconds = 0.0
        self._writer.roll_if_full()
        lines: list[bytes] = []
        decided: list[tuple[Pending, Plan]] = []
        digests = [key_digest(each.event.idempotency_key) for pending in group for each in pending.request.batch]
        # Ask the journal first: a record leaves it only when the database has it.
        written = {digest: found for digest in digests if (found := self._index.key(digest)) is not None}
        begun = time.perf_counter()
        self._known_keys = written | self._known.positions([digest for digest in digests if digest not in written])
        if self._known.fault is not None:
            seconds = time.perf_counter() - begun  # a damaged database is slow, so commits leave the event loop
        for pending in group:
            try:
                plan_ = plan(pending.request, self)
            except StreamError as refusal:
                pending.outcome = refusal
                continue
            for number, placed in enumerate(plan_.new):
                event = placed.encoded.event
                digest = key_digest(event.idempotency_key)
                self._fresh[digest] = placed
                self._tails[event.stream_id] = (placed.offset + 1, placed.hash)
                lines.append(self._writer.add(placed, digest, number, len(plan_.new)))
            self.differences += plan_.differences
            decided.append((pending, plan_))
        if lines:
            seconds += self._writer.make_durable(lines)
            self.recent.add(self._fresh.values())
            self._fresh.clear()
            self.mover.note()
        for pending, plan_ in decided:
            pending.outcome = [as_record(answer) for answer in plan_.answers]
        return seconds

    async def write_hints(self) -> None:
        """See ``StreamStore.write_hints``."""
        await in_thread(self.mover.write_hints)

    # --- removing ---

    async def prune(self, cuts: Mapping[str, int], *, at_ms: int, change: Write | None = None) -> Removed:
        await in_thread(self._move_everything)
        try:
            return await self._stored.prune(cuts, at_ms=at_ms, change=change)
        finally:
            self.mover.wake()

    async def forget(
        self,
        streams: Collection[str],
        *,
        at_ms: int,
        positions: Collection[int] = (),
        change: Write | None = None,
    ) -> Removed:
        await in_thread(self._move_everything)
        try:
            return await self._stored.forget(streams, at_ms=at_ms, positions=positions, change=change)
        finally:
            self.mover.wake()

    def _move_everything(self) -> None:
        """Move all records that are durable now, and delete every segment that holds one of them."""

        def roll() -> int:
            self._writer.roll()
            return self._writer.head

        try:
            head = self._commits.exclusively(roll)
            self.mover.drain(head)
            self._writer.drop(head)
        except OSError as error:
            raise StoreUnavailable(
                f"nothing was removed, because the journal cannot be emptied: {error.strerror or error}",
                "free disk space or repair the disk, then try again",
            ) from error

    def _shorten(self) -> None:
        """Let a reader of the files read little, now that everything is in the database."""
        if self._writer.size >= ROLLED_BYTES:
            with suppress(StoreUnavailable, OSError):
                self._commits.exclusively(self._writer.roll)
                self._writer.drop(self._stored.head)

    async def close(self) -> None:
        """See ``StreamReader.close``. Moves what the journal holds, if the database takes it."""
        if self._closed:
            return
        self._closed = True
        await self._stored.end_removals()
        await in_thread(self._end)
        await self._stored.close()

    def close_at_once(self) -> None:
        """``close``, blocking, for a store that nobody has used."""
        self._closed = True
        self._end()
        self._stored.close_at_once()

    def _end(self) -> None:
        self._commits.end()
        self.mover.close()
        self._writer.close()
        self._known.close()


class _IndexedJournal(Journal):
    """The journal as the writer's index shows it."""

    def __init__(self, index: Index) -> None:
        self._index = index

    async def lines(self, wanted: Filter, after: int, head: int) -> AsyncIterator[JournalLine]:
        async for line in self._at(self._positions(wanted, after, head)):
            yield line

    async def lines_back(self, wanted: Filter, after: int, head: int) -> AsyncIterator[JournalLine]:
        async for line in self._at(self._positions(wanted, after, head)[::-1]):
            yield line

    def _positions(self, wanted: Filter, after: int, head: int) -> Sequence[int]:
        if not wanted.streams:
            return range(after + 1, head + 1)
        found = [self._index.of_stream(name, after, head) for name in dict.fromkeys(wanted.streams)]
        if any(positions is None for positions in found):
            raise Moved(_gone(after + 1))
        return sorted(position for positions in found for position in positions or ())

    async def _at(self, positions: Sequence[int]) -> AsyncIterator[JournalLine]:
        for begin in range(0, len(positions), _READ_BATCH):
            wanted = positions[begin : begin + _READ_BATCH]
            places = self._index.places(wanted)
            if places is None:
                raise Moved(_gone(wanted[0]))
            try:
                lines = await asyncio.to_thread(_lines_at, places)
            except FileNotFoundError as error:
                raise Moved(error) from None
            for line, place, position in zip(lines, places, wanted, strict=True):
                yield JournalLine(line, str(place.path), place.line, position)


def _gone(position: int) -> StoreUnavailable:
    return StoreUnavailable(f"record {position} is neither in the journal nor in the database")


def _lines_at(places: Sequence[Place]) -> list[bytes]:
    """The lines at these places, without their newlines. Raises ``FileNotFoundError`` if a segment was deleted."""
    lines: list[bytes] = []
    path, file = None, None
    try:
        for place in places:
            if place.path != path or file is None:
                if file is not None:
                    file.close()
                path, file = place.path, open(place.path, "rb", opener=open_to_read)  # noqa: SIM115 - closed below
            file.seek(place.start)
            lines.append(file.read(place.size - 1))
    finally:
        if file is not None:
            file.close()
    return lines
