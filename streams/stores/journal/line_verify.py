"""Verify the journal, line by line to its end, continuing after each fault.

After an unreadable record, the check continues with the place and the hash in the next readable record, so that one
fault is one finding. A stream's first record after a lost record cannot be checked against anything. Verifying changes
nothing and takes no lock.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from streams.findings import Finding, Kind, Summary, drained
from streams.hashing import is_canonical
from streams.retention import NOTHING_REMOVED, payload_fault
from streams.store import NOTHING
from streams.stores.chains import Chains
from streams.stores.head import BadLine, Head, check_crc
from streams.stores.journal.lines import event_of
from streams.stores.journal.segments import JOURNAL, Segment, list_segments
from streams.stores.missing import missing_at_end, missing_before
from streams.system.threads import in_thread

_CHUNK: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Line:
    stored: bytes
    event: dict[str, Any]
    offset: int
    position: int
    hash: bytes
    index: int
    count: int


@dataclass(slots=True)
class _ScanPlace:
    segment: Segment
    line: int = 0
    is_last: bool = False


@dataclass(slots=True)
class LineVerification:
    """One pass over the lines in ``store``. ``verify`` yields the findings; then ``summary`` has the counts.

    ``progress`` is called with the number of bytes read since its last call.
    """

    store: Path
    progress: Callable[[int], None] | None = None
    files: dict[int, int] = field(default_factory=dict)
    """The open files of the segments, by their first positions. They can be read even after they were deleted."""
    summary: Summary = field(default_factory=Summary)
    _found: list[Finding] = field(default_factory=list)
    _chains: Chains = field(default_factory=lambda: Chains({}))
    _last: int = NOTHING
    """The highest position read so far."""
    _unread: int = 0
    """Bad lines since the last readable record. Each bad line counts as one record, so that this record is not also
    reported as missing."""
    _lost: int = 0
    """Unreadable records of the log so far."""
    _batch: tuple[int, int] = (0, 0)
    """First position and count of the batch being read; (0, 0) between batches."""
    _batch_line: int = 0
    _batch_size: int = 0
    _moved: Head | None = None
    _begun: int = NOTHING
    """The lines up to this position are somebody else's to verify."""

    def size(self) -> int:
        total = 0
        for segment in list_segments(self.store / JOURNAL):
            with suppress(FileNotFoundError):  # its records have moved in the meantime
                total += segment.path.stat().st_size
        return total

    def continue_after(self, position: int, moved: Head | None, chains: Chains, lost: int) -> None:
        """Begin after ``position``, with the chains as they are in the database, which names ``moved`` as its last
        record, and of which ``lost`` records were not read."""
        self._begun = self._last = position
        self._moved, self._lost = moved, lost
        self._chains = chains

    async def verify(self, head: Head | None, segments: list[Segment], writing: bool) -> AsyncIterator[Finding]:
        """Yield every fault of these segments, whose files are in ``files``, in order. ``head`` is what the head file
        said when they were opened. Safe to cancel.

        Raises:
            OSError: a file cannot be read.
        """
        self.summary.segments = len(segments)
        if head is None and (segments or self._begun > NOTHING):
            self._find("missing", self.store / "head", None, None, "it is missing or damaged; the next start renews it")
        limit = head.position if writing and head is not None else None
        for number, segment in enumerate(segments):
            place = _ScanPlace(segment, is_last=number == len(segments) - 1)
            async for data, whole in self._lines(place):
                place.line += 1
                torn = self._take(place, data, whole, head, limit)
                for finding in drained(self._found):
                    yield finding
                if torn:
                    break
        self._finish(segments, head, writing)
        for finding in drained(self._found):
            yield finding

    # --- one line ---

    def _take(self, place: _ScanPlace, data: bytes, whole: bool, head: Head | None, limit: int | None) -> bool:
        expected = self._next_expected()
        if limit is not None and expected > limit:
            return True
        try:
            if not whole:
                raise BadLine("the line has no newline")
            line, has_form = _parse(data)
        except BadLine as fault:
            if place.segment.first + place.line - 1 <= self._begun:
                return False
            if place.is_last and self._is_torn(expected, whole, head):
                self._torn(place, str(fault))
                return True
            self._unread += 1
            self._batch = (0, 0)
            self._find("corrupt", place.segment.path, place.line, expected, str(fault))
            return False
        stream_id = line.event["stream_id"]
        if line.position <= self._begun:
            self._compare(place, line)
            return False
        if self._last == self._begun >= place.segment.first and line.position != place.segment.first + place.line - 1:
            self._find("missing", place.segment.path, place.line, line.position, "lines are missing before it")
        if not has_form:
            self._find(
                "tampered", place.segment.path, place.line, line.position, "it is not in canonical form", stream_id
            )
        if place.line == 1 and line.position != place.segment.first:
            reason = f"the file's name says position {place.segment.first}, but this is position {line.position}"
            self._find("tampered", place.segment.path, 1, line.position, reason, stream_id)
        if line.position <= self._last:
            reason = f"its position is {line.position}; expected {expected}"
            self._find("tampered", place.segment.path, place.line, line.position, reason, stream_id)
            return False
        gap = self._check_position(place, line)
        self._check_batch(place, line, gap)
        self._check_chain(place, line)
        payload = payload_fault(NOTHING_REMOVED, stream_id, line.offset, line.position, line.event["payload"])
        if payload is not None:
            self._find("tampered", place.segment.path, place.line, line.position, payload, stream_id)
        if head is not None and line.position == head.position and head.hash and line.hash.hex() != head.hash:
            reason = "its hash differs from the one in the head file"
            self._find("tampered", place.segment.path, place.line, line.position, reason, stream_id)
        self._last, self._unread = line.position, 0
        self.summary.records += 1
        return False

    def _compare(self, place: _ScanPlace, line: _Line) -> None:
        """Compare a record that the database has, too."""
        if self._moved is not None and line.position == self._moved.position and line.hash.hex() != self._moved.hash:
            reason = "its hash differs from the one in the database"
            self._find("tampered", place.segment.path, place.line, line.position, reason, line.event["stream_id"])

    def _check_position(self, place: _ScanPlace, line: _Line) -> bool:
        between = line.position - self._last - 1
        if between > self._unread:
            first = self._next_expected()
            reason = missing_before(first, line.position)
            self._find("missing", place.segment.path, place.line, first, reason)
        self._lost += between
        return between > 0 or self._unread > 0

    def _check_batch(self, place: _ScanPlace, line: _Line, gap: bool) -> None:
        begun = line.position - line.index
        fits = self._batch == (begun, line.count) if self._batch != (0, 0) else line.index == 0
        if not (fits and line.index < line.count) and not gap:
            reason = f"it is record {line.index + 1} of {line.count} in a batch, but another record is expected here"
            self._find("corrupt", place.segment.path, place.line, line.position, reason, line.event["stream_id"])
        if self._batch != (begun, line.count):
            self._batch_line, self._batch_size = place.line, 0
        self._batch_size += 1
        self._batch = (0, 0) if line.index + 1 >= line.count else (begun, line.count)

    def _check_chain(self, place: _ScanPlace, line: _Line) -> None:
        stream_id = line.event["stream_id"]
        fault = self._chains.take(stream_id, line.offset, line.hash, line.stored, self._lost)
        if fault is not None:
            self._find("tampered", place.segment.path, place.line, line.position, fault, stream_id)

    def _next_expected(self) -> int:
        return self._last + 1 + self._unread

    # --- the end of the log ---

    def _is_torn(self, expected: int, whole: bool, head: Head | None) -> bool:
        return expected > head.position if head is not None else not whole

    def _torn(self, place: _ScanPlace, reason: str) -> None:
        began = self._batch_line if self._batch != (0, 0) else place.line
        records = self._batch_size if self._batch != (0, 0) else 0
        self.summary.records -= records
        self._last -= records
        self._batch = (0, 0)
        reason = f"{reason}; it was never acknowledged, and the next start cuts it off and sets it aside"
        self._find("torn", place.segment.path, began, self._last + 1, reason)

    def _finish(self, segments: list[Segment], head: Head | None, writing: bool) -> None:
        if segments and self._batch != (0, 0) and not writing:
            place = _ScanPlace(segments[-1])
            place.line = self._batch_line
            if head is None or self._last > head.position:
                self._torn(place, "the batch is incomplete")
            else:
                self._find("corrupt", place.segment.path, place.line, self._last, "the batch is incomplete")
        expected = self._next_expected()
        end = (NOTHING if head is None else head.position) + 1
        if expected < end:
            file = segments[-1].path if segments else self.store / JOURNAL
            self._find("missing", file, None, expected, missing_at_end(expected, end))
        self.summary.streams = self._chains.kept
        at = head.position if head is not None else NOTHING
        self.summary.head = at if writing else max(at, self._last)

    # --- files ---

    async def _lines(self, place: _ScanPlace) -> AsyncIterator[tuple[bytes, bool]]:
        rest, start = b"", 0
        while chunk := await in_thread(os.pread, self.files[place.segment.first], _CHUNK, start):
            start += len(chunk)
            self._count(len(chunk))
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            for line in lines:
                yield line, True
        if rest:
            yield rest, False

    def _count(self, size: int) -> None:
        self.summary.bytes += size
        if self.progress is not None:
            self.progress(size)

    def _find(
        self, kind: Kind, file: Path, line: int | None, position: int | None, reason: str, stream_id: str | None = None
    ) -> None:
        self._found.append(Finding(kind, str(file), line, position, stream_id, reason))


def _parse(data: bytes) -> tuple[_Line, bool]:
    check_crc(data)
    try:
        fields = orjson.loads(data)
        event = fields["event"]
        line = _Line(
            event_of(data), event, fields["offset"], fields["position"], bytes.fromhex(fields["hash"]), *fields["tx"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadLine(f"not a record: {type(error).__name__}") from None
    numbers = (line.offset, line.position, line.index, line.count)
    if not all(type(n) is int and n >= 0 for n in numbers) or not isinstance(event.get("payload"), dict):
        raise BadLine("not a record: its fields have the wrong types")
    if not isinstance(event.get("stream_id"), str):
        raise BadLine("not a record: it names no stream")
    return line, is_canonical(data, fields)
