"""What pruning and forgetting remove from a log, and what the log keeps about it. Pure.

*Pruning* removes the oldest records of a stream, a prefix and nothing else.
*Forgetting* replaces payloads by their digests; the records stay in place.

What the log keeps of removed records: the ranges of their positions; for each stream
its ``Base`` (first kept offset, hash of the last removed record), from which its
chain continues; and for each record an ``Entry``, which identifies a late resend
as a duplicate. For forgotten records, the log keeps the streams, and up to which offset each was forgotten. Positions
and offsets are never reused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from streams.hashing import canonical, is_digest

# --- returned to callers ---


class StreamSize(NamedTuple):
    """A stream that holds records; ``bytes`` is the size of its events in canonical form; times are in ms UTC."""

    stream_id: str
    first_offset: int
    next_offset: int
    records: int
    bytes: int
    first_ts: int
    """The earliest time of an event."""
    last_ts: int
    """The latest time of an event."""


class Tally:
    def __init__(self, sizes: Iterable[StreamSize] = ()) -> None:
        """``sizes``: what was counted before."""
        self._sizes = {size.stream_id: size for size in sizes}

    def add(self, stream_id: str, offset: int, ts: int, size: int) -> None:
        s = self._sizes.get(stream_id) or StreamSize(stream_id, offset, offset, 0, 0, ts, ts)
        self._sizes[stream_id] = StreamSize(
            stream_id,
            s.first_offset,
            offset + 1,
            s.records + 1,
            s.bytes + size,
            min(s.first_ts, ts),
            max(s.last_ts, ts),
        )

    def sizes(self) -> list[StreamSize]:
        return [self._sizes[name] for name in sorted(self._sizes)]


class Removed(NamedTuple):
    """What a prune or a forget removed; after a forget, ``bytes`` is how much smaller the events became."""

    records: int = 0
    bytes: int = 0
    streams: int = 0


class StreamRemoval(NamedTuple):
    """What a stream has lost: records below ``first_offset`` were pruned; all or some payloads below ``forgotten_to``
    were forgotten.

    Offsets are dense from 0, so ``first_offset`` is also how many records were removed. Each time, in ms UTC, is that
    of the last prune or forget; ``None`` if there was none.
    """

    first_offset: int = 0
    pruned_ms: int | None = None
    forgotten_to: int = 0
    forgotten_ms: int | None = None


# --- stored ---


class Base(NamedTuple):
    """A pruned stream: its first kept offset, the hash of the record before it, and when it was last pruned."""

    offset: int
    hash: bytes
    at_ms: int


class Mark(NamedTuple):
    offset: int
    at_ms: int


class Entry(NamedTuple):
    """What the log keeps of a removed record: digests of its key and body, its position, offset and hash."""

    key: bytes
    body: bytes
    position: int
    offset: int
    hash: bytes


def body_digest(body: tuple[str, str, str, str]) -> bytes:
    """What an entry keeps of a body: a 16-byte digest of type, stream, actor and payload digest."""
    return blake2b(canonical(body), digest_size=16).digest()


class Ranges:
    """Removed positions, as sorted ranges that do not touch. Immutable."""

    __slots__ = ("_before", "_ends", "_firsts", "count")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """``ranges`` are (first, end), the end exclusive, in any order; they may touch and overlap."""
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in sorted(ranges):
            if end <= first:
                continue
            if self._ends and first <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._firsts.append(first)
                self._ends.append(end)
        lengths = [end - first for first, end in zip(self._firsts, self._ends, strict=True)]
        self._before = list(accumulate(lengths, initial=0))
        self.count = self._before[-1]

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and (self._firsts, self._ends) == (other._firsts, other._ends)

    def __hash__(self) -> int:
        return hash((*self._firsts, *self._ends))

    @property
    def end(self) -> int:
        return self._ends[-1] if self._ends else 0

    def holds(self, position: int) -> bool:
        return self.following(position) != position

    def following(self, position: int) -> int:
        """The first position at or after ``position`` that was not removed."""
        at = bisect_right(self._firsts, position) - 1
        return max(position, self._ends[at]) if at >= 0 else position

    def covers(self, first: int, end: int) -> bool:
        """True if all positions from ``first`` up to, but not including, ``end`` were removed on purpose."""
        return first <= end <= max(self.following(first), first)

    def kept(self, first: int, end: int) -> int:
        """How many positions from ``first`` up to, but not including, ``end`` were not removed."""
        if end <= first:
            return 0
        return end - first - (self._below(end) - self._below(first))

    def _below(self, position: int) -> int:
        at = bisect_right(self._firsts, position)
        return self._before[at] - max(0, self._ends[at - 1] - position) if at else 0

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self._firsts, self._ends, strict=True))


@dataclass(frozen=True, slots=True)
class Removal:
    """All that was removed from a log, without the entries. ``pending``: the files may still hold some of it."""

    ranges: Ranges = field(default_factory=Ranges)
    bases: Mapping[str, Base] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict)
    singles: Ranges = field(default_factory=Ranges)
    """Positions of records that were forgotten one by one, in streams that were not forgotten."""
    singles_in: Mapping[str, Mark] = field(default_factory=dict)
    """Maps a stream to the offset after the last record that was forgotten singly, and the time when that record was
    forgotten.
    """
    pending: bool = False

    def __bool__(self) -> bool:
        return bool(self.bases or self.marks or self.singles)

    def first_offset(self, stream_id: str) -> int:
        base = self.bases.get(stream_id)
        return 0 if base is None else base.offset

    def is_forgotten(self, stream_id: str, offset: int, position: int) -> bool:
        mark = self.marks.get(stream_id)
        return (mark is not None and offset < mark.offset) or self.singles.holds(position)

    def gone(self) -> dict[str, StreamRemoval]:
        names = sorted({*self.bases, *self.marks, *self.singles_in})
        return {name: self._gone(name) for name in names}

    def _gone(self, name: str) -> StreamRemoval:
        base = self.bases.get(name)
        mark = max(filter(None, (self.marks.get(name), self.singles_in.get(name))), default=None)
        return StreamRemoval(
            0 if base is None else base.offset,
            None if base is None else base.at_ms,
            0 if mark is None else mark.offset,
            None if mark is None else mark.at_ms,
        )


NOTHING_REMOVED: Final = Removal(Ranges(), MappingProxyType({}), MappingProxyType({}))
"""Nothing was removed, as in nearly every log. The object is shared and never changed."""


def payload_fault(removal: Removal, stream_id: str, offset: int, position: int, payload: dict[str, Any]) -> str | None:
    """What is wrong with a stored payload, which must be a digest exactly if it was forgotten."""
    if is_digest(payload) == removal.is_forgotten(stream_id, offset, position):
        return None
    if not is_digest(payload):
        return None if removal.pending else "its payload was forgotten but is still there"
    return "its payload is only a digest, but the log has no record that it was forgotten"
