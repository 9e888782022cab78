"""Verifying a whole jsonl log, line by line, on to its end whatever is found on the way.

Where a record cannot be read, what depends on it (the next place, the next
link of its stream's chain) is taken from what follows, so that one fault is
one finding; the first record of a stream after a lost one has nothing to be
checked against. Nothing is changed, and no lock is taken: beside a running writer
the log is verified up to the head of that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from streams.errors import CorruptLog, MissingFile
from streams.findings import Finding, Found, Kind, Summary
from streams.hashing import canonical, is_digest
from streams.retention import Ranges, payload_fault
from streams.store import NOTHING
from streams.stores.chains import Chains
from streams.stores.directory import is_being_written
from streams.stores.jsonl_reader import Replaced, chunks
from streams.stores.lost_list import lost_list_text, pruned_by_runs
from streams.stores.missing import missing_at_end, missing_before
from streams.stores.removed_files import MANIFEST, RemovedLog, read_removed, run_faults, version_of
from streams.stores.rewriting import refuse_difference
from streams.stores.segment_files import DamagedSegment, logical_size
from streams.stores.segments import (
    BadLine,
    Head,
    Segment,
    check_crc,
    list_segments,
    read_head,
)
from streams.stores.store_verify import lost_findings, manifest_finding

_QUICK_SEGMENTS = 2
"""How many a quick look takes; the last one may have just been begun."""


@dataclass(frozen=True, slots=True)
class _Line:
    """One whole line of the log, parsed."""

    event: dict[str, Any]
    offset: int
    position: int
    hash: bytes
    index: int
    count: int


@dataclass(slots=True)
class _Place:
    """Where the scan is."""

    segment: Segment
    line: int = 0
    is_last: bool = False
    skipped: bool = False
    """Whether lines that cannot be counted were lost in this segment since the last one that was read."""


@dataclass(slots=True)
class JsonlVerification:
    """One pass over the log in ``store``. ``run`` gives the findings, ``summary`` the counts when it is done.

    ``progress`` is called with the number of bytes read since its last call.
    """

    store: Path
    progress: Callable[[int], None] | None = None
    alone: bool = False
    quick: bool = False
    summary: Summary = field(default_factory=Summary)
    _found: Found = field(init=False)
    _told: set[Finding] = field(default_factory=set)
    _removed: RemovedLog = field(default_factory=RemovedLog)
    _chains: Chains = field(default_factory=lambda: Chains({}))
    _unlisted: Ranges = field(default_factory=Ranges)
    """Positions that were pruned, as digests of records tell where the list of them is gone or damaged."""
    _list_is_lost: bool = False
    _gone: int = 0
    """Records of those positions that are not there."""
    _bare: dict[str, int] = field(default_factory=dict)
    """By stream, records of which only a digest of the payload is there, and no list says that it was forgotten."""
    _last: int = NOTHING
    """The highest position read so far."""
    _unread: int = 0
    """Bad lines since then: each stands for one record, which is not missing besides."""
    _skipped: bool = False
    """Whether there are records since then that a damaged file keeps from being counted; the next one tells."""
    _lost: int = 0
    """Records of the log that could not be read, so far."""
    _batch: tuple[int, int] = (0, 0)
    """First position and count of the batch that is being read; (0, 0) between batches."""
    _batch_line: int = 0
    _batch_size: int = 0

    def __post_init__(self) -> None:
        self._found = Found(self.summary)

    def size(self) -> int:
        """Bytes to read, for a progress bar: of the lines, whether or not they are compressed."""
        total = 0
        for segment in list_segments(self.store / "log"):
            with suppress(FileNotFoundError):  # pruned meanwhile
                total += logical_size(segment)
        return total

    async def run(self) -> AsyncIterator[Finding]:
        """Every fault in the order of the log. Cancelling it is safe.

        Raises:
            ForeignStore: a newer version or another program wrote the store, or a file of it is a symbolic link.
            OSError: a file cannot be read.
        """
        while True:
            try:
                version = version_of(self.store / "log")
                async for finding in self._pass():
                    # What is missing or different may just have been removed: then the log is judged anew.
                    if version_of(self.store / "log") != version:
                        raise Replaced
                    if finding not in self._told:
                        self._told.add(finding)
                        yield finding
                self.summary.findings = len(self._told)
                return
            except Replaced:
                self._begin_anew()

    def _begin_anew(self) -> None:
        self.summary.reset()
        self._found.clear()
        self._last, self._unread, self._lost, self._skipped = NOTHING, 0, 0, False
        self._gone = 0
        self._bare.clear()
        self._batch, self._batch_line, self._batch_size = (0, 0), 0, 0

    async def _pass(self) -> AsyncIterator[Finding]:
        writing = not self.alone and is_being_written(self.store)
        head = read_head(self.store / "head")
        self._read_removed(writing)
        segments = list_segments(self.store / "log")
        self.summary.segments = len(segments)
        self._found.add(manifest_finding(self.store, has_log=head is not None or bool(segments)))
        if head is None and segments:
            self._find("missing", self.store / "head", None, None, "it is missing or damaged; the next start renews it")
        limit = head.position if writing and head is not None else None
        if self.quick and len(segments) > _QUICK_SEGMENTS:
            segments = segments[-_QUICK_SEGMENTS:]
            # What came before counts as lost: it explains any first offset, and the chain is checked from there on.
            self._last, self._lost = segments[0].first - 1, segments[0].first
        for number, segment in enumerate(segments):
            place = _Place(segment, is_last=number == len(segments) - 1 and not segment.is_compressed)
            await self._check_forms(segment)
            async for data, whole in self._lines(place):
                place.line += 1
                torn = self._take(place, data, whole, head, limit)
                for finding in self._found.drain():
                    yield finding
                if torn:
                    break
        self._finish(segments, head, writing)
        if not writing:
            for lost in lost_findings(self.store, max(self._next_expected() - 1, self.summary.head)):
                self._found.add(lost)
        for finding in self._found.drain():
            yield finding

    # What was removed

    @property
    def _ranges(self) -> Ranges:
        return self._removed.removal.ranges

    @property
    def _known_gone(self) -> Ranges:
        """Positions that need not be there: those that were pruned, whatever tells it."""
        return self._unlisted if self._list_is_lost else self._ranges

    def _read_removed(self, writing: bool) -> None:
        log = self.store / "log"
        self._removed = RemovedLog()
        self._list_is_lost = not (log / MANIFEST).exists()
        try:
            self._removed = read_removed(log)
        except CorruptLog as fault:
            self._list_is_lost = True
            self._find("corrupt", Path(fault.file), None, None, fault.reason)
        self._unlisted = pruned_by_runs(log) if self._list_is_lost else Ranges()
        for lost in run_faults(log, self._removed.runs):
            kind: Kind = "missing" if isinstance(lost, MissingFile) else "corrupt"
            self._find(kind, Path(lost.file), None, None, lost.reason)
        removal = self._removed.removal
        if removal.pending and not writing:
            reason = "what was pruned or forgotten is not wholly gone from the files; the next start finishes it"
            self._find("torn", log / MANIFEST, None, None, reason)
        self._chains = Chains(removal.bases)
        self.summary.pruned = removal.ranges.count

    def _is_left_over(self, place: _Place, line: _Line) -> bool:
        """Whether the line is of a pruned record, which only a removal that is not finished may leave."""
        if not self._ranges.holds(line.position):
            return False
        if not self._removed.removal.pending:
            reason = "it was pruned and is there all the same"
            self._find("tampered", place.segment.path, place.line, line.position, reason, line.event["stream_id"])
        return True

    def _check_payload(self, place: _Place, line: _Line) -> None:
        stream_id = line.event["stream_id"]
        if self._list_is_lost and is_digest(line.event["payload"]):
            self._bare[stream_id] = self._bare.get(stream_id, 0) + 1
            self.summary.forgotten += 1
            return
        fault = payload_fault(self._removed.removal, stream_id, line.offset, line.event["payload"])
        self.summary.forgotten += is_digest(line.event["payload"]) and fault is None
        if fault is not None:
            self._find("tampered", place.segment.path, place.line, line.position, fault, stream_id)

    def _judge_list(self) -> None:
        """Tell of a list that is gone by what it would explain; without that, nothing was ever removed."""
        self.summary.pruned += self._gone
        path = self.store / "log" / MANIFEST
        if not path.exists() and (self._gone or self._bare):
            self._find("missing", path, None, None, lost_list_text(self._gone, self._bare))

    # One line

    def _take(self, place: _Place, data: bytes, whole: bool, head: Head | None, limit: int | None) -> bool:
        """Judge one line; true when the rest of the log is torn or not yet durable."""
        expected = self._next_expected()
        if limit is not None and expected > limit:
            return True
        try:
            if not whole:
                raise BadLine("the line has no end")
            line, is_canonical = _parse(data)
        except BadLine as fault:
            if place.is_last and self._is_torn(expected, whole, head):
                self._torn(place, str(fault))
                return True
            self._unread += 1
            self._batch = (0, 0)
            self._find("corrupt", place.segment.path, place.line, expected, str(fault))
            return False
        if self._skipped:
            expected = self._count_skipped(place, line.position, expected)
        stream_id = line.event["stream_id"]
        if not is_canonical:
            self._find(
                "tampered", place.segment.path, place.line, line.position, "it is not in canonical form", stream_id
            )
        if self._is_left_over(place, line):
            return False
        if place.line == 1 and not self._known_gone.covers(place.segment.first, line.position):
            reason = f"the file is named after position {place.segment.first}, but this is position {line.position}"
            self._find("tampered", place.segment.path, 1, line.position, reason, stream_id)
        if line.position <= self._last:
            reason = f"it is position {line.position} where {expected} must follow"
            self._find("tampered", place.segment.path, place.line, line.position, reason, stream_id)
            return False
        gap = self._check_position(place, line)
        self._check_batch(place, line, gap, head)
        self._check_chain(place, line)
        self._check_payload(place, line)
        if head is not None and line.position == head.position and head.hash and line.hash.hex() != head.hash:
            reason = "its hash is not the one that the head file names"
            self._find("tampered", place.segment.path, place.line, line.position, reason, stream_id)
        self._last, self._unread = line.position, 0
        self.summary.records += 1
        return False

    def _check_position(self, place: _Place, line: _Line) -> bool:
        """Positions are dense: whether records are lost before this line."""
        between = self._ranges.kept(self._last + 1, line.position)
        missing = between - self._unread
        if missing > 0:
            first = self._missing(self._next_expected(), line.position)
            if first is not None:
                reason = missing_before(self._known_gone, first, line.position)
                self._find("missing", place.segment.path, place.line, first, reason)
        self._lost += between
        return between > 0 or self._unread > 0

    def _missing(self, first: int, end: int) -> int | None:
        """The first record from ``first`` to before ``end``, which are not there, that should be; counts the others."""
        lost = self._known_gone.kept(first, end)
        self._gone += self._ranges.kept(first, end) - lost
        return self._known_gone.following(first) if lost else None

    def _check_batch(self, place: _Place, line: _Line, gap: bool, head: Head | None) -> None:
        """Batches are whole: indices 0, 1, … up to their count."""
        begun = line.position - line.index
        if self._batch != (0, 0):
            fits = self._batch == (begun, line.count)
        else:
            fits = begun >= 0 and self._ranges.covers(begun, line.position)
        fits = fits and line.index < line.count
        if not fits and not gap:
            reason = f"it is record {line.index + 1} of {line.count} of a batch where another must follow"
            self._find("corrupt", place.segment.path, place.line, line.position, reason, line.event["stream_id"])
        if self._batch != (begun, line.count):
            self._batch_line, self._batch_size = place.line, 0
        self._batch_size += 1
        is_whole = self._ranges.following(line.position + 1) >= begun + line.count
        self._batch = (0, 0) if is_whole else (begun, line.count)

    def _check_chain(self, place: _Place, line: _Line) -> None:
        stream_id = line.event["stream_id"]
        fault = self._chains.take(stream_id, line.offset, line.hash, line.event, self._lost)
        if fault is not None:
            self._find("tampered", place.segment.path, place.line, line.position, fault, stream_id)

    def _next_expected(self) -> int:
        """The position that must follow what was read and what could not be."""
        following = self._ranges.following(self._last + 1)
        for _ in range(self._unread):
            following = self._ranges.following(following + 1)
        return following

    # The end of the log

    def _is_torn(self, expected: int, whole: bool, head: Head | None) -> bool:
        """A fault above head is what a killed writer left. Without a head file only an unfinished line can be."""
        return expected > head.position if head is not None else not whole

    def _torn(self, place: _Place, reason: str) -> None:
        began = self._batch_line if self._batch != (0, 0) else place.line
        records = self._batch_size if self._batch != (0, 0) else 0
        self.summary.records -= records
        self._last -= records
        self._batch = (0, 0)
        reason = f"{reason}; it was never acknowledged, and the next start cuts it off and keeps it aside"
        self._find("torn", place.segment.path, began, self._last + 1, reason)

    def _finish(self, segments: list[Segment], head: Head | None, writing: bool) -> None:
        begun, count = self._batch
        if count and self._known_gone.following(self._last + 1) >= begun + count:
            self._batch = (0, 0)  # its other records were pruned
        if segments and self._batch != (0, 0) and not writing:
            place = _Place(segments[-1])
            place.line = self._batch_line
            if head is None or self._last > head.position:
                self._torn(place, "the batch is not whole")
            else:
                self._find("corrupt", place.segment.path, place.line, self._last, "the batch is not whole")
        expected = self._next_expected()
        end = max(NOTHING if head is None else head.position, self._ranges.end - 1) + 1
        if expected < end and not self._skipped and (first := self._missing(expected, end)) is not None:
            file = segments[-1].path if segments else self.store / "log"
            self._find("missing", file, None, first, missing_at_end(self._known_gone, first, end))
        self._judge_list()
        self.summary.streams = self._chains.kept
        at = head.position if head is not None else NOTHING
        self.summary.head = at if writing else max(at, self._ranges.following(self._last + 1) - 1)

    # Files

    async def _lines(self, place: _Place) -> AsyncIterator[tuple[bytes, bool]]:
        """The lines of a segment without their newlines; a last one that has none is not whole."""
        rest = b""
        start: int | None = 0
        while start is not None:
            try:
                async for chunk in chunks(place.segment, start):
                    self._count(len(chunk))
                    start += len(chunk)
                    lines = (rest + chunk).split(b"\n")
                    rest = lines.pop()
                    for line in lines:
                        yield line, True
                break
            except DamagedSegment as damage:
                self._skip(place, damage)
                start, rest = damage.following, b""
        if rest:
            yield rest, False

    def _count(self, size: int) -> None:
        self.summary.bytes += size
        if self.progress is not None:
            self.progress(size)

    def _skip(self, place: _Place, damage: DamagedSegment) -> None:
        """Lines that are lost together are one fault, however many they are."""
        line, position = place.line + 1, self._next_expected()
        if self._skipped:
            self._find("corrupt", place.segment.path, None, None, damage.reason)
        else:
            self._find("corrupt", place.segment.path, line, position, damage.reason)
        self._skipped = place.skipped = True
        self._batch = (0, 0)

    def _count_skipped(self, place: _Place, position: int, expected: int) -> int:
        """The line after lost ones tells how many they were; returns what must follow them."""
        lost = self._ranges.kept(expected, position)
        self._unread += lost
        if place.skipped:
            place.line += lost
        self._skipped = place.skipped = False
        return max(expected, position)

    async def _check_forms(self, segment: Segment) -> None:
        """A segment that lies there both plain and compressed is read plain; the other must say the same."""
        other = segment.other_form()
        if segment.is_compressed or not other.path.exists():
            return
        try:
            await asyncio.to_thread(refuse_difference, segment)
        except CorruptLog as fault:
            self._find("corrupt", other.path, None, segment.first, fault.reason)
        except FileNotFoundError:
            return  # a writer beside us has just settled it

    def _find(
        self, kind: Kind, file: Path, line: int | None, position: int | None, reason: str, stream_id: str | None = None
    ) -> None:
        self._found.add(Finding(kind, str(file), line, position, stream_id, reason))


def _parse(data: bytes) -> tuple[_Line, bool]:
    """A whole line, and whether it is in canonical form. Raises ``BadLine``."""
    check_crc(data)
    try:
        fields = orjson.loads(data)
        event = fields["event"]
        line = _Line(event, fields["offset"], fields["position"], bytes.fromhex(fields["hash"]), *fields["tx"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadLine(f"not a record: {type(error).__name__}") from None
    numbers = (line.offset, line.position, line.index, line.count)
    if not all(type(n) is int and n >= 0 for n in numbers) or not isinstance(event.get("payload"), dict):
        raise BadLine("not a record: its fields are of other types")
    if not isinstance(event.get("stream_id"), str):
        raise BadLine("not a record: it names no stream")
    return line, canonical(fields) == data
