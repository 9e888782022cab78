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
from streams.stores.segment_files import read_segment
from streams.stores.segments import BadLine, Head, LineKeys, Segment, list_segments, parse_keys


def key_digest(key: str) -> bytes:
    """What the index keeps of an idempotency key: 16 bytes instead of a string."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


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


@dataclass(slots=True)
class Recovered:
    """The index up to the last whole batch, and where that batch ends."""

    index: Index
    size: int
    """Bytes of the last segment that hold whole batches."""
    torn: str | None
    """Why what follows there is an incomplete tail; ``None`` when nothing follows."""


@dataclass(slots=True)
class _Cursor:
    """The place of the scan in ``segment``: the line just taken, and the batch that is not whole yet."""

    segment: Segment
    is_last: bool
    line: int = 0
    batch: list[tuple[int, LineKeys, bytes]] = field(default_factory=list)
    next_offsets: dict[str, int] = field(default_factory=dict)
    """Of the streams in the batch."""


def recover(log: Path, head: Head | None) -> Recovered:
    """Scan the whole log.

    ``head`` is ``None`` when the head file is missing or damaged; then a bad
    line followed by whole records counts as damage, not as a torn tail.

    Raises:
        CorruptLog: file, line and position of the first fault below head.
        ForeignStore: a segment is a symbolic link.
    """
    segments = list_segments(log)
    index = Index()
    size = 0
    for number, segment in enumerate(segments):
        if segment.first != index.next_position():
            _missing(segment, index.next_position())
        data = read_segment(segment)
        # What is compressed was closed, so nothing in it is a torn tail.
        cursor = _Cursor(segment, is_last=number == len(segments) - 1 and not segment.is_compressed)
        index.segments.append(segment)
        size = 0
        for start, line in _lines(data):
            cursor.line += 1
            try:
                _take(index, cursor, start, line)
            except BadLine as fault:
                _refuse_damage(cursor, head, str(fault), data[start + len(line) + 1 :])
                return Recovered(index, size, str(fault))
            if not cursor.batch:
                size = start + len(line) + 1
            _check_head(index, head, segment, cursor.line)
        if cursor.batch or size < len(data):
            reason = "the batch is incomplete" if cursor.batch else "the last line is incomplete"
            cursor.line += 1
            _refuse_damage(cursor, head, reason, b"")
            return Recovered(index, size, reason)
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
    stream_id = keys.event.stream_id
    offset = cursor.next_offsets.get(stream_id)
    if offset is None:
        tail = index.streams.get(stream_id)
        offset = 0 if tail is None else tail.next_offset()
    if keys.offset != offset:
        raise BadLine(f"it is offset {keys.offset} of its stream where {offset} must follow")
    cursor.batch.append((start, keys, _hash_of(keys)))
    cursor.next_offsets[stream_id] = offset + 1
    if place + 1 < count:
        return
    for begin, member, hash_ in cursor.batch:
        event = member.event
        index.add(event.stream_id, event.idempotency_key, member.offset, hash_, begin)
    cursor.batch.clear()
    cursor.next_offsets.clear()


def _hash_of(keys: LineKeys) -> bytes:
    try:
        hash_ = bytes.fromhex(keys.hash)
    except ValueError:
        hash_ = b""
    if len(hash_) != len(GENESIS):
        raise BadLine("its hash is no hash")
    return hash_


def _missing(segment: Segment, expected: int) -> None:
    reason = f"records {expected} to {segment.first - 1} are missing before it"
    if segment.first < expected:
        reason = f"it begins at position {segment.first}, which an earlier segment already holds"
    # A segment is begun only after the records before it are durable: this is damage on either side of head.
    raise CorruptLog(str(segment.path), 1, expected, reason)


def _refuse_damage(cursor: _Cursor, head: Head | None, reason: str, rest: bytes) -> None:
    """Raise unless the fault lies in what was never acknowledged; ``rest`` is what follows it in the segment."""
    # One record a line, densely: the line tells the position even when it cannot be read.
    position = cursor.segment.first + cursor.line - 1
    below = head is not None and position <= head.position
    unexplained = head is None and any(_is_whole(line) for _, line in _lines(rest))
    # As in ``_missing``: before a later segment everything is durable, also when a power loss left an old head.
    if below or unexplained or not cursor.is_last:
        raise CorruptLog(str(cursor.segment.path), cursor.line, position, reason)


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
