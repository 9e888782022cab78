"""The end of a jsonl log: open it for writing, and write its lines.

Opening recovers the log: ``recovery.py`` scans the log and finds a torn tail; then the writer copies the torn tail,
cuts it off, and moves head to the last whole batch.

A write indexes the lines, writes and syncs them, and rewrites ``head`` (without a separate sync). If indexed lines
cannot be written, the writer is unusable, and the caller stops for good (``commit.py``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from streams.store import NOTHING
from streams.stores.directory import create
from streams.stores.disk import Disk
from streams.stores.head import Head, format_head, read_head
from streams.stores.jsonl.lines import format_line, format_stored, parse_event_keys
from streams.stores.jsonl.recovery import recover
from streams.stores.jsonl.segments import Segment, segment_name
from streams.stores.plan import Placed
from streams.stores.stored import Stored
from streams.system.files import make_directory, open_or_create, read_file, sync_directory, write_durably


class JsonlWriter:
    """The part of ``JsonlStore`` that writes the log's last segment and its head file, and keeps the index.

    The methods block; use them from one thread at a time. ``index`` has the records that are written or about to be
    written, and ``head`` is the last durable position. ``torn`` and ``head_lost`` say what opening found.
    """

    def __init__(self, store: Path, disk: Disk, segment_bytes: int) -> None:
        """Recover and index the log in ``store``.

        Raises:
            CorruptLog, ForeignStore: see ``recover``; nothing was changed.
            OSError: the log cannot be read or written.
        """
        self._store, self._log = store, store / "log"
        self._disk, self._segment_bytes = disk, segment_bytes
        head = read_head(store / "head")
        recovered = recover(self._log, head)
        create(store, self._log)  # create directories only now, because a refused log must stay unchanged
        self.index = recovered.index
        self.head_lost = head is None and bool(recovered.index.segments)
        self.torn: Path | None = None
        if recovered.torn is not None:
            self.torn = self._set_aside(recovered.index.segments[-1], recovered.size)
        self._size = recovered.size
        self._durable_size = recovered.size
        self._fd = disk.open(self.index.segments[-1].path) if self.index.segments else -1
        self.head = self.index.next_position() - 1
        if self.head > NOTHING:
            # A writer that died may have written a whole batch above the old head without syncing it, so sync now.
            disk.sync(self._fd)
        found = format_head(Head(self.head, self.index.last_hash.hex()))
        if head is None:
            # Sync the new file. Later rewrites are not synced: a power loss may leave an older head, but never no head.
            write_durably(store / "head", found)
        self._head_fd = open_or_create(store / "head")
        disk.rewrite(self._head_fd, found)

    def _set_aside(self, segment: Segment, size: int) -> Path:
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

    # --- segments ---

    def roll_if_full(self) -> None:
        if self._fd < 0 or self._size >= self._segment_bytes:
            self.roll()

    def roll(self) -> None:
        """Begin a new segment, or reuse the last one if it is empty."""
        following = self.index.next_position()
        if self._fd >= 0 and self.index.segments[-1].first == following:
            return
        segment = Segment(following, self._log / segment_name(following))
        fd = self._disk.create(segment.path)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size, self._durable_size = fd, 0, 0
        self.index.segments.append(segment)

    # --- lines ---

    def add(self, placed: Placed, number: int, count: int) -> bytes:
        """Index a new record, ``number`` of ``count`` in its batch. Return its line for ``make_durable``."""
        event = placed.encoded.event
        return self._add(format_line(placed, number, count), event.stream_id, event.idempotency_key, placed.hash)

    def _add(self, line: bytes, stream_id: str, key: str, hash_: bytes) -> bytes:
        self.index.add(stream_id, key, hash_, self._size)
        self._size += len(line)
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

    # --- a copy of another backend's log ---

    def copy(self, records: Sequence[Stored]) -> None:
        """Write another backend's stored records, which must follow the last record of this log. The records are
        durable when this method returns.

        Raises:
            ValueError: a record does not follow the one before it.
            OSError: the records could not be written.
        """
        lines: list[bytes] = []
        for record in records:
            if record.position != self.index.next_position():
                raise ValueError(f"record {record.position} does not follow record {self.index.next_position() - 1}")
            if not lines:
                self.roll_if_full()
            keys = parse_event_keys(record.event)
            lines.append(self._add(format_stored(record), keys.stream_id, keys.idempotency_key, record.hash))
        self.make_durable(lines)

    def close(self) -> None:
        for fd in (self._fd, self._head_fd):
            if fd >= 0:
                os.close(fd)
