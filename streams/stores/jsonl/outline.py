"""Check quickly that every file of a jsonl log exists and is long enough.

A command that answers mostly from a snapshot does not read the whole log. Such a command must still notice a deleted or
truncated file, so it reads the name and the last line of each segment, which takes a few milliseconds for a log of any
usual size. ``verify`` finds damage inside a file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from streams.stores.head import BadLine, check_crc
from streams.stores.jsonl.lines import position_of
from streams.stores.jsonl.segments import Segment, list_segments
from streams.system.files import open_to_read

_TAIL: Final = 16 * 1024


def first_doubt(log: Path, head: int) -> int | None:
    """The first position that seems to be missing; ``None`` if all files are long enough. Blocks."""
    expected = 0
    for segment in list_segments(log):
        if segment.first != expected and expected <= head:
            return expected
        end = _end_of(segment)
        if end is None:
            return segment.first
        expected = end
    return expected if expected <= head else None


def _end_of(segment: Segment) -> int | None:
    try:
        fd = open_to_read(segment.path)
    except FileNotFoundError:
        return None
    try:
        line = _last_line(fd)
    finally:
        os.close(fd)
    if line is None:
        return segment.first
    try:
        check_crc(line)
    except BadLine:
        return None
    position = position_of(line)
    return None if position is None else position + 1


def _last_line(fd: int) -> bytes | None:
    size, reach = os.fstat(fd).st_size, _TAIL
    while True:
        start = max(size - reach, 0)
        data = os.pread(fd, size - start, start)
        end = data.rfind(b"\n")
        begin = data.rfind(b"\n", 0, max(end, 0))
        if end >= 0 and (begin >= 0 or not start):
            return data[begin + 1 : end]
        if not start:
            return None
        reach *= 4
