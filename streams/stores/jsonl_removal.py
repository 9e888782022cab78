"""Pruning and forgetting in a jsonl log.

The manifest first (``removed_files.py``): from its rename on, the records are gone
or listed as forgotten. Then each segment that holds some of them is rewritten
beside itself with the lines that stay, the very same bytes, and renamed into
place, or deleted when none stays; the active segment is rolled before. What a
``kill -9`` leaves to do, the next opening does.

On a disk that is nearly full the records go in portions, each making room for the next, and a segment that could not be
rewritten beside itself is compressed first; what cannot be done even so is refused before anything is noted.
"""

from __future__ import annotations

import errno
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Final

import orjson

from streams.errors import CorruptLog, StoreUnavailable
from streams.hashing import digest_form_of, is_digest, stored_form_of
from streams.retention import ENTRY_BYTES, Base, Entry, Forgotten, Mark, Pruned, Removal, body_digest
from streams.stores.commit import GroupCommit
from streams.stores.disk import Disk
from streams.stores.hints import Hints, remove_kept_aside
from streams.stores.in_turn import InTurn
from streams.stores.recovery import Index, StreamTail, key_digest
from streams.stores.removed_files import RemovedFiles, Run
from streams.stores.reserve import free_bytes, no_room
from streams.stores.rewriting import compress, remove_segment, replace_segment, write_segment_beside
from streams.stores.segment_files import read_segment
from streams.stores.segments import BadLine, Segment, format_stored, parse_keys, parse_stored, split_lines

ENTRIES_A_RUN: Final = 50_000
"""Entries sorted in memory at a time."""

SLACK_BYTES: Final = 64 * 1024
"""What the manifest and the names of new files take, and a little more."""


class JsonlRemover:
    """The part of ``JsonlStore`` that removes. Blocking; ``InTurn`` lets one operation run at a time.

    ``places`` guards where records lie: whoever takes a record's place from the index and opens its segment
    does both under it. ``roll`` begins a new segment, ``head`` says what is durable.
    """

    def __init__(
        self,
        store: Path,
        disk: Disk,
        index: Index,
        files: RemovedFiles,
        places: Lock,
        roll: Callable[[], None],
        head: Callable[[], int],
        turns: InTurn,
    ) -> None:
        self._store, self._disk, self._index, self._files = store, disk, index, files
        self._places, self._roll, self._head, self._turns = places, roll, head, turns
        self._hints = Hints(store)

    def prune(self, cuts: Mapping[str, int], at_ms: int, commits: GroupCommit) -> Pruned:
        """See ``StreamStore.prune``."""
        with _told(self._store, "pruned"):
            self.resume(lambda: commits.exclusively(self._roll))
            records = size = 0
            victims = self._victims(cuts)
            positions = sorted(position for found in victims.values() for position in found)
            self._check(positions)
            while positions:
                portion = positions[: self._fitting(positions)]
                size += self._prune(portion, at_ms, commits)
                records, positions = records + len(portion), positions[len(portion) :]
            return Pruned(records, size, len(victims))

    def _prune(self, positions: Sequence[int], at_ms: int, commits: GroupCommit) -> int:
        """Remove these records, of each stream the first that it holds; returns the size of their events."""
        self._make_rewritable(positions, self._files.removal.pruned(positions, {}), commits)
        runs: list[Run] = []
        bases: dict[str, Base] = {}
        size = self._write_entries(positions, at_ms, runs, bases)
        removal = self._files.removal.pruned(positions, bases)
        commits.exclusively(lambda: self._switch(removal, runs, bases, positions[-1]))
        self._forget_keys(runs)
        self._apply(self._segments_of(positions))
        self._finish()
        return size

    def forget(self, streams: Collection[str], at_ms: int, commits: GroupCommit) -> Forgotten:
        """See ``StreamStore.forget``."""
        with _told(self._store, "forgotten"):
            self.resume(lambda: commits.exclusively(self._roll))
            named = [tail.positions for name in set(streams) if (tail := self._index.streams.get(name)) is not None]
            wanted = sorted(p for found in named for p in found if p <= self._head())
            self._check(wanted)
            self._make_rewritable(wanted, self._files.removal, commits)
            positions = commits.exclusively(lambda: self._mark(set(streams), at_ms))
            if not positions:
                return Forgotten()
            remove_kept_aside(self._store, self._disk)
            size = self._apply(self._segments_of(sorted(p for found in positions.values() for p in found)))
            self._finish()
            return Forgotten(sum(map(len, positions.values())), size, len(positions))

    def finish(self, commits: GroupCommit) -> None:
        """Do what an operation that was cut off left, while others append."""
        with _told(self._store, "removed"):
            self.resume(lambda: commits.exclusively(self._roll))

    def resume(self, roll: Callable[[], None]) -> None:
        """Do what an operation that was cut off left."""
        if not self._files.removal.pending:
            self._files.sweep()
            return
        segments = list(self._index.segments)
        if segments and self._rewritten(segments[-1]) is not None:
            roll()
            segments = list(self._index.segments)
        if self._files.removal.marks:
            remove_kept_aside(self._store, self._disk)
        self._apply(segments[:-1])
        self._finish()

    # Room for it

    def _fitting(self, positions: Sequence[int]) -> int:
        """How many of these records can go at once: what is kept of them must find room before they give any."""
        room = free_bytes(self._store) - 2 * len(self._files.manifest()) - SLACK_BYTES
        # The other half is for the segments that are rewritten.
        most = room // 2 // ENTRY_BYTES
        if len(positions) <= most:
            return len(positions)
        if most <= 0:
            raise no_room(self._store, SLACK_BYTES * 2 - room)
        # Up to where a segment begins: then those before it go as a whole, and none is rewritten twice.
        firsts = [segment.first for segment in self._index.segments]
        boundary = firsts[bisect_right(firsts, positions[most]) - 1]
        return bisect_left(positions, boundary) or most

    def _make_rewritable(self, positions: Sequence[int], removal: Removal, commits: GroupCommit) -> None:
        """Before anything is noted: compress the segments of these records for whose rewriting there is no room.

        Raises:
            StoreUnavailable: there is none for that either. No record was touched.
        """
        touched = self._segments_of(positions)
        following = {a: b.first for a, b in zip(self._index.segments, self._index.segments[1:], strict=False)}
        end = self._index.next_position()
        rewritten = [s for s in touched if removal.ranges.kept(s.first, following.get(s, end))]
        given_back = sum(_size(segment) for segment in touched if segment not in rewritten)
        for segment in sorted(rewritten, key=_size):
            if self._fits(segment, given_back):
                continue
            if segment not in following:
                commits.exclusively(self._roll)
            self._compress(segment, given_back)

    def _fits(self, segment: Segment, given_back: int = 0) -> bool:
        return _size(segment) + SLACK_BYTES <= free_bytes(self._store) + given_back

    def _compress(self, segment: Segment, given_back: int = 0) -> Segment:
        """A closed segment in its compressed form, for whose rewriting there is room."""
        try:
            compressed = segment if segment.is_compressed else compress(self._disk, segment).segment
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise no_room(self._store, _size(segment) + SLACK_BYTES - free_bytes(self._store) - given_back) from error
        if compressed is not segment:
            with self._places:
                self._index.segments[self._index.segments.index(segment)] = compressed
        if not self._fits(compressed, given_back):
            raise no_room(self._store, _size(compressed) + SLACK_BYTES - free_bytes(self._store) - given_back)
        return compressed

    # What is to go

    def _victims(self, cuts: Mapping[str, int]) -> dict[str, Sequence[int]]:
        """The positions to remove, by stream, in order."""
        head = self._head()
        found: dict[str, Sequence[int]] = {}
        for name, cut in cuts.items():
            tail = self._index.streams.get(name)
            if tail is not None and cut > tail.first_offset:
                positions = tail.positions[: cut - tail.first_offset]
                positions = positions[: bisect_right(positions, head)]
                if positions:
                    found[name] = positions
        return found

    def _write_entries(self, positions: Sequence[int], at_ms: int, runs: list[Run], bases: dict[str, Base]) -> int:
        """Runs of what stays of these records, and the bases after them; returns the size of their events."""
        size = 0
        waiting: list[bytes] = []
        for position, line in self._lines_at(positions):
            stored = parse_stored(line)
            event = orjson.loads(stored.event)
            stream = event["stream_id"]
            body = body_digest((event["type"], stream, event["actor"], stored_form_of(event)[0]))
            key = key_digest(event["idempotency_key"])
            waiting.append(Entry(key, body, position, stored.offset, stored.hash).pack())
            bases[stream] = Base(stored.offset + 1, stored.hash, at_ms)
            size += len(stored.event)
            if len(waiting) >= ENTRIES_A_RUN:
                self._write_run(waiting, runs)
        self._write_run(waiting, runs)
        return size

    def _write_run(self, waiting: list[bytes], runs: list[Run]) -> None:
        run = self._files.write_run(sorted(waiting))
        if run is not None:
            runs.append(run)
        waiting.clear()

    def _check(self, positions: Sequence[int]) -> None:
        """Before anything is noted: read all that is to be rewritten, so that damage is told and nothing is begun.

        Of the segment that is written to just now only these records. Raises ``CorruptLog``.
        """
        open_one = self._index.segments[-1] if self._index.segments else None
        for segment in self._segments_of(positions):
            if segment is open_one:
                continue
            self._turns.check()
            data = read_segment(segment)
            for start, line in split_lines(data):
                try:
                    parse_keys(line)
                except BadLine as fault:
                    raise _corrupt(segment, data, start, None, fault) from None
        for _ in self._lines_at([p for p in positions if open_one is not None and p >= open_one.first]):
            pass

    def _lines_at(self, positions: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The lines of these records, in order. Raises ``CorruptLog``."""
        segments, index = list(self._index.segments), self._index
        firsts = [segment.first for segment in segments]
        for number, group in groupby(positions, lambda position: bisect_right(firsts, position) - 1):
            self._turns.check()
            data = read_segment(segments[number])
            for position in group:
                start = index.starts[position - index.first]
                line = data[start : data.find(b"\n", start)]
                try:
                    if parse_keys(line).position != position:
                        raise BadLine("it is another record")
                except BadLine as fault:
                    raise _corrupt(segments[number], data, start, position, fault) from None
                yield position, line

    # The switch; while it runs, no commit does

    def _switch(self, removal: Removal, runs: Sequence[Run], bases: Mapping[str, Base], last: int) -> None:
        try:
            self._files.replace(removal, runs, before=self._rolling(last))
        finally:
            if self._files.removal is removal:
                for name, base in bases.items():
                    tail = self._index.streams[name]
                    # A reader has the old one in hand: it stays as it is.
                    kept = tail.positions[base.offset - tail.first_offset :]
                    self._index.streams[name] = StreamTail(kept, base.offset, tail.hash)

    def _mark(self, names: set[str], at_ms: int) -> dict[str, Sequence[int]]:
        """List the streams as forgotten; the positions of records that this adds."""
        marks: dict[str, Mark] = {}
        found: dict[str, Sequence[int]] = {}
        for name in names:
            tail, before = self._index.streams.get(name), self._files.removal.marks.get(name, Mark(0, 0))
            if tail is None or tail.next_offset() <= before.offset:
                continue
            positions = tail.positions[max(before.offset - tail.first_offset, 0) :]
            if positions:  # else all of it was pruned
                marks[name], found[name] = Mark(tail.next_offset(), at_ms), positions
        if found:
            last = max(positions[-1] for positions in found.values())
            self._files.replace(self._files.removal.forgot(marks), before=self._rolling(last))
        return found

    def _rolling(self, last: int) -> Callable[[], None] | None:
        """What closes the segment that is written to, if the record at ``last`` lies in it."""
        return self._roll if last >= self._index.segments[-1].first else None

    def _forget_keys(self, runs: Sequence[Run]) -> None:
        """Drop the keys of removed records from the index; until then ``known`` sees that they are removed."""
        for key in self._files.keys_of(runs):
            self._index.keys.pop(key, None)

    # The segments

    def _segments_of(self, positions: Sequence[int]) -> list[Segment]:
        segments = list(self._index.segments)
        firsts = [segment.first for segment in segments]
        numbers = dict.fromkeys(bisect_right(firsts, position) - 1 for position in positions)
        return [segments[number] for number in numbers]

    def _apply(self, segments: Sequence[Segment]) -> int:
        """Bring closed segments to what the manifest says; returns how much smaller forgotten events became."""
        ranges = self._files.removal.ranges
        following = {a: b.first for a, b in zip(self._index.segments, self._index.segments[1:], strict=False)}
        # Those that go as a whole first: on a full disk that makes the room which the others need.
        left = []
        for segment in segments:
            if ranges.kept(segment.first, following[segment]):
                left.append(segment)
                continue
            with self._places:
                remove_segment(self._disk, segment)
                self._index.segments.remove(segment)
        saved = 0
        for segment in sorted(left, key=_size):
            self._turns.check()
            end = following[segment]
            saved += self._rewrite(segment if self._fits(segment) else self._compress(segment), end)
        return saved

    def _rewrite(self, segment: Segment, end: int) -> int:
        found = self._rewritten(segment)
        if found is None:
            return 0
        lines, positions, saved = found
        index = self._index
        starts: array[int] = array("Q")
        at, place = 0, 0
        for position in range(max(segment.first, index.first), end):
            starts.append(at)
            if place < len(positions) and positions[place] == position:
                at += len(lines[place])
                place += 1
        finished = write_segment_beside(self._disk, segment, lines)
        with self._places:
            replace_segment(self._disk, segment, finished)
            begin = max(segment.first, index.first) - index.first
            index.starts[begin : begin + len(starts)] = starts
        return saved

    def _rewritten(self, segment: Segment) -> tuple[list[bytes], list[int], int] | None:
        """The lines that stay, their positions, and by how much forgotten ones shrank; ``None``: as they are."""
        removal, data = self._files.removal, read_segment(segment)
        lines: list[bytes] = []
        positions: list[int] = []
        changed, saved = False, 0
        for start, line in split_lines(data):
            try:
                keys = parse_keys(line)
            except BadLine as fault:
                raise _corrupt(segment, data, start, None, fault) from None
            if removal.ranges.holds(keys.position):
                changed = True
                continue
            kept = line + b"\n"
            if removal.is_forgotten(keys.event.stream_id, keys.offset):
                kept = forgotten_line(line)
                changed |= len(kept) != len(line) + 1 or kept[:-1] != line
                saved += len(line) + 1 - len(kept)
            lines.append(kept)
            positions.append(keys.position)
        return (lines, positions, saved) if changed else None

    def _finish(self) -> None:
        self._hints.forget_snapshots()
        self._files.replace(self._files.removal.finished())
        try:
            self._files.compact()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            # It only makes fewer files of them: the next removal does it.
            self._files.sweep()


_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def _size(segment: Segment) -> int:
    return segment.path.stat().st_size


def forgotten_line(line: bytes) -> bytes:
    """A whole line with its payload replaced by its digest, newline included; one that is already so stays."""
    stored = parse_stored(line)
    event = orjson.loads(stored.event)
    if is_digest(event["payload"]):
        return line + b"\n"
    return format_stored(stored._replace(event=digest_form_of(event)[1]))


def _corrupt(segment: Segment, data: bytes, start: int, position: int | None, fault: BadLine) -> CorruptLog:
    return CorruptLog(str(segment.path), data.count(b"\n", 0, start) + 1, position, str(fault))


@contextmanager
def _told(store: Path, what: str) -> Iterator[None]:
    """Operating system errors of a removal as the store's."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"records in {store} could not be {what} as a whole: {error.strerror or error}",
            "free disk space or repair the disk, then try again: what was begun is finished then, or at the next start",
        ) from error
