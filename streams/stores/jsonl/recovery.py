"""Open a jsonl log for writing: scan it, index it, judge its tail.

Acknowledged records are at or below head and must be whole: anything bad or missing there raises ``CorruptLog``, and
nothing is changed. Records above head were never acknowledged: whole batches are kept; the first incomplete batch and
everything after it are a torn tail, which is to be cut off and kept aside.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from streams.errors import CorruptLog
from streams.hashing import GENESIS
from streams.stores.head import BadLine, Head
from streams.stores.jsonl.lines import LineKeys, parse_keys, split_lines
from streams.stores.jsonl.segments import Segment, list_segments
from streams.stores.keys import key_digest
from streams.stores.missing import missing_at_end, missing_before
from streams.system.files import read_file


@dataclass(slots=True)
class StreamTail:
    """One stream in the index."""

    positions: array[int] = field(default_factory=lambda: array("Q"))
    hash: bytes = GENESIS

    def next_offset(self) -> int:
        return len(self.positions)


@dataclass(slots=True)
class Index:
    """Where every record is."""

    segments: list[Segment] = field(default_factory=list)
    starts: array[int] = field(default_factory=lambda: array("Q"))
    """Byte offset of each record in its segment, by position."""
    streams: dict[str, StreamTail] = field(default_factory=dict)
    keys: dict[bytes, int] = field(default_factory=dict)
    last_hash: bytes = b""

    def next_position(self) -> int:
        return len(self.starts)

    def add(self, stream_id: str, key: str, hash_: bytes, start: int) -> None:
        position = self.next_position()
        tail = self.streams.get(stream_id)
        if tail is None:
            tail = self.streams[stream_id] = StreamTail()
        tail.positions.append(position)
        tail.hash = hash_
        self.keys.setdefault(key_digest(key), position)
        self.starts.append(start)
        self.last_hash = hash_


@dataclass(slots=True)
class Recovered:
    """The index up to the last whole batch, and where that batch ends."""

    index: Index
    size: int
    """How many bytes the whole batches in the last segment have."""
    torn: str | None
    """Why the remaining lines are an incomplete tail; ``None`` if none remain."""


@dataclass(slots=True)
class _Cursor:
    """The scan's place in ``segment``: the line just read, and the batch that is not complete yet."""

    segment: Segment
    is_last: bool
    expected: int
    """The position after the line just read."""
    line: int = 0
    batch: list[tuple[int, LineKeys, bytes]] = field(default_factory=list)
    next_offsets: dict[str, int] = field(default_factory=dict)
    """The next offsets of the streams in the batch."""


def recover(log: Path, head: Head | None) -> Recovered:
    """Scan the whole log.

    ``head`` is ``None`` if the head file is missing or damaged; then a bad
    line followed by whole records counts as damage, not as a torn tail.

    Raises:
        CorruptLog: a record at or below head is damaged or missing; the error names the file, line and position of the
            first fault.
        ForeignStore: a segment is a symbolic link.
    """
    segments = list_segments(log)
    index = Index()
    size = line_count = 0
    for number, segment in enumerate(segments):
        if segment.first != index.next_position():
            _refuse_segment(segment, index.next_position())
        data = read_file(segment.path)
        cursor = _Cursor(segment, number == len(segments) - 1, segment.first)
        index.segments.append(segment)
        size = 0
        for start, line in split_lines(data):
            cursor.line += 1
            try:
                _take(index, cursor, start, line)
            except BadLine as fault:
                _refuse_damage(cursor, head, str(fault), data[start + len(line) + 1 :])
                return Recovered(index, size, str(fault))
            if not cursor.batch:
                size = start + len(line) + 1
            if head is not None:
                _check_head(index, head, segment, cursor.line)
        if cursor.batch or size < len(data):
            reason = "the batch is incomplete" if cursor.batch else "the last line is incomplete"
            cursor.line += 1
            _refuse_damage(cursor, head, reason, b"")
            return Recovered(index, size, reason)
        line_count = cursor.line
    if head is not None and index.next_position() <= head.position:
        raise lost_end(log, segments, line_count, index.next_position(), head.position)
    return Recovered(index, size, None)


def lost_end(log: Path, segments: Sequence[Segment], lines: int, first: int, head: int) -> CorruptLog:
    """The error for records ``first`` to ``head`` missing after the last segment's ``lines``."""
    # Without a segment, name the directory, because there is no file to name.
    file, line = (str(segments[-1].path), lines + 1) if segments else (str(log), None)
    return CorruptLog(file, line, first, missing_at_end(first, head + 1))


def _take(index: Index, cursor: _Cursor, start: int, line: bytes) -> None:
    keys = parse_keys(line)
    position = keys.position
    if position != cursor.expected:
        raise BadLine(f"its position is {position}; expected {cursor.expected}")
    place, count = keys.tx
    begun = position - place
    if count <= place or not _continues(cursor, begun, count, position):
        raise BadLine("it does not belong to the batch at this position")
    stream_id = keys.event.stream_id
    offset = cursor.next_offsets.get(stream_id)
    if offset is None:
        tail = index.streams.get(stream_id)
        offset = 0 if tail is None else tail.next_offset()
    if keys.offset != offset:
        raise BadLine(f"its stream offset is {keys.offset}; expected {offset}")
    cursor.batch.append((start, keys, _hash_of(keys)))
    cursor.next_offsets[stream_id] = offset + 1
    cursor.expected = position + 1
    if position + 1 < begun + count:
        return
    for begin, member, hash_ in cursor.batch:
        event = member.event
        index.add(event.stream_id, event.idempotency_key, hash_, begin)
    cursor.batch.clear()
    cursor.next_offsets.clear()


def _continues(cursor: _Cursor, begun: int, count: int, position: int) -> bool:
    if not cursor.batch:
        return begun == position
    first = cursor.batch[0][1]
    return (first.position - first.tx[0], first.tx[1]) == (begun, count)


def _hash_of(keys: LineKeys) -> bytes:
    try:
        hash_ = bytes.fromhex(keys.hash)
    except ValueError:
        hash_ = b""
    if len(hash_) != len(GENESIS):
        raise BadLine("its hash is malformed")
    return hash_


def _refuse_segment(segment: Segment, expected: int) -> None:
    if segment.first > expected:
        reason = missing_before(expected, segment.first)
    else:
        reason = f"it begins at position {segment.first}, which is already in an earlier segment"
    # A segment begins only after all earlier records are durable, so a wrong beginning is damage, even above head.
    raise CorruptLog(str(segment.path), 1, expected, reason)


def _refuse_damage(cursor: _Cursor, head: Head | None, reason: str, rest: bytes) -> None:
    # The line before the faulty line shows which position must follow, even if the faulty line is unreadable.
    position = cursor.expected
    below = head is not None and position <= head.position
    unexplained = head is None and any(_is_whole(line) for _, line in split_lines(rest))
    # As in ``_refuse_segment``, everything before a later segment is durable, even if the head file is older.
    if below or unexplained or not cursor.is_last:
        raise CorruptLog(str(cursor.segment.path), cursor.line, position, reason)


def _is_whole(line: bytes) -> bool:
    try:
        parse_keys(line)
    except BadLine:
        return False
    return True


def _check_head(index: Index, head: Head, segment: Segment, line: int) -> None:
    if index.next_position() != head.position + 1 or index.last_hash.hex() == head.hash:
        return
    raise CorruptLog(str(segment.path), line, head.position, "the record's hash differs from the hash in the head file")
