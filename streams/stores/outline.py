"""A quick look at the files of a jsonl log: whether each is there and reaches as far as it must.

A command that takes most of what it tells from a snapshot does not read the whole
log. A file that was deleted or cut short it must notice all the same: so of each
segment the name and the last line are looked at, a few milliseconds for a log of any
usual size. Damage in the midst of a file is for ``verify``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from streams.errors import CorruptLog
from streams.retention import Ranges
from streams.stores.segment_files import Segment, SegmentFile, list_segments, open_segment
from streams.stores.segments import BadLine, check_crc, position_of

_TAIL: Final = 16 * 1024


def first_doubt(log: Path, head: int, ranges: Ranges) -> int | None:
    """A position from where on reading meets something missing, as it seems; ``None``: all files reach far enough.

    Blocking. It may be wrong where a segment is replaced at this moment: who reads from there on knows.
    """
    expected = 0
    for segment in list_segments(log):
        if not ranges.covers(expected, segment.first) and ranges.following(expected) <= head:
            return expected
        end = _end_of(segment)
        if end is None:
            return segment.first
        expected = end
    return expected if ranges.following(expected) <= head else None


def _end_of(segment: Segment) -> int | None:
    """The position after that of a segment's last whole line; ``None`` where it cannot be told."""
    try:
        with open_segment(segment) as file:
            line = _last_line(file)
    except (CorruptLog, FileNotFoundError):
        return None
    if line is None:
        return segment.first
    try:
        check_crc(line)
    except BadLine:
        return None
    position = position_of(line)
    return None if position is None else position + 1


def _last_line(file: SegmentFile) -> bytes | None:
    """The last line that has its newline, without it; ``None`` where there is none."""
    reach = _TAIL
    while True:
        start = max(file.size - reach, 0)
        data = file.read(start, file.size - start)
        end = data.rfind(b"\n")
        begin = data.rfind(b"\n", 0, max(end, 0))
        if end >= 0 and (begin >= 0 or not start):
            return data[begin + 1 : end]
        if not start:
            return None
        reach *= 4
