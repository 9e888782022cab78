"""The journal as its files show it to any process, while another one writes it.

A reader takes no lock, repairs nothing, and stops at head: anything above head is not durable yet, or is torn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import aiofiles
import orjson

from streams.errors import CorruptLog
from streams.query import Filter
from streams.store import NOTHING
from streams.stores.head import EMPTY_HEAD, BadLine, Head, check_crc, read_head
from streams.stores.journal.lines import parse_keys, position_of, split_lines
from streams.stores.journal.segments import HEAD, JOURNAL, Segment, end_of, list_segments
from streams.stores.journal.whole_log import Journal, JournalLine, Moved
from streams.stores.missing import missing_at_end, missing_before
from streams.system.files import open_to_read, read_file
from streams.system.threads import to_its_end

_CHUNK = 1024 * 1024


class FileJournal(Journal):
    """The journal in ``store``; a directory without one reads as empty."""

    def __init__(self, store: Path) -> None:
        self._store, self._folder = store, store / JOURNAL
        self._mark: _Mark | None = None

    @property
    def head(self) -> int:
        """See ``StreamReader.head``. Read from disk at each call."""
        return self.head_record().position

    def head_record(self) -> Head:
        """Position and hash of the last durable record, or, if the head file is lost, of the last record of a whole
        batch."""
        head = read_head(self._store / HEAD)
        if head is not None:
            return head
        segments = list_segments(self._folder)
        return _last_whole(segments[-1]) if segments else EMPTY_HEAD

    async def lines(self, wanted: Filter, after: int, head: int) -> AsyncIterator[JournalLine]:
        needle = _needle(wanted)
        try:
            async for located in self._located_lines(after):
                _check_line(located)
                if located.expected <= head and (needle is None or needle in located.line):
                    yield JournalLine(located.line, str(located.segment.path), located.number or None, located.expected)
                if located.expected >= head:
                    return
        except (CorruptLog, FileNotFoundError) as error:
            raise Moved(error) from None

    async def lines_back(self, wanted: Filter, after: int, head: int) -> AsyncIterator[JournalLine]:
        needle = _needle(wanted)
        try:
            async for located in self._lines_back(after):
                _check_line(located)
                if located.expected <= head and (needle is None or needle in located.line):
                    yield JournalLine(located.line, str(located.segment.path), located.number or None, located.expected)
        except (CorruptLog, FileNotFoundError) as error:
            raise Moved(error) from None

    async def _lines_back(self, after: int) -> AsyncIterator[_LocatedLine]:
        head = self.head_record()
        expected, after = head.position, max(after, NOTHING)
        for segment in reversed(list_segments(self._folder)):
            if segment.first > head.position:
                continue
            if expected <= after:
                return
            async for line in _whole_lines_back(segment):
                if expected <= after:
                    return
                if expected == head.position and not _says(line, expected) and (position_of(line) or 0) > expected:
                    continue  # a line above the head is not durable yet, or torn
                located = _LocatedLine(line, segment, 0, expected)
                if not _says(line, expected) or (expected == head.position and not _has_hash(line, head.hash)):
                    raise CorruptLog(str(segment.path), 0, expected, "the end of the log is not as the head names it")
                yield located
                expected -= 1
            if expected != segment.first - 1:
                break
        if expected > after:
            raise CorruptLog(str(self._folder), 0, expected, f"record {expected} is missing")

    async def _located_lines(self, after: int) -> AsyncIterator[_LocatedLine]:
        head = self.head_record().position
        after = max(after, NOTHING)
        if after >= head:
            return
        segments = list_segments(self._folder)
        at = self._mark if self._mark is not None and self._mark.continues(after, segments) else None
        first = bisect_right([s.first for s in segments], after + 1) - 1
        expected = segments[first].first if first >= 0 else after + 1
        start = number = 0
        if at is not None:
            expected, start, number = at.expected, at.start, at.number
        for segment in segments[max(first, 0) :]:
            if at is None:
                if segment.first != expected and expected <= head:
                    raise CorruptLog(str(segment.path), 1, expected, missing_before(expected, segment.first))
                start = number = 0
            at = None
            async for lines in _lines(segment, start):
                for line in lines:
                    if expected > head:
                        return
                    number += 1
                    located = _LocatedLine(line, segment, number, expected)
                    # Check the position first: the line is nearly always the expected one, and parsing it takes ten
                    # times as long.
                    if not _says(line, expected):
                        _refuse_other(located)
                    start += len(line) + 1
                    if expected == head:
                        self._mark = _Mark.of(segment, head + 1, start, number)
                    if expected > after:
                        yield located
                    expected += 1
        if expected <= head:
            file, number_there = end_of(self._folder, segments, expected)
            raise CorruptLog(file, number_there, expected, missing_at_end(expected, head + 1))


async def chunks(segment: Segment, start: int = 0) -> AsyncIterator[bytes]:
    """Yield a segment's bytes starting at ``start``, about a megabyte at a time.

    No file is open between two chunks, so a reader that stops early leaves nothing to close.

    Raises:
        ForeignStore: the segment is a symbolic link.
        FileNotFoundError: the segment was deleted.
    """
    while True:
        # Let the read finish even if its caller is cancelled: the thread might open a file that nobody closes.
        chunk = await to_its_end(_chunk(segment, start))
        if not chunk:
            return
        yield chunk
        start += len(chunk)


async def _chunk(segment: Segment, start: int, size: int = _CHUNK) -> bytes:
    async with aiofiles.open(segment.path, "rb", opener=open_to_read) as file:
        await file.seek(start)
        return await file.read(size)


async def _lines(segment: Segment, start: int) -> AsyncIterator[list[bytes]]:
    rest = b""
    async for chunk in chunks(segment, start):
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines


async def _whole_lines_back(segment: Segment) -> AsyncIterator[bytes]:
    end = segment.path.stat().st_size
    rest, is_whole = b"", False
    while end:
        start = max(end - _CHUNK, 0)
        lines = (await to_its_end(_chunk(segment, start, end - start)) + rest).split(b"\n")
        if len(lines) > 1 and not is_whole:
            lines.pop()  # an unfinished line, or nothing
            is_whole = True
        if is_whole:
            rest = lines[0] if start else b""
            for line in reversed(lines[1:] if start else lines):
                yield line
        else:
            rest = lines[0]
        end = start


def _has_hash(line: bytes, hash_: str) -> bool:
    return b',"hash":"%b","offset":' % hash_.encode() in line[-200:]


def _says(line: bytes, position: int) -> bool:
    return b',"position":%d,"tx":[' % position in line[-56:]


class _Mark(NamedTuple):
    file: tuple[int, int]
    first: int
    expected: int
    start: int
    number: int

    @classmethod
    def of(cls, segment: Segment, expected: int, start: int, number: int) -> _Mark:
        return cls(_file_of(segment), segment.first, expected, start, number)

    def continues(self, after: int, segments: Sequence[Segment]) -> bool:
        if after + 1 != self.expected:
            return False
        # If another segment begins at the next position, the next line is there, and the marked segment is complete.
        last = [segment for segment in segments if segment.first <= after + 1]
        return bool(last) and last[-1].first == self.first and _file_of(last[-1]) == self.file


def _file_of(segment: Segment) -> tuple[int, int]:
    try:
        found = segment.path.stat()
    except FileNotFoundError:
        return (0, 0)
    return (found.st_dev, found.st_ino)


class _LocatedLine(NamedTuple):
    """A line, where it is, and the position it must have."""

    line: bytes
    segment: Segment
    number: int
    expected: int


def _check_line(located: _LocatedLine) -> None:
    try:
        check_crc(located.line)
    except BadLine as fault:
        raise CorruptLog(str(located.segment.path), located.number, located.expected, str(fault)) from None


def _refuse_other(located: _LocatedLine) -> None:
    position = position_of(located.line)
    if position is None or position == located.expected:
        return
    _check_line(located)
    reason = f"its position is {position}; expected {located.expected}"
    if position > located.expected:
        reason = missing_before(located.expected, position)
    raise CorruptLog(str(located.segment.path), located.number, located.expected, reason)


def _last_whole(segment: Segment) -> Head:
    head = Head(segment.first - 1, "")
    for _, line in split_lines(read_file(segment.path)):
        try:
            keys = parse_keys(line)
        except BadLine:
            continue  # if whole records follow, a reader is to find the damage
        index, count = keys.tx
        if index + 1 == count:
            head = Head(keys.position, keys.hash)
    return head


def _needle(wanted: Filter) -> bytes | None:
    """Bytes that every line of a wanted record contains, so that other lines need no parsing."""
    if len(wanted.streams) == 1:
        return _quoted(wanted.streams[0])
    if len(wanted.types) == 1:
        quoted = _quoted(wanted.types[0])
        return b'"type":' + (quoted[:-2] if wanted.types[0].endswith(".*") else quoted)
    if wanted.causation_id is not None:
        return b'"causation_id":' + _quoted(wanted.causation_id)
    return None


def _quoted(text: str) -> bytes:
    """``text`` as a whole JSON string, in the form in which a line contains it."""
    try:
        return orjson.dumps(text)
    except TypeError:  # no record contains a lone surrogate: the filter then drops all
        return b""
