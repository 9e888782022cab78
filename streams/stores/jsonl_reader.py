"""Reading a jsonl log, also from another process beside its writer.

A reader takes no lock, repairs nothing, and stops at head: what lies above is
not durable yet, or torn. It needs no index, so opening costs nothing.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import aiofiles
import msgspec
import orjson

from streams.errors import CorruptLog
from streams.query import Filter
from streams.retention import Gone, Ranges, Removal, StreamSize, Tally
from streams.store import NOTHING, Record
from streams.stores.directory import read_manifest
from streams.stores.disk import open_to_read
from streams.stores.in_turn import in_thread, to_its_end
from streams.stores.lost_list import explained
from streams.stores.missing import lost_end, missing_before
from streams.stores.outline import first_doubt
from streams.stores.removed_files import Version, read_removed, run_faults, version_of
from streams.stores.segment_files import Sizes, open_segment, read_segment, sizes_of
from streams.stores.segments import (
    EMPTY_HEAD,
    BadLine,
    Head,
    LineKeys,
    Segment,
    check_crc,
    event_bytes,
    list_segments,
    parse_keys,
    parse_record,
    parse_stored,
    position_of,
    read_head,
    split_lines,
)
from streams.stores.stored import Stored

Parsed = TypeVar("Parsed", Record, Stored, LineKeys)

_CHUNK = 1024 * 1024


class JsonlReader:
    """``StreamReader`` over ``store/``; a directory without a log reads as empty.

    Raises:
        ForeignStore: the directory belongs to something else, or to a newer version.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._log = store / "log"
        read_manifest(store)

    @property
    def head(self) -> int:
        """See ``StreamReader.head``. Read from disk at each call."""
        return self.head_record().position

    def head_record(self) -> Head:
        """The last durable record's position and hash; of the last whole line if the head file is lost."""
        head = read_head(self._store / "head")
        if head is not None:
            return head
        ranges = read_removed(self._log).removal.ranges
        segments = list_segments(self._log)
        last = _last_whole(segments[-1], ranges) if segments else EMPTY_HEAD
        end = ranges.following(last.position + 1)
        return last if end == last.position + 1 else Head(end - 1, "")

    async def read(self, stream_id: str, *, from_offset: int = 0) -> AsyncIterator[Record]:
        """See ``StreamReader.read``. Scans the log."""
        async for record in self._scan(NOTHING, _quoted(stream_id)):
            if record.event.stream_id == stream_id and record.offset >= from_offset:
                yield record

    async def read_all(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        """See ``StreamReader.read_all``."""
        async for record in self._scan(after, None):
            yield record

    async def query(self, wanted: Filter) -> AsyncIterator[Record]:
        """See ``StreamReader.query``. Scans the log."""
        async for record in self._scan(NOTHING, _needle(wanted)):
            if wanted.matches(record.event):
                yield record

    async def find(self, idempotency_key: str) -> Record | None:
        """See ``StreamReader.find``. Scans the log."""
        async for record in self._scan(NOTHING, _quoted(idempotency_key)):
            if record.event.idempotency_key == idempotency_key:
                return record
        return None

    async def find_event(self, event_id: str) -> Record | None:
        """The record of an event id, or ``None``. Scans the log."""
        async for record in self._scan(NOTHING, _quoted(event_id)):
            if record.event.id == event_id:
                return record
        return None

    async def glance(self) -> None:
        """Look whether every file of the log is there and reaches as far as it must, without reading them.

        Raises:
            CorruptLog: one is missing or was cut short.
        """
        doubt = await asyncio.to_thread(self._doubt)
        if doubt is not None:
            # Reading has the last word, and says it as every command does.
            async for place in self._places(doubt - 1):
                _check_line(place)

    async def check_removed(self) -> None:
        """Look at the files that know the keys of pruned records, as an opening does; reading needs none of them.

        Raises:
            CorruptLog: one is missing or damaged, or the list of them is: the log cannot be opened to be written.
        """
        while True:
            version = version_of(self._log)
            fault = await asyncio.to_thread(self._run_fault)
            if fault is None:
                return
            if version_of(self._log) == version:
                raise fault
            # Records were removed meanwhile, which merges files and deletes those they were.

    def _run_fault(self) -> CorruptLog | None:
        return next(run_faults(self._log, read_removed(self._log).runs), None)

    def _doubt(self) -> int | None:
        head = self.head_record().position  # before the files: a writer beside us goes on in them first
        return first_doubt(self._log, head, read_removed(self._log).removal.ranges)

    def file_sizes(self) -> Sizes:
        """What the log's files take; blocking, for an instant."""
        return sizes_of(self._log)

    async def event_ids(self) -> AsyncIterator[list[str]]:
        """The ids of all events, oldest first. Scans the log."""
        async for place in self._places(NOTHING):
            yield [_checked(parse_keys, place).event.id]

    async def removal(self) -> Removal:
        """See ``Copyable.removal``."""
        return (await asyncio.to_thread(read_removed, self._log)).removal

    async def removed(self) -> dict[str, Gone]:
        """See ``StreamReader.removed``."""
        return (await self.removal()).gone()

    async def sizes(self) -> list[StreamSize]:
        """See ``StreamStore.sizes``. Scans the log."""
        tally = Tally()
        async for place in self._places(NOTHING):
            _check_line(place)
            line = _sizes_decoder.decode(place.line)
            tally.add(line.event.stream_id, line.offset, line.event.ts, event_bytes(place.line))
        return tally.sizes()

    async def close(self) -> None:
        """Nothing is held open between calls."""

    async def copy_out(self, *, after: int, most: int) -> AsyncIterator[list[Stored]]:
        """See ``Copyable.copy_out``."""
        records: list[Stored] = []
        async for place in self._places(after):
            record = _checked(parse_stored, place)
            if len(records) >= most and record.begun() != records[-1].begun():
                yield records
                records = []
            records.append(record)
        if records:
            yield records

    async def _scan(self, after: int, needle: bytes | None) -> AsyncIterator[Record]:
        """Records after ``after`` to the head at call time whose line contains ``needle``."""
        async for place in self._places(after):
            if needle is None or needle in place.line:
                yield _checked(parse_record, place)
            else:
                # Damage may be why it does not hold the needle.
                _check_line(place)

    async def _places(self, after: int) -> AsyncIterator[_Place]:
        """The lines after ``after`` to the head at call time, not parsed, without those of pruned records."""
        head = self.head_record().position
        after = max(after, NOTHING)
        while after < head:
            version = version_of(self._log)
            ranges = read_removed(self._log).removal.ranges
            try:
                async for place in self._pass(after, head, ranges, version):
                    after = place.expected
                    yield place
                return
            except Replaced:
                continue  # records were removed meanwhile; what was not yielded yet is looked for anew
            except CorruptLog as fault:
                if version_of(self._log) == version:
                    raise await asyncio.to_thread(explained, self._log, fault) from None

    async def _pass(self, after: int, head: int, ranges: Ranges, version: Version) -> AsyncIterator[_Place]:
        segments = list_segments(self._log)
        first = bisect_right([s.first for s in segments], after + 1) - 1
        expected = segments[first].first if first >= 0 else after + 1
        number = 0
        for segment in segments[max(first, 0) :]:
            if not ranges.covers(expected, segment.first) and ranges.following(expected) <= head:
                reason = missing_before(ranges, expected, segment.first)
                raise CorruptLog(str(segment.path), 1, ranges.following(expected), reason)
            expected = segment.first
            number = 0
            async for line in _lines(segment):
                number += 1
                # Nearly always it is what must follow; to see that costs a tenth of finding out what it is.
                position = expected if _says(line, expected) else position_of(line)
                if position is not None and (ranges or position != expected):
                    if ranges.holds(position) and ranges.covers(expected, position):
                        expected = position + 1
                        continue
                    if position != ranges.following(expected) and version_of(self._log) != version:
                        raise Replaced
                expected = ranges.following(expected)
                if expected > head:
                    return
                place = _Place(line, segment, number, expected)
                if position is not None and position != expected:
                    _refuse_position(place, position, ranges)
                if expected > after:
                    yield place
                expected += 1
        expected = ranges.following(expected)
        if expected <= head:
            raise lost_end(self._log, segments, number, ranges, expected, head)


class Replaced(Exception):
    """A segment was replaced or deleted while it was read: look at what was removed, and read again."""


async def chunks(segment: Segment, start: int = 0) -> AsyncIterator[bytes]:
    """A segment's lines from a logical offset on, about a megabyte at a time.

    No file is open between two chunks, so a reader that stops early leaves nothing behind to be closed.

    Raises:
        DamagedSegment: a compressed segment is damaged there; what comes before was yielded.
        ForeignStore: it is a symbolic link.
        Replaced: something was pruned or forgotten since the first chunk, or the segment is not there any more.
    """
    log = segment.path.parent
    version, file_id = version_of(log), 0
    while True:
        try:
            found, chunk = await _chunk(segment, start)
        except FileNotFoundError:  # it was compressed meanwhile, which changes no line
            segment, file_id = segment.other_form(), 0
            try:
                found, chunk = await _chunk(segment, start)
            except FileNotFoundError:
                raise Replaced from None
        # A number may be given to a new file, but between two replacements lies a new manifest.
        if version_of(log) != version or file_id not in (0, found):
            raise Replaced
        file_id = found
        if not chunk:
            return
        yield chunk
        start += len(chunk)


async def _chunk(segment: Segment, start: int) -> tuple[int, bytes]:
    """The number of the file, and what it holds there."""
    if segment.is_compressed:
        return await in_thread(_compressed_chunk, segment, start)
    # To its end: a file that a thread opens for nobody any more would stay open.
    return await to_its_end(_plain_chunk(segment, start))


async def _plain_chunk(segment: Segment, start: int) -> tuple[int, bytes]:
    async with aiofiles.open(segment.path, "rb", opener=open_to_read) as file:
        await file.seek(start)
        return os.fstat(file.fileno()).st_ino, await file.read(_CHUNK)


def _compressed_chunk(segment: Segment, start: int) -> tuple[int, bytes]:
    with open_segment(segment) as file:
        return file.file_id, file.read_on(start, _CHUNK)


async def _lines(segment: Segment) -> AsyncIterator[bytes]:
    """Complete lines of a segment; what follows the last newline is not yielded."""
    rest = b""
    async for chunk in chunks(segment):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield line


def _says(line: bytes, position: int) -> bool:
    """Whether a line gives this position; the end of a line holds nothing else that looks so."""
    return b',"position":%d,"tx":[' % position in line[-56:]


class _TimedEvent(msgspec.Struct):
    stream_id: str
    ts: int


class _TimedLine(msgspec.Struct):
    event: _TimedEvent
    offset: int


_sizes_decoder = msgspec.json.Decoder(_TimedLine)


class _Place(NamedTuple):
    """A line, where it stands, and the position that must be its."""

    line: bytes
    segment: Segment
    number: int
    expected: int


def _check_line(place: _Place) -> None:
    try:
        check_crc(place.line)
    except BadLine as fault:
        raise CorruptLog(str(place.segment.path), place.number, place.expected, str(fault)) from None


def _refuse_position(place: _Place, position: int, ranges: Ranges) -> None:
    """Raise ``CorruptLog`` for a line that is whole and of another record than must follow."""
    _check_line(place)
    reason = f"it is position {position} where {place.expected} must follow"
    if position > place.expected:
        reason = missing_before(ranges, place.expected, position)
    raise CorruptLog(str(place.segment.path), place.number, place.expected, reason)


def _checked(parse: Callable[[bytes], Parsed], place: _Place) -> Parsed:
    try:
        record = parse(place.line)
        if record.position != place.expected:
            raise BadLine(f"it is position {record.position} where {place.expected} must follow")
    except BadLine as fault:
        raise CorruptLog(str(place.segment.path), place.number, place.expected, str(fault)) from None
    return record


def _last_whole(segment: Segment, ranges: Ranges) -> Head:
    """The last record of the last whole batch in a segment; what the head file would say."""
    head = Head(segment.first - 1, "")
    for _, line in split_lines(read_segment(segment)):
        try:
            keys = parse_keys(line)
        except BadLine:
            break
        index, count = keys.tx
        if ranges.following(keys.position + 1) >= keys.position - index + count:
            head = Head(keys.position, keys.hash)
    return head


def _needle(wanted: Filter) -> bytes | None:
    """Bytes that every line of a wanted record contains, so that the others need not be parsed."""
    if len(wanted.streams) == 1:
        return _quoted(wanted.streams[0])
    if len(wanted.types) == 1:
        quoted = _quoted(wanted.types[0])
        return b'"type":' + (quoted[:-2] if wanted.types[0].endswith(".*") else quoted)
    if wanted.causation_id is not None:
        return b'"causation_id":' + _quoted(wanted.causation_id)
    return None


def _quoted(text: str) -> bytes:
    """``text`` as it stands in a line if it stands there as a whole JSON string."""
    try:
        return orjson.dumps(text)
    except TypeError:  # a lone surrogate, which no line holds: looking at every record finds nothing either
        return b""
