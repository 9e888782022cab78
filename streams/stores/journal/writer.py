"""The end of the journal: open it for writing, write its lines, and delete the segments that were moved.

A write indexes the lines, writes and syncs them, and rewrites ``head`` (without a separate sync). If indexed lines
cannot be written, the writer is unusable, and the caller stops for good (``commit.py``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from streams.errors import CorruptLog
from streams.stores.directory import TORN, create
from streams.stores.disk import Disk
from streams.stores.head import Head, format_head, read_head
from streams.stores.journal.lines import format_line
from streams.stores.journal.recovery import recover
from streams.stores.journal.segments import HEAD, JOURNAL, Segment, segment_name
from streams.stores.plan import Placed
from streams.stores.sqlite.database import Known
from streams.stores.sqlite.files import LOG_FILE
from streams.system.files import make_directory, open_or_create, read_file, sync_directory, write_durably


class JournalWriter:
    """Writes the last segment and the head file, and keeps the index.

    The methods block; use them from one thread at a time. ``index`` has the records that are written or about to be
    written, and ``head`` is the last durable position. ``torn`` and ``head_lost`` say what opening found.
    """

    def __init__(self, store: Path, disk: Disk, segment_bytes: int, moved: Head, known: Known) -> None:
        """Recover the journal, which continues the database. ``moved`` is the database's last record, and ``known``
        answers what is asked of the others.

        Raises:
            CorruptLog, ForeignStore: see ``recover``; nothing was changed.
            OSError: the journal cannot be read or written.
        """
        self._store, self._journal = store, store / JOURNAL
        self._disk, self._segment_bytes = disk, segment_bytes
        head = read_head(store / HEAD)
        in_database = head is not None and head.position <= moved.position
        if head is not None and in_database and known.hash_at(head.position) not in (None, head.hash):
            reason = "the record's hash differs from the hash in the head file"
            raise CorruptLog(str(store / LOG_FILE), head.position + 1, head.position, reason)
        found = recover(self._journal, head, moved, known.tail)
        create(store, self._journal)  # create directories only now, because a refused log must stay unchanged
        self.index, self.tails = found.index, found.tails
        self.head_lost = head is None and (bool(found.index.segments) or moved.position >= 0)
        self.torn: Path | None = None
        if found.torn is not None:
            self.torn = self._set_aside(self.index.segments[-1], found.size)
        self._size = self._durable_size = found.size
        self._fd = disk.open(self.index.segments[-1].path) if self.index.segments else -1
        self.head = self.index.next_position() - 1
        if self._fd >= 0:
            # A writer that died may have written a whole batch above the old head without syncing it, so sync now.
            disk.sync(self._fd)
        self._hash = self.index.last_hash or bytes.fromhex(moved.hash)
        end = format_head(Head(self.head, self._hash.hex()))
        if head is None:
            # Sync the new file. Later rewrites are not synced: a power loss may leave an older head, but never no head.
            write_durably(store / HEAD, end)
        self._head_fd = open_or_create(store / HEAD)
        disk.rewrite(self._head_fd, end)
        self._deleting, self._moved = Lock(), found.moved
        self._delete()

    def _set_aside(self, segment: Segment, size: int) -> Path:
        directory = self._store / TORN
        make_directory(directory)
        aside = directory / f"{segment.path.stem}-{size}-{len(list(directory.iterdir()))}.bin"
        write_durably(aside, read_file(segment.path)[size:])
        sync_directory(self._store)
        fd = self._disk.open(segment.path)
        try:
            self._disk.truncate(fd, size)
            self._disk.sync(fd)
        finally:
            os.close(fd)
        return aside

    # --- segments ---

    def roll_if_full(self) -> None:
        if self._fd < 0 or self._size >= self._segment_bytes:
            self.roll()

    def roll(self) -> None:
        """Begin a new segment, unless the last one is empty."""
        following = self.index.next_position()
        if self._fd >= 0 and self.index.segments[-1].first == following:
            return
        segment = Segment(following, self._journal / segment_name(following))
        fd = self._disk.create(segment.path)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size, self._durable_size = fd, 0, 0
        with self.index.lock:
            self.index.segments.append(segment)

    def drop(self, moved: int) -> None:
        """Delete the segments whose records are all in the database, whose last position is ``moved``, and those that
        an earlier call could not delete. Any thread may call it. A kill in between leaves segments that the next start
        deletes.

        Raises:
            OSError: a segment cannot be deleted.
        """
        with self._deleting:
            self._moved += self.index.drop(moved)
            self._delete()

    def _delete(self) -> None:
        while self._moved:
            with suppress(FileNotFoundError):
                self._disk.unlink(self._moved[0].path)
            del self._moved[0]

    @property
    def folder(self) -> Path:
        """The directory of the segments."""
        return self._journal

    @property
    def size(self) -> int:
        """The bytes of the last segment."""
        return self._size

    # --- lines ---

    def add(self, placed: Placed, digest: bytes, number: int, count: int) -> bytes:
        """Index a new record, ``number`` of ``count`` in its batch. Return its line for ``make_durable``."""
        line = format_line(placed, number, count)
        begun = self._size
        self._size += len(line)
        with self.index.lock:
            self.index.add(placed.encoded.event.stream_id, digest, placed.hash, begun, self._size)
        return line

    def make_durable(self, lines: Sequence[bytes]) -> float:
        """Write and sync lines that are already indexed, then move head. Return the seconds that the disk took."""
        begun = time.perf_counter()
        self._disk.write(self._fd, b"".join(lines))
        self._disk.sync(self._fd)
        seconds = time.perf_counter() - begun
        self._durable_size = self._size
        head = Head(self.index.next_position() - 1, self.index.last_hash.hex())
        self._disk.rewrite(self._head_fd, format_head(head))
        self.head = head.position
        return seconds

    def abandon(self) -> None:
        """After a failed write, cut off what was never acknowledged, as far as the disk allows."""
        if self._fd >= 0:
            try:
                self._disk.truncate(self._fd, self._durable_size)
            except OSError:
                # The next time the store is opened, the torn tail above head is found and cut off.
                self._durable_size = -1

    def close(self) -> None:
        for fd in (self._fd, self._head_fd):
            if fd >= 0:
                os.close(fd)
