"""Opening a jsonl log for writing: scan it, index it, judge its tail.

What was acknowledged lies at or below head and must be whole: anything bad or
missing there is ``CorruptLog``, and nothing is changed. What lies above head was
never acknowledged: whole batches are kept, and from the first incomplete one
on the rest is a torn tail, to be cut and kept aside.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from streams.errors import CorruptLog
from streams.hashing import GENESIS
from streams.stores.segments import BadLine, Head, LineKeys, Segment, list_segments, parse_keys


def key_digest(key: str) -> bytes:
    """What the index keeps of an idempotency key: 16 bytes instead of a string."""
    return blake2b(key.encode(), digest_size=16).digest()


@dataclass(slots=True)
class StreamTail:
    """What the index knows of one stream."""

    positions: array[int] = field(default_factory=lambda: array("Q"))
    first_offset: int = 0
    hash: bytes = GENESIS

    def next_offset(self) -> int:
        return self.first_offset + len(self.positions)


@dataclass(slots=True)
class Index:
    """Where everything is. Rebuilt from the log at each opening; never the truth itself."""

    segments: list[Segment] = field(default_factory=list)
    first: int = 0
    starts: array[int] = field(default_factory=lambda: array("Q"))
    """Byte offset of each record in its segment, by position - ``first``."""
    streams: dict[str, StreamTail] = field(default_factory=dict)
    keys: dict[bytes, int] = field(default_factory=dict)
    last_hash: str = ""

    def next_position(self) -> int:
        return self.first + len(self.starts)

    def add(self, stream_id: str, key: str, offset: int, hash_: bytes, start: int) -> None:
        """Take the next record of the log."""
        position = self.next_position()
        tail = self.streams.get(stream_id)
        if tail is None:
            tail = self.streams[stream_id] = StreamTail(first_offset=offset)
        tail.positions.append(position)
        tail.hash = hash_
        self.keys.setdefault(key_digest(key), position)
        self.starts.append(start)
        self.last_hash = hash_.hex()


@dataclass(frozen=True, slots=True)
class Torn:
    """An incomplete tail: everything from ``byte`` of ``segment`` on, and all later segments."""

    segment: Segment
    byte: int
    line: int
    reason: str


@dataclass(slots=True)
class Recovered:
    """The index up to the last whole batch, where that batch ends, and what is torn after it."""

    index: Index
    size: int
    """Bytes of the last segment that hold whole batches."""
    torn: Torn | None


@dataclass(slots=True)
class _Cursor:
    """The place of the scan."""

    segment: Segment
    line: int = 0
    batch_byte: int = 0
    batch_line: int = 1
    batch: list[tuple[int, LineKeys]] = field(default_factory=list)


def recover(log: Path, head: Head | None) -> Recovered:
    """Scan the whole log.

    ``head`` is ``None`` when the head file is missing or damaged; then a bad
    line followed by whole records counts as damage, not as a torn tail.

    Raises:
        CorruptLog: file, line and position of the first fault below head.
    """
    segments = list_segments(log)
    index = Index(first=segments[0].first if segments else 0)
    size = 0
    for number, segment in enumerate(segments):
        if segment.first != index.next_position():
            _missing(segment, index.next_position(), head)
        data = segment.path.read_bytes()
        cursor = _Cursor(segment)
        index.segments.append(segment)
        size = 0
        for start, line in _lines(data):
            cursor.line += 1
            try:
                _take(index, cursor, start, line)
            except BadLine as fault:
                rest = data[start + len(line) + 1 :]
                later = segments[number + 1 :]
                _refuse_below_head(segment, cursor, head, str(fault), rest, later)
                return Recovered(index, size, Torn(segment, cursor.batch_byte, cursor.batch_line, str(fault)))
            if not cursor.batch:
                size = start + len(line) + 1
                cursor.batch_byte, cursor.batch_line = size, cursor.line + 1
            _check_head(index, head, segment, cursor.line)
        if cursor.batch or size < len(data):
            reason = "the batch is incomplete" if cursor.batch else "the last line is incomplete"
            cursor.line += 1
            _refuse_below_head(segment, cursor, head, reason, b"", segments[number + 1 :])
            return Recovered(index, size, Torn(segment, cursor.batch_byte, cursor.batch_line, reason))
    if head is not None and index.next_position() <= head.position:
        file = segments[-1].path if segments else log
        raise CorruptLog(
            str(file),
            1 if not segments else index.next_position() - segments[-1].first + 1,
            index.next_position(),
            f"records {index.next_position()} to {head.position} were written and are missing",
        )
    return Recovered(index, size, None)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Complete lines with their byte offsets; an unfinished last one is left out."""
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        yield start, data[start:end]
        start = end + 1


def _take(index: Index, cursor: _Cursor, start: int, line: bytes) -> None:
    """Check one line against what must come next, and index its batch when it is whole."""
    keys = parse_keys(line)
    expected = index.next_position() + len(cursor.batch)
    if keys.position != expected:
        raise BadLine(f"it is position {keys.position} where {expected} must follow")
    place, count = keys.tx
    if place != len(cursor.batch) or count <= place or (cursor.batch and cursor.batch[0][1].tx[1] != count):
        raise BadLine("it does not continue its batch")
    cursor.batch.append((start, keys))
    if place + 1 < count:
        return
    for begin, member in cursor.batch:
        event = member.event
        tail = index.streams.get(event.stream_id)
        if tail is not None and tail.next_offset() != member.offset:
            raise BadLine(f"it is offset {member.offset} of its stream where {tail.next_offset()} must follow")
        index.add(event.stream_id, event.idempotency_key, member.offset, bytes.fromhex(member.hash), begin)
    cursor.batch.clear()


def _missing(segment: Segment, expected: int, head: Head | None) -> None:
    reason = f"records {expected} to {segment.first - 1} are missing before it"
    if segment.first < expected:
        reason = f"it begins at position {segment.first}, which an earlier segment already holds"
    # A segment is begun only after the records before it are durable: this is damage on either side of head.
    raise CorruptLog(str(segment.path), 1, expected, reason)


def _refuse_below_head(
    segment: Segment, cursor: _Cursor, head: Head | None, reason: str, rest: bytes, later: list[Segment]
) -> None:
    """Raise unless the fault lies in what was never acknowledged."""
    # One record a line, densely: the line tells the position even when it cannot be read.
    position = segment.first + cursor.line - 1
    below = head is not None and position <= head.position
    unexplained = head is None and (bool(later) or any(_is_whole(line) for _, line in _lines(rest)))
    if below or unexplained:
        raise CorruptLog(str(segment.path), cursor.line, position, reason)


def _is_whole(line: bytes) -> bool:
    try:
        parse_keys(line)
    except BadLine:
        return False
    return True


def _check_head(index: Index, head: Head | None, segment: Segment, line: int) -> None:
    if head is None or index.next_position() != head.position + 1 or index.last_hash == head.hash:
        return
    raise CorruptLog(str(segment.path), line, head.position, "its hash is not the one the head file names")
