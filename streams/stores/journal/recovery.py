"""Open a journal for writing: scan it, index it, judge its end.

Acknowledged records are at or below head and must be whole: if one of them is damaged or missing, and the database does
not have it, ``CorruptLog`` is raised, and nothing is changed. Records above head were never acknowledged: whole batches
are kept; the first incomplete batch and everything after it are a torn tail, which is to be cut off and kept aside.

What the database has, too, is not judged again: a segment whose records are all in the database is not read, and the
first segment is indexed from the record on that follows the database's last one, which must be the same in both.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from streams.errors import CorruptLog
from streams.stores.head import BadLine, Head
from streams.stores.journal.index import Index
from streams.stores.journal.lines import LineKeys, parse_keys, split_lines
from streams.stores.journal.segments import Segment, end_of, list_segments
from streams.stores.key_digest import key_digest
from streams.stores.missing import missing_at_end, missing_before
from streams.system.files import read_file

Tail = tuple[int, bytes]
TailOf = Callable[[str], Tail]
"""Returns where a stream continues after the database's last record: its next offset, and the hash before it."""


@dataclass(slots=True)
class Recovered:
    """``index`` ends with the last whole batch; ``size`` is where that batch ends in the last segment.

    ``torn`` says why the lines behind it are an incomplete tail; ``None`` if there are none. ``moved`` are the segments
    that are wholly in the database. ``tails`` says where the streams continue that the journal holds.
    """

    index: Index
    moved: list[Segment]
    size: int = 0
    torn: str | None = None
    tails: dict[str, Tail] = field(default_factory=dict)


def recover(journal: Path, head: Head | None, moved: Head, tail_of: TailOf) -> Recovered:
    """Scan the journal, which continues the database, whose last record is ``moved``.

    ``head`` is ``None`` if the head file is missing or damaged; then a bad line followed by whole records counts as
    damage, not as a torn tail.

    Raises:
        CorruptLog: an acknowledged record is damaged or missing.
        ForeignStore: a segment is a symbolic link.
    """
    segments = list_segments(journal)
    start = max((n for n, each in enumerate(segments) if each.first <= moved.position + 1), default=0)
    found = Recovered(Index(moved.position + 1), segments[:start])
    scan = _Scan(found, head, moved, tail_of)
    segments = segments[start:]
    if segments and segments[0].first > moved.position + 1:
        gap = missing_before(moved.position + 1, segments[0].first)
        raise CorruptLog(str(segments[0].path), 1, moved.position + 1, f"{gap}, and the database does not have them")
    for number, segment in enumerate(segments):
        if not scan.read(segment, is_last=number == len(segments) - 1):
            break
    last = max(found.index.next_position() - 1, moved.position)
    if head is not None and last < head.position:
        file, line = end_of(journal, segments, last + 1)
        raise CorruptLog(file, line, last + 1, missing_at_end(last + 1, head.position + 1))
    return found


@dataclass(slots=True)
class _Batch:
    """The lines of a batch that is not complete yet."""

    lines: list[tuple[int, int, LineKeys]] = field(default_factory=list)
    tails: dict[str, Tail] = field(default_factory=dict)


class _Scan:
    def __init__(self, found: Recovered, head: Head | None, moved: Head, tail_of: TailOf) -> None:
        self._found, self._head, self._moved, self._tail_of = found, head, moved, tail_of

    def read(self, segment: Segment, *, is_last: bool) -> bool:
        """Index a segment's whole batches; false if a torn tail ends it."""
        index = self._found.index
        if segment.first != index.next_position() and index.segments:
            gap = missing_before(index.next_position(), segment.first)
            raise CorruptLog(str(segment.path), 1, index.next_position(), gap)
        data, batch, number, expected = read_file(segment.path), _Batch(), 0, segment.first
        index.segments.append(segment)
        self._found.size = 0
        fault: str | None = None
        rest = b""
        for start, line in split_lines(data):
            number += 1
            end = start + len(line) + 1
            if expected <= self._moved.position:
                self._compare(segment, number, expected, line)
                self._found.size, expected = end, expected + 1
                continue
            try:
                self._take(batch, expected, line, start)
            except BadLine as error:
                fault, rest = str(error), data[end:]
                break
            expected += 1
            if not batch.lines:
                self._found.size = end
                self._check_head(segment, number)
        if fault is None and (batch.lines or self._found.size < len(data)):
            fault = "the batch is incomplete" if batch.lines else "the last line is incomplete"
            number += 1
        if is_last and expected <= self._moved.position:
            # Lines that the database has are missing here. A line counts by its number, so this segment takes no more.
            self._refuse_displaced(segment, data)
            self._found.moved.append(index.segments.pop())
            return True
        if fault is None:
            return True
        self._refuse_damage(segment, number, expected, fault, rest, is_last=is_last)
        self._found.torn = fault
        return False

    def _take(self, batch: _Batch, expected: int, line: bytes, start: int) -> None:
        keys = parse_keys(line)
        position, (place, count) = keys.position, keys.tx
        if position != expected:
            raise BadLine(f"its position is {position}; expected {expected}")
        begun = batch.lines[0][2] if batch.lines else keys
        if count <= place or (begun.position, begun.tx[1]) != (position - place, count):
            raise BadLine("it does not belong to the batch at this position")
        name = keys.event.stream_id
        tail = batch.tails.get(name) or self._found.tails.get(name)
        if tail is None:
            tail = self._tail_of(name)
        if keys.offset != tail[0]:
            raise BadLine(f"its stream offset is {keys.offset}; expected {tail[0]}")
        try:
            batch.tails[name] = keys.offset + 1, bytes.fromhex(keys.hash)
        except ValueError:
            raise BadLine("its hash is malformed") from None
        batch.lines.append((start, len(line) + 1, keys))
        if place + 1 < count:
            return
        index = self._found.index
        with index.lock:
            for begin, size, member in batch.lines:
                event = member.event
                digest, hash_ = key_digest(event.idempotency_key), bytes.fromhex(member.hash)
                index.add(event.stream_id, digest, hash_, begin, begin + size)
        self._found.tails.update(batch.tails)
        batch.lines, batch.tails = [], {}

    def _check_head(self, segment: Segment, line: int) -> None:
        index, head = self._found.index, self._head
        if head is not None and head.position == index.next_position() - 1 and head.hash != index.last_hash.hex():
            raise _another(segment, line, head.position, "head file")

    def _compare(self, segment: Segment, line: int, position: int, text: bytes) -> None:
        if position != self._moved.position:
            return
        try:
            keys = parse_keys(text)
        except BadLine:
            return  # the database has the record
        if (keys.position, keys.hash) != (position, self._moved.hash):
            raise _another(segment, line, position, "database")

    def _refuse_displaced(self, segment: Segment, data: bytes) -> None:
        """Refuse records of which only this segment knows, and which are not in their lines."""
        for number, (_, line) in enumerate(split_lines(data), 1):
            with suppress(BadLine):
                if (position := parse_keys(line).position) > self._moved.position:
                    raise CorruptLog(str(segment.path), number, position, "lines are missing before it")

    def _refuse_damage(
        self, segment: Segment, line: int, position: int, reason: str, rest: bytes, *, is_last: bool
    ) -> None:
        head = self._head
        below = head is not None and position <= head.position
        unexplained = head is None and any(_is_whole(other) for _, other in split_lines(rest))
        # A segment begins only after all earlier records are durable.
        if below or unexplained or not is_last:
            raise CorruptLog(str(segment.path), line, position, reason)


def _another(segment: Segment, line: int, position: int, place: str) -> CorruptLog:
    return CorruptLog(str(segment.path), line, position, f"the record's hash differs from the hash in the {place}")


def _is_whole(line: bytes) -> bool:
    try:
        parse_keys(line)
    except BadLine:
        return False
    return True
