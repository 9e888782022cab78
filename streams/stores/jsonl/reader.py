"""Read a jsonl log while it is being written, even from another process.

A reader takes no lock, repairs nothing, and stops at head: anything above head is not durable yet, or is torn. The
reader needs no index, so opening costs nothing.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import aiofiles
import orjson

from streams.errors import CorruptLog
from streams.query import Filter
from streams.retention import NOTHING_REMOVED, Removal, StreamRemoval, StreamSize, Tally
from streams.store import NOTHING, Record
from streams.stores.directory import read_manifest
from streams.stores.head import EMPTY_HEAD, BadLine, Head, check_crc, read_head
from streams.stores.jsonl.lines import (
    LineKeys,
    event_of,
    parse_keys,
    parse_record,
    parse_stored,
    position_of,
    split_lines,
)
from streams.stores.jsonl.outline import first_doubt
from streams.stores.jsonl.recovery import lost_end
from streams.stores.jsonl.segments import Segment, list_segments, sizes_of
from streams.stores.missing import missing_before
from streams.stores.stored import Stored
from streams.system.files import open_to_read, read_file
from streams.system.threads import to_its_end

Parsed = TypeVar("Parsed", Record, Stored, LineKeys)

_CHUNK = 1024 * 1024


class JsonlReader:
    """``StreamReader`` over ``store/``; a directory without a log reads as empty.

    Raises:
        ForeignStore: another program or a newer version wrote the store.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._log = store / "log"
        read_manifest(store)
        self._mark: _Mark | None = None

    @property
    def head(self) -> int:
        """See ``StreamReader.head``. Read from disk at each call."""
        return self.head_record().position

    def head_record(self) -> Head:
        """Position and hash of the last durable record, or, if the head file is lost, of the last record of a whole
        batch."""
        head = read_head(self._store / "head")
        if head is not None:
            return head
        segments = list_segments(self._log)
        return _last_whole(segments[-1]) if segments else EMPTY_HEAD

    async def read(self, stream_id: str, *, from_offset: int = 0) -> AsyncIterator[Record]:
        async for record in self._scan(NOTHING, _quoted(stream_id)):
            if record.event.stream_id == stream_id and record.offset >= from_offset:
                yield record

    async def read_all(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        async for record in self._scan(after, None):
            yield record

    async def query(self, wanted: Filter) -> AsyncIterator[Record]:
        async for record in self._scan(NOTHING, _needle(wanted)):
            if wanted.matches(record.event):
                yield record

    async def back(self, wanted: Filter, after: int = NOTHING) -> AsyncIterator[Record]:
        """Yield the records of ``query`` with a position above ``after``, newest first. Reads the files from their
        ends, little further than the caller takes.

        Raises:
            CorruptLog: what was read is damaged; reading from the beginning may find the damage elsewhere.
        """
        async for record in self._scan_back(after, _needle(wanted)):
            if wanted.matches(record.event):
                yield record

    async def find(self, idempotency_key: str) -> Record | None:
        async for record in self._scan(NOTHING, _quoted(idempotency_key)):
            if record.event.idempotency_key == idempotency_key:
                return record
        return None

    async def find_event(self, event_id: str) -> Record | None:
        """The record with the given event id, or ``None``. Scans the log from its end, because the event is usually
        recent; if the end is damaged, from its beginning."""
        needle = _quoted(event_id)
        with suppress(CorruptLog):
            return await _first_of(self._scan_back(NOTHING, needle), event_id)
        return await _first_of(self._scan(NOTHING, needle), event_id)

    async def glance(self) -> None:
        doubt = await asyncio.to_thread(self._doubt)
        if doubt is not None:
            # Read the file to find out whether it is damaged. The error is the same as in every other command.
            async for located in self._located_lines(doubt - 1):
                _check_line(located)

    def _doubt(self) -> int | None:
        # Read the head before the files, because a running writer extends the files first.
        head = self.head_record().position
        return first_doubt(self._log, head)

    def file_sizes(self) -> dict[str, int]:
        return sizes_of(self._log)

    async def event_ids(self, part: str = "") -> AsyncIterator[list[str]]:
        needle = part.encode("utf-8", "surrogatepass")
        async for located in self._located_lines(NOTHING):
            if needle in located.line and part in (identifier := _checked(parse_keys, located).event.id):
                yield [identifier]

    async def removal(self) -> Removal:
        """Nothing is ever removed from a jsonl log."""
        return NOTHING_REMOVED

    async def removed(self) -> dict[str, StreamRemoval]:
        return {}

    async def sizes(self) -> list[StreamSize]:
        """See ``StreamStore.sizes``. Scans the log."""
        tally = Tally()
        async for located in self._located_lines(NOTHING):
            line = _checked(parse_keys, located)
            tally.add(line.event.stream_id, line.offset, line.event.ts, len(event_of(located.line)))
        return tally.sizes()

    async def close(self) -> None:
        """Do nothing, because no file stays open."""

    async def copy_out(self, *, after: int, most: int) -> AsyncIterator[list[Stored]]:
        records: list[Stored] = []
        async for located in self._located_lines(after):
            record = _checked(parse_stored, located)
            if len(records) >= most and record.begun() != records[-1].begun():
                yield records
                records = []
            records.append(record)
        if records:
            yield records

    async def checked_lines(self, wanted: Filter, after: int) -> AsyncIterator[CheckedLine]:
        """Yield the lines above position ``after``. Lines that certainly do not match ``wanted`` may be left out.

        Raises:
            CorruptLog: a line is damaged or missing.
        """
        needle = _needle(wanted)
        async for located in self._located_lines(after):
            _check_line(located)
            if needle is None or needle in located.line:
                yield CheckedLine(located.expected, located.line)

    async def checked_lines_back(self, wanted: Filter, after: int) -> AsyncIterator[CheckedLine]:
        """Yield the same lines, the last one first."""
        needle = _needle(wanted)
        async for located in self._lines_back(after):
            _check_line(located)
            if needle is None or needle in located.line:
                yield CheckedLine(located.expected, located.line)

    async def _scan(self, after: int, needle: bytes | None) -> AsyncIterator[Record]:
        async for located in self._located_lines(after):
            if needle is None or needle in located.line:
                yield _checked(parse_record, located)
            else:
                # Damage may be the reason why the line lacks the needle, so check the line.
                _check_line(located)

    async def _scan_back(self, after: int, needle: bytes | None) -> AsyncIterator[Record]:
        async for located in self._lines_back(after):
            if needle is None or needle in located.line:
                yield _checked(parse_record, located)
            else:
                _check_line(located)

    async def _lines_back(self, after: int) -> AsyncIterator[_LocatedLine]:
        head = self.head_record()
        expected, after = head.position, max(after, NOTHING)
        for segment in reversed(list_segments(self._log)):
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
            raise CorruptLog(str(self._log), 0, expected, f"record {expected} is missing")

    async def _located_lines(self, after: int) -> AsyncIterator[_LocatedLine]:
        head = self.head_record().position
        after = max(after, NOTHING)
        if after >= head:
            return
        segments = list_segments(self._log)
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
            raise lost_end(self._log, segments, number, expected, head)


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


async def _first_of(records: AsyncIterator[Record], event_id: str) -> Record | None:
    async for record in records:
        if record.event.id == event_id:
            return record
    return None


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


class CheckedLine(NamedTuple):
    """The position and the text of a line whose checksum is right."""

    position: int
    text: bytes


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


def _checked(parse: Callable[[bytes], Parsed], located: _LocatedLine) -> Parsed:
    try:
        record = parse(located.line)
        if record.position != located.expected:
            raise BadLine(f"its position is {record.position}; expected {located.expected}")
    except BadLine as fault:
        raise CorruptLog(str(located.segment.path), located.number, located.expected, str(fault)) from None
    return record


def _last_whole(segment: Segment) -> Head:
    head = Head(segment.first - 1, "")
    for _, line in split_lines(read_file(segment.path)):
        try:
            keys = parse_keys(line)
        except BadLine:
            break
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
