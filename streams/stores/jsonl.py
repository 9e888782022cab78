"""The jsonl backend: one global, size-rotated, segmented log with a single writer.

::

    store/  store.json  format and log id       lock  held by the writer
            head        last durable record     log/  00000000000000000000.jsonl …
            torn/       what recovery cut off

A commit is: write the lines, sync, rewrite ``head`` (no sync of its own), then
acknowledge. Opening scans and indexes the whole log. Closed segments may be
compressed (``….jsonl.zst``); the last one, which is being written, never is.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Lock

from streams.errors import CorruptLog, StoreClosed, StoreUnavailable, StreamError
from streams.event import StreamEvent
from streams.hashing import GENESIS, Encoded
from streams.identity import Identity
from streams.query import Filter
from streams.retention import Forgotten, Gone, Pruned, Ranges, Removal, StreamSize
from streams.store import NOTHING, OnKnown, Record
from streams.stores.commit import GroupCommit, Pending
from streams.stores.directory import create, name_log, take_lock
from streams.stores.disk import (
    Disk,
    make_directory,
    open_or_create,
    read_file,
    sync_directory,
    write_durably,
)
from streams.stores.hints import Hints, KeepsHints
from streams.stores.in_turn import InTurn, in_thread
from streams.stores.jsonl_reader import JsonlReader
from streams.stores.jsonl_removal import JsonlRemover
from streams.stores.live import LiveTail
from streams.stores.missing import missing_at_end
from streams.stores.places import place_of, record_at
from streams.stores.plan import Known, Placed, Plan, Removed, Request, as_record, body_of, encode_batch, plan
from streams.stores.presence import located
from streams.stores.recovery import StreamTail, key_digest, recover
from streams.stores.removed_files import RemovedFiles, Run
from streams.stores.rewriting import Abandoned, Compressed, compress, settle
from streams.stores.segment_files import SegmentFile, Sizes
from streams.stores.segments import (
    Head,
    Segment,
    format_head,
    format_line,
    format_stored,
    parse_event_keys,
    read_head,
    segment_name,
)
from streams.stores.stored import Stored

SEGMENT_BYTES = 64 * 1024 * 1024
_READ_BATCH = 256
_ENTRIES = 4096


class _Known:
    """A stored record, read only if somebody asks."""

    def __init__(self, store: JsonlStore, position: int) -> None:
        self._store, self._position = store, position

    def equals(self, encoded: Encoded) -> bool:
        return body_of(self._first()) == encoded.body()

    def first(self, encoded: Encoded) -> Placed | Record:
        return self._first()

    def _first(self) -> Placed | Record:
        return self._store.planned(self._position) or self._store.records_at([self._position])[0]


class JsonlStore(KeepsHints):
    """``StreamStore`` over a directory. Open it with ``JsonlStore.open``."""

    def __init__(self, store: Path, lock: int, disk: Disk, segment_bytes: int, *, is_copy: bool = False) -> None:
        self._store, self._log = store, store / "log"
        self._lock, self._disk, self._segment_bytes = lock, disk, segment_bytes
        self._fresh: dict[int, Placed] = {}
        self._hints = Hints(store)
        self._closed = False
        self.torn: Path | None = None
        """Where this opening put an incomplete tail; ``None`` when there was none."""
        self.differences = 0
        self._reader = JsonlReader(store)
        self._removed = RemovedFiles(self._log, disk)
        self._places = Lock()
        """Held while a record's place is looked up and its segment opened, and while a segment is replaced."""
        self._turns = InTurn()
        head = read_head(store / "head")
        recovered = recover(self._log, head, self._removed.removal)
        if not is_copy:
            _check_end(self._log, self._removed.removal.ranges, recovered.index.next_position())
        self._index = recovered.index
        self._index.segments[:] = settle(disk, self._log, recovered.index.segments)
        self.head_lost = head is None and bool(recovered.index.segments)
        """Whether the head file was missing or damaged, so that records lost at the log's end could not be noticed."""
        if recovered.torn is not None:
            self.torn = self._set_aside(recovered.index.segments[-1], recovered.size)
        self._size = recovered.size
        self._durable_size = recovered.size
        # A compressed last segment was put there by hand: a commit begins the next one.
        is_open = bool(self._index.segments) and not self._index.segments[-1].is_compressed
        self._fd = disk.open(self._index.segments[-1].path) if is_open else -1
        self._head = self._index.next_position() - 1
        if self._head > NOTHING and is_open:
            # A whole batch above the old head was written but perhaps not synced when its writer died.
            disk.sync(self._fd)
        found = format_head(Head(self._head, self._index.last_hash))
        if head is None:
            # It is rewritten without a sync, so that a power loss may leave an older head, but never none.
            write_durably(store / "head", found)
        self._head_fd = open_or_create(store / "head")
        disk.rewrite(self._head_fd, found)
        self._remover = JsonlRemover(
            store, disk, self._index, self._removed, self._places, self._roll, lambda: self._head, self._turns
        )
        # What cannot be finished now, as on a full disk, is done by the next removal or opening.
        with suppress(OSError, StoreUnavailable):
            self._remover.resume(self._roll)
        self._live = LiveTail(lambda after: self.read_all(after=after))
        self._commits = GroupCommit(self._commit, self._live.notify, self._abandon, store.name)

    @classmethod
    async def open(
        cls, store: Path, identity: Identity, *, disk: Disk | None = None, segment_bytes: int = SEGMENT_BYTES
    ) -> JsonlStore:
        """Take the lock, recover and index the log; creates the directory when it is new.

        Time grows with the log (about a second for 300 MB). ``identity`` names a new log.

        Raises:
            StoreLocked: another process writes here.
            CorruptLog: below head something is damaged or missing; nothing was changed.
            ForeignStore: not ours, or newer.
            StoreUnavailable: the directory cannot be read or written.
        """

        def blocking() -> JsonlStore:
            try:
                return cls._open(store, identity, disk or Disk(), segment_bytes)
            except OSError as error:
                raise StoreUnavailable(
                    f"cannot open the log in {store}: {error.strerror or error}",
                    "check that the directory is yours and the disk has space",
                ) from error

        return await asyncio.to_thread(blocking)

    @classmethod
    def _open(cls, store: Path, identity: Identity, disk: Disk, segment_bytes: int) -> JsonlStore:
        create(store, store / "log")
        lock = take_lock(store)
        try:
            manifest = located(store, alone=True)
            opened = cls(store, lock, disk, segment_bytes)
            name_log(store, manifest, identity, "jsonl")
            return opened
        except BaseException:
            os.close(lock)
            raise

    # Reading

    @property
    def head(self) -> int:
        """See ``StreamReader.head``."""
        return self._head

    async def read(self, stream_id: str, *, from_offset: int = 0) -> AsyncIterator[Record]:
        """See ``StreamReader.read``."""
        tail = self._index.streams.get(stream_id)
        if tail is None:
            return
        head = self._head
        positions = [p for p in tail.positions[max(from_offset - tail.first_offset, 0) :] if p <= head]
        for begin in range(0, len(positions), _READ_BATCH):
            for record in await asyncio.to_thread(self.records_at, positions[begin : begin + _READ_BATCH]):
                yield record

    def read_all(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        """See ``StreamReader.read_all``."""
        segments = self._index.segments
        passed_over = after + 1 - segments[-1].first if segments else 0
        # A scan begins where a segment begins: who follows the log would read all of the last one again and again.
        return self._by_place(after) if passed_over > self._head - after else self._reader.read_all(after=after)

    async def _by_place(self, after: int) -> AsyncIterator[Record]:
        """Records of the last segment, found by the index."""
        end = self._head + 1
        for begin in range(after + 1, end, _READ_BATCH):
            for record in await asyncio.to_thread(self.records_at, range(begin, min(begin + _READ_BATCH, end))):
                yield record

    async def query(self, wanted: Filter) -> AsyncIterator[Record]:
        """See ``StreamReader.query``; reads only the wanted streams where they are named."""
        if len(wanted.streams) != 1:
            async for record in self._reader.query(wanted):
                yield record
            return
        async for record in self.read(wanted.streams[0]):
            if wanted.matches(record.event):
                yield record

    async def find(self, idempotency_key: str) -> Record | None:
        """See ``StreamReader.find``."""
        position = self._index.keys.get(key_digest(idempotency_key))
        if position is None or position > self._head:
            return None
        found = await asyncio.to_thread(self.records_at, [position])
        return found[0] if found else None

    def subscribe(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        """See ``StreamStore.subscribe``."""
        return self._live.follow(after)

    def records_at(self, positions: Sequence[int]) -> list[Record]:
        """The records at these positions, in the order asked, without pruned ones; blocking. Raises ``CorruptLog``."""
        open_files: dict[int, SegmentFile] = {}
        try:
            # A file that is open stays what it is when its segment is replaced.
            with self._places:
                places = [
                    place_of(self._index, position, open_files)
                    for position in positions
                    if not self._removed.removal.ranges.holds(position)
                ]
            return [record_at(place) for place in places]
        finally:
            for file in open_files.values():
                file.close()

    # Removing

    async def sizes(self) -> list[StreamSize]:
        """See ``StreamStore.sizes``. Scans the log."""
        return await self._reader.sizes()

    async def prune(self, cuts: Mapping[str, int], *, at_ms: int) -> Pruned:
        """See ``StreamStore.prune``."""
        return await self._turns.run(lambda: self._remover.prune(cuts, at_ms, self._commits))

    async def forget(self, streams: Collection[str], *, at_ms: int) -> Forgotten:
        """See ``StreamStore.forget``."""
        return await self._turns.run(lambda: self._remover.forget(streams, at_ms, self._commits))

    async def removed(self) -> dict[str, Gone]:
        """See ``StreamReader.removed``."""
        return self._removed.removal.gone()

    async def finish_removal(self) -> None:
        """See ``Copyable.finish_removal``."""
        await self._turns.run(lambda: self._remover.finish(self._commits))

    # Planning (see ``Tails``); only the writer thread comes here

    def next_position(self) -> int:
        """See ``Tails``."""
        return self._index.next_position()

    def tail(self, stream_id: str) -> tuple[int, bytes]:
        """See ``Tails``."""
        tail = self._index.streams.get(stream_id)
        return (0, GENESIS) if tail is None else (tail.next_offset(), tail.hash)

    def known(self, key: str) -> Known | None:
        """See ``Tails``."""
        digest = key_digest(key)
        position = self._index.keys.get(digest)
        if position is not None and not self._removed.removal.ranges.holds(position):
            return _Known(self, position)
        entry = self._removed.find(digest)
        return None if entry is None else Removed(entry)

    def planned(self, position: int) -> Placed | None:
        """A record of the commit under way, which is not to be read from disk yet."""
        return self._fresh.get(position)

    # Writing

    async def append(
        self,
        events: Sequence[StreamEvent],
        *,
        expected: Mapping[str, int] | None = None,
        on_known: OnKnown = "conflict",
    ) -> list[Record]:
        """See ``StreamStore.append``."""
        return await self._commits.submit(Request(encode_batch(events), expected or {}, on_known))

    async def drained(self) -> None:
        """Return when nothing that was submitted is unwritten, also appends whose callers were cancelled."""
        await self._commits.drained()

    def _commit(self, group: Sequence[Pending]) -> float:
        seconds = 0.0
        if self._fd < 0 or self._size >= self._segment_bytes:
            self._roll()
        lines: list[bytes] = []
        decided: list[tuple[Pending, Plan]] = []
        for pending in group:
            try:
                plan_ = plan(pending.request, self)
            except StreamError as refusal:
                pending.outcome = refusal
                continue
            self._place(plan_.new, lines)
            self.differences += plan_.differences
            decided.append((pending, plan_))
        if lines:
            seconds = self._make_durable(lines)
            self._fresh.clear()
        for pending, plan_ in decided:
            pending.outcome = [as_record(answer) for answer in plan_.answers]
        return seconds

    def _place(self, new: Sequence[Placed], lines: list[bytes]) -> None:
        for number, placed in enumerate(new):
            line = format_line(placed, number, len(new))
            event = placed.encoded.event
            self._fresh[placed.position] = placed
            self._index.add(event.stream_id, event.idempotency_key, placed.offset, placed.hash, self._size)
            self._size += len(line)
            lines.append(line)

    # Moving a log from or to another backend (see ``Copyable``)

    def copy_out(self, *, after: int, most: int) -> AsyncIterator[list[Stored]]:
        """See ``Copyable.copy_out``."""
        return self._reader.copy_out(after=after, most=most)

    async def copy_in(self, records: Sequence[Stored]) -> None:
        """See ``Copyable.copy_in``."""
        try:
            await in_thread(self._copy, records)
        except OSError as error:
            raise self._copy_failed(error) from error

    async def tails(self) -> dict[str, tuple[int, bytes]]:
        """See ``Copyable.tails``."""
        return {name: (tail.next_offset(), tail.hash) for name, tail in self._index.streams.items()}

    async def removal(self) -> Removal:
        """See ``Copyable.removal``."""
        return self._removed.removal

    async def removed_entries(self) -> AsyncIterator[list[bytes]]:
        """See ``Copyable.removed_entries``."""
        entries = self._removed.packed()
        while some := await asyncio.to_thread(lambda: list(islice(entries, _ENTRIES))):
            yield some

    async def adopt(self, removal: Removal, entries: AsyncIterator[list[bytes]]) -> None:
        """See ``Copyable.adopt``."""
        if self._head > NOTHING or self._removed.removal:
            raise ValueError("the log holds something already")
        try:
            runs = [
                run async for some in entries if (run := await in_thread(self._removed.write_run, some)) is not None
            ]
            await in_thread(self._adopt, removal.finished(), runs)
        except OSError as error:
            raise self._copy_failed(error) from error

    def _adopt(self, removal: Removal, runs: Sequence[Run]) -> None:
        self._removed.replace(removal, runs)
        self._removed.compact()
        for name, base in removal.bases.items():
            self._index.streams[name] = StreamTail(first_offset=base.offset, hash=base.hash)
        self._skip_removed()
        self._head = self._index.next_position() - 1

    def _skip_removed(self) -> None:
        """Pass over pruned records that follow the last one."""
        following = self._removed.removal.ranges.following(self._index.next_position())
        if following > self._index.next_position():
            self._index.skip_to(following, self._size)
            self._index.last_hash = ""

    def _copy_failed(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(
            f"the copy in {self._store} could not be written: {error.strerror or error}",
            "free disk space or repair the disk, then run the migration again: it goes on where it was",
        )

    def _copy(self, records: Sequence[Stored]) -> None:
        lines: list[bytes] = []
        for record in records:
            if record.position != self._index.next_position():
                raise ValueError(f"record {record.position} does not follow {self._index.next_position() - 1}")
            if not lines and (self._fd < 0 or self._size >= self._segment_bytes):
                self._roll()
            keys = parse_event_keys(record.event)
            lines.append(format_stored(record))
            self._index.add(keys.stream_id, keys.idempotency_key, record.offset, record.hash, self._size)
            self._size += len(lines[-1])
            self._skip_removed()
        self._make_durable(lines)

    def _make_durable(self, lines: Sequence[bytes]) -> float:
        """Write and sync what the index already holds, then move head; the seconds that the disk took."""
        begun = time.perf_counter()
        self._disk.write(self._fd, b"".join(lines))
        self._disk.sync(self._fd)
        seconds = time.perf_counter() - begun
        self._durable_size = self._size
        head = Head(self._index.next_position() - 1, self._index.last_hash)
        self._disk.rewrite(self._head_fd, format_head(head))
        self._head = head.position
        return seconds

    def _roll(self) -> None:
        """Begin a new segment; where the last one is empty, that serves."""
        if self._fd >= 0 and self._index.segments[-1].first == self.next_position():
            return
        segment = Segment(self.next_position(), self._log / segment_name(self.next_position()))
        fd = self._disk.create(segment.path)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size, self._durable_size = fd, 0, 0
        self._index.segments.append(segment)

    # Compressing

    def file_sizes(self) -> Sizes:
        """What the log's files take; blocking, for an instant."""
        return self._reader.file_sizes()

    async def compress(self) -> Compressed | None:
        """Compress the first closed segment that is not yet; ``None`` when there is none, or the store is closed.

        On a thread, beside appends and readers, in turn with pruning and forgetting. Cancelling it leaves it going
        on; ``close`` ends it.

        Raises:
            StoreUnavailable: it could not be written. The log is as it was, and goes on.
        """
        try:
            return await self._turns.run(self._compress)
        except (Abandoned, StoreClosed):
            return None
        except OSError as error:
            raise StoreUnavailable(
                f"a segment in {self._log} could not be compressed: {error.strerror or error}",
                "nothing is lost, it stays as it is: free disk space or repair the disk",
            ) from error

    def _compress(self) -> Compressed | None:
        for number, segment in enumerate(self._index.segments[:-1]):
            if not segment.is_compressed:
                done = compress(self._disk, segment, lambda: not self._closed)
                with self._places:
                    self._index.segments[number] = done.segment
                return done
        return None

    def _abandon(self) -> None:
        """After a failed write: cut what was never acknowledged, as far as the disk still lets us."""
        if self._fd >= 0:
            try:
                self._disk.truncate(self._fd, self._durable_size)
            except OSError:
                # The next opening finds a torn tail above head instead and cuts it then.
                self._durable_size = -1

    def _set_aside(self, segment: Segment, size: int) -> Path:
        """Keep a copy of the torn tail, then cut it off."""
        directory = self._store / "torn"
        make_directory(directory)
        kept = directory / f"{segment.path.stem}-{size}-{len(list(directory.iterdir()))}.bin"
        write_durably(kept, read_file(segment.path)[size:])
        sync_directory(self._store)
        fd = self._disk.open(segment.path)
        try:
            self._disk.truncate(fd, size)
            self._disk.sync(fd)
        finally:
            os.close(fd)
        return kept

    async def close(self) -> None:
        """See ``StreamReader.close``. Releases the lock."""
        if self._closed:
            return
        self._closed = True
        await self._turns.close()
        await self._commits.close()
        self._live.close()
        for fd in (self._fd, self._head_fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._removed.close()


def _check_end(log: Path, pruned: Ranges, following: int) -> None:
    """Raise ``CorruptLog`` when records were pruned beyond the log's end: what lay before them is missing."""
    if pruned.end > following:
        reason = f"{missing_at_end(pruned, following, pruned.end)}, though what came after was pruned"
        raise CorruptLog(str(log), None, following, reason)
