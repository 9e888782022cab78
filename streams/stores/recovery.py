"""Opening a jsonl log for writing: scan it, index it, judge its tail.

What was acknowledged lies at or below head and must be whole: anything bad or
missing there is ``CorruptLog``, and nothing is changed. What lies above head was
never acknowledged: whole batches are kept, and from the first incomplete one
on the rest is a torn tail, to be cut and kept aside.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from streams.errors import CorruptLog
from streams.hashing import GENESIS
from streams.retention import NOTHING_REMOVED, Ranges, Removal
from streams.stores.lost_list import explained
from streams.stores.missing import lost_end, missing_before
from streams.stores.segment_files import read_segment
from streams.stores.segments import BadLine, Head, LineKeys, Segment, list_segments, parse_keys, split_lines


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

    def skip_to(self, position: int, start: int) -> None:
        """Pass over removed positions; ``start`` is where the next line begins in its segment."""
        if not self.starts:
            self.first = max(self.first, position)
        elif position > self.next_position():
            self.starts.extend([start] * (position - self.next_position()))

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
    ranges: Ranges
    expected: int
    """The position after the line just taken."""
    line: int = 0
    batch: list[tuple[int, LineKeys, bytes]] = field(default_factory=list)
    next_offsets: dict[str, int] = field(default_factory=dict)
    """Of the streams in the batch."""


def recover(log: Path, head: Head | None, removal: Removal = NOTHING_REMOVED) -> Recovered:
    """Scan the whole log. A record that ``removal`` names is not there, whatever a segment still holds.

    ``head`` is ``None`` when the head file is missing or damaged; then a bad
    line followed by whole records counts as damage, not as a torn tail.

    Raises:
        CorruptLog: file, line and position of the first fault below head.
        MissingFile: the list of pruned records is not there.
        ForeignStore: a segment is a symbolic link.
    """
    try:
        return _recovered(log, head, removal)
    except CorruptLog as fault:
        raise explained(log, fault) from None


def _recovered(log: Path, head: Head | None, removal: Removal) -> Recovered:
    segments = list_segments(log)
    ranges = removal.ranges
    index = Index()
    for name, base in removal.bases.items():
        index.streams[name] = StreamTail(first_offset=base.offset, hash=base.hash)
    size = line_count = 0
    for number, segment in enumerate(segments):
        if not ranges.covers(index.next_position(), segment.first):
            _missing(segment, index.next_position(), ranges)
        index.skip_to(segment.first, 0)
        data = read_segment(segment)
        # What is compressed was closed, so nothing in it is a torn tail.
        is_last = number == len(segments) - 1 and not segment.is_compressed
        cursor = _Cursor(segment, is_last, ranges, segment.first)
        index.segments.append(segment)
        size = 0
        for start, line in split_lines(data):
            cursor.line += 1
            try:
                _take(index, cursor, start, line)
            except BadLine as fault:
                _refuse_damage(cursor, head, str(fault), data[start + len(line) + 1 :])
                return Recovered(_finished(index, ranges, size), size, str(fault))
            if not cursor.batch:
                size = start + len(line) + 1
            if head is not None and not ranges.holds(head.position):
                _check_head(index, head, segment, cursor.line)
        if cursor.batch or size < len(data):
            reason = "the batch is incomplete" if cursor.batch else "the last line is incomplete"
            cursor.line += 1
            _refuse_damage(cursor, head, reason, b"")
            return Recovered(_finished(index, ranges, size), size, reason)
        line_count = cursor.line
    _finished(index, ranges, size)
    if head is not None and index.next_position() <= head.position:
        raise lost_end(log, segments, line_count, ranges, index.next_position(), head.position)
    return Recovered(index, size, None)


def _finished(index: Index, ranges: Ranges, size: int) -> Index:
    """The index with the removed records that follow its last one passed over."""
    end = ranges.following(index.next_position())
    if end > index.next_position():
        index.skip_to(end, size)
        index.last_hash = ""
    return index


def _take(index: Index, cursor: _Cursor, start: int, line: bytes) -> None:
    """Check one line against what must come next, and index its batch when it is whole."""
    keys = parse_keys(line)
    ranges, position = cursor.ranges, keys.position
    if not ranges.covers(cursor.expected, position):
        raise BadLine(f"it is position {position} where {ranges.following(cursor.expected)} must follow")
    if ranges.holds(position):  # what a removal that was cut off left
        cursor.expected = position + 1
        return
    place, count = keys.tx
    begun = position - place
    if count <= place or not _continues(cursor, begun, count, position):
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
    cursor.expected = position + 1
    if ranges.following(position + 1) < begun + count:
        return
    for begin, member, hash_ in cursor.batch:
        event = member.event
        index.skip_to(member.position, begin)
        index.add(event.stream_id, event.idempotency_key, member.offset, hash_, begin)
    cursor.batch.clear()
    cursor.next_offsets.clear()


def _continues(cursor: _Cursor, begun: int, count: int, position: int) -> bool:
    """Whether a record of the batch of ``count`` that began at ``begun`` may stand here."""
    if not cursor.batch:
        return begun >= 0 and cursor.ranges.covers(begun, position)
    first = cursor.batch[0][1]
    return (first.position - first.tx[0], first.tx[1]) == (begun, count)


def _hash_of(keys: LineKeys) -> bytes:
    try:
        hash_ = bytes.fromhex(keys.hash)
    except ValueError:
        hash_ = b""
    if len(hash_) != len(GENESIS):
        raise BadLine("its hash is no hash")
    return hash_


def _missing(segment: Segment, expected: int, ranges: Ranges) -> None:
    if segment.first >= expected:
        reason = missing_before(ranges, expected, segment.first)
        expected = ranges.following(expected)
    else:
        reason = f"it begins at position {segment.first}, which an earlier segment already holds"
    # A segment is begun only after the records before it are durable: this is damage on either side of head.
    raise CorruptLog(str(segment.path), 1, expected, reason)


def _refuse_damage(cursor: _Cursor, head: Head | None, reason: str, rest: bytes) -> None:
    """Raise unless the fault lies in what was never acknowledged; ``rest`` is what follows it in the segment."""
    # What must follow the line before tells the position even when it cannot be read.
    position = cursor.ranges.following(cursor.expected)
    below = head is not None and position <= head.position
    unexplained = head is None and any(_is_whole(line) for _, line in split_lines(rest))
    # As in ``_missing``: before a later segment everything is durable, also when a power loss left an old head.
    if below or unexplained or not cursor.is_last:
        raise CorruptLog(str(cursor.segment.path), cursor.line, position, reason)


def _is_whole(line: bytes) -> bool:
    try:
        parse_keys(line)
    except BadLine:
        return False
    return True


def _check_head(index: Index, head: Head, segment: Segment, line: int) -> None:
    if index.next_position() != head.position + 1 or index.last_hash == head.hash:
        return
    raise CorruptLog(str(segment.path), line, head.position, "its hash is not the one the head file names")
