"""Where the records of a jsonl log lie in its files, by the writer's index; and reading them from there."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from threading import Lock
from typing import NamedTuple

from streams.errors import CorruptLog
from streams.retention import Ranges
from streams.store import Record
from streams.stores.recovery import Index
from streams.stores.segment_files import SegmentFile, open_segment
from streams.stores.segments import BadLine, Segment, parse_record

_READ_BATCH = 256


class Places:
    """Reads records by their positions, beside the writer, whose ``index`` it is. ``removed`` gives what was pruned.

    ``held`` is to be held while a record's place is looked up and its segment opened, and while a segment is replaced.
    """

    def __init__(self, index: Index, removed: Callable[[], Ranges]) -> None:
        self._index, self._removed = index, removed
        self.held = Lock()

    async def read(self, positions: Sequence[int]) -> AsyncIterator[Record]:
        """The records at these positions, as ``records_at``, a batch at a time on a thread."""
        for begin in range(0, len(positions), _READ_BATCH):
            for record in await asyncio.to_thread(self.records_at, positions[begin : begin + _READ_BATCH]):
                yield record

    def records_at(self, positions: Sequence[int]) -> list[Record]:
        """The records at these positions, in the order asked, without pruned ones; blocking. Raises ``CorruptLog``."""
        open_files: dict[int, SegmentFile] = {}
        try:
            # A file that is open stays what it is when its segment is replaced.
            with self.held:
                places = [
                    place_of(self._index, position, open_files)
                    for position in positions
                    if not self._removed().holds(position)
                ]
            return [record_at(place) for place in places]
        finally:
            for file in open_files.values():
                file.close()


class Place(NamedTuple):
    """Where a record's line lies; the file may hold less than ``size`` bytes of it, and more lines after it."""

    file: SegmentFile
    segment: Segment
    position: int
    start: int
    size: int


def place_of(index: Index, position: int, open_files: dict[int, SegmentFile]) -> Place:
    """Where the record at ``position`` is, which the index must hold; its file is opened, and added, if it is not yet.

    The caller closes ``open_files``, and keeps segments from being replaced meanwhile.
    """
    segment = index.segments[bisect_right(index.segments, position, key=lambda found: found.first) - 1]
    file = open_files.get(segment.first)
    if file is None:
        file = open_files[segment.first] = open_segment(segment)
    starts, at = index.starts, position - index.first
    start = starts[at]
    following = starts[at + 1] if at + 1 < len(starts) else 0
    size = following - start if following > start else file.size - start
    return Place(file, segment, position, start, size)


def record_at(place: Place) -> Record:
    """Read a record from its place.

    Raises:
        CorruptLog: what lies there is no record.
    """
    line = place.file.read(place.start, place.size).split(b"\n", 1)[0]
    try:
        return parse_record(line)
    except BadLine as fault:
        raise _corrupt(place, str(fault)) from None


def _corrupt(place: Place, reason: str) -> CorruptLog:
    lines, at = 1, 0
    while at < place.start and (piece := place.file.read(at, min(1 << 20, place.start - at))):
        lines += piece.count(b"\n")
        at += len(piece)
    return CorruptLog(str(place.segment.path), lines, place.position, reason)
