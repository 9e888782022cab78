"""Where the records of the journal are: the writer's index, in memory.

The journal is short, because its records move to the database. So the index holds only what is not in the database
yet, and the segment that is being written.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from streams.stores.journal.segments import Segment


class Place(NamedTuple):
    """Where a record's line is in its file, newline included, and its number there."""

    path: Path
    start: int
    size: int
    line: int


class Index:
    """The places of the journal's records. ``lock`` guards every change, because readers look from other threads."""

    def __init__(self, first: int) -> None:
        """``first``: the position of the next record, as long as the journal is empty."""
        self.lock = Lock()
        self.segments: list[Segment] = []
        self.first = first
        """The position of the first record in the index."""
        self.last_hash = b""
        """The hash of the last record added; empty if there is none."""
        self._starts: array[int] = array("Q")
        self._ends: array[int] = array("Q")
        """Where each line begins and ends in its segment, by position."""
        self._digests: deque[bytes] = deque()
        self._names: deque[str] = deque()
        self._keys: dict[bytes, int] = {}
        self._streams: dict[str, deque[int]] = {}

    def next_position(self) -> int:
        return self.first + len(self._ends)

    def add(self, stream_id: str, digest: bytes, hash_: bytes, start: int, end: int) -> None:
        """Add the next record. The caller holds ``lock``."""
        position = self.next_position()
        self._starts.append(start)
        self._ends.append(end)
        self._digests.append(digest)
        self._names.append(stream_id)
        self._keys.setdefault(digest, position)
        positions = self._streams.get(stream_id)
        if positions is None:
            positions = self._streams[stream_id] = deque()
        positions.append(position)
        self.last_hash = hash_

    def drop(self, head: int) -> list[Segment]:
        """Forget the segments whose records are all at or below ``head``, except the last one, and return them."""
        with self.lock:
            count = bisect_right(self.segments[1:], head + 1, key=lambda found: found.first)
            dropped, self.segments = self.segments[:count], self.segments[count:]
            if dropped:
                self._forget_below(max(self.first, self.segments[0].first))
            return dropped

    def _forget_below(self, first: int) -> None:
        for position in range(self.first, first):
            digest, name = self._digests.popleft(), self._names.popleft()
            if self._keys.get(digest) == position:
                del self._keys[digest]
            positions = self._streams[name]
            positions.popleft()
            if not positions:
                del self._streams[name]
        del self._starts[: first - self.first], self._ends[: first - self.first]
        self.first = first

    def key(self, digest: bytes) -> int | None:
        return self._keys.get(digest)

    def of_stream(self, stream_id: str, after: int, head: int) -> list[int] | None:
        """The positions of a stream's records above ``after``, up to ``head``; ``None`` if the journal no longer has
        all records above ``after``.
        """
        with self.lock:
            if after + 1 < self.first:
                return None
            return [position for position in self._streams.get(stream_id, ()) if after < position <= head]

    def places(self, positions: Sequence[int]) -> list[Place] | None:
        """The places of these records; ``None`` if the journal no longer has all of them."""
        with self.lock:
            if positions and min(positions) < self.first:
                return None
            return [self._place(position) for position in positions]

    def _place(self, position: int) -> Place:
        segment = self.segments[bisect_right(self.segments, position, key=lambda found: found.first) - 1]
        start = self._starts[position - self.first]
        return Place(segment.path, start, self._ends[position - self.first] - start, position - segment.first + 1)

    def run(self, first: int, head: int, size: int) -> Place | None:
        """The place of the lines from ``first`` on: in one segment, up to ``head``, and not much longer than ``size``
        bytes. ``None`` if the journal does not have this record.
        """
        with self.lock:
            if not self.first <= first <= head < self.next_position():
                return None
            begin = self._place(first)
            following = bisect_right(self.segments, first, key=lambda found: found.first)
            until = self.segments[following].first if following < len(self.segments) else self.next_position()
            low, high = first - self.first, min(until, head + 1) - self.first
            last = min(bisect_left(self._ends, begin.start + size, low, high), high - 1)
            return begin._replace(size=self._ends[last] - begin.start)
