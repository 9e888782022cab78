"""Read records of a jsonl log directly from their places in its files, using the writer's index."""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from streams.errors import CorruptLog
from streams.store import Record
from streams.stores.head import BadLine
from streams.stores.jsonl.lines import parse_record
from streams.stores.jsonl.recovery import Index
from streams.stores.jsonl.segments import Segment
from streams.system.files import open_to_read

_READ_BATCH = 256


class Lookup:
    """Reads records by their positions, through the writer's ``index``."""

    def __init__(self, index: Index) -> None:
        self._index = index

    async def read(self, positions: Sequence[int]) -> AsyncIterator[Record]:
        """Like ``records_at``, but reads a batch at a time on a thread."""
        for begin in range(0, len(positions), _READ_BATCH):
            for record in await asyncio.to_thread(self.records_at, positions[begin : begin + _READ_BATCH]):
                yield record

    def records_at(self, positions: Sequence[int]) -> list[Record]:
        """The records at these positions, in that order. Blocks. Raises ``CorruptLog``."""
        open_files: dict[int, int] = {}
        try:
            return [_record_at(self._span_of(position, open_files)) for position in positions]
        finally:
            for fd in open_files.values():
                os.close(fd)

    def _span_of(self, position: int, open_files: dict[int, int]) -> _LineSpan:
        segments = self._index.segments
        segment = segments[bisect_right(segments, position, key=lambda found: found.first) - 1]
        fd = open_files.get(segment.first)
        if fd is None:
            fd = open_files[segment.first] = open_to_read(segment.path)
        starts = self._index.starts
        start = starts[position]
        following = starts[position + 1] if position + 1 < len(starts) else 0
        size = following - start if following > start else os.fstat(fd).st_size - start
        return _LineSpan(fd, segment, position, start, size)


class _LineSpan(NamedTuple):
    """The place of a record's line in its file."""

    fd: int
    segment: Segment
    position: int
    start: int
    size: int


def _record_at(span: _LineSpan) -> Record:
    line = os.pread(span.fd, span.size, span.start).split(b"\n", 1)[0]
    try:
        return parse_record(line)
    except BadLine as fault:
        lines = 1 + os.pread(span.fd, span.start, 0).count(b"\n")
        raise CorruptLog(str(span.segment.path), lines, span.position, str(fault)) from None
