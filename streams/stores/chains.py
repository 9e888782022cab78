"""The streams of a log while it is verified: whether each record continues its own. Pure.

Offsets are dense in a stream, and each record's hash continues the one before it. Two things
explain that a record does not begin where the last one of its stream ended: what was pruned,
and records that are lost, which are findings already. As a lost record may have been of any
stream, it explains one skipped offset in each; behind a jump the hash has nothing to be checked against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streams.hashing import GENESIS, chain, stored_form_of
from streams.retention import Base


@dataclass(frozen=True, slots=True)
class _Tail:
    """Where a stream's next record goes. ``lost`` is how many records were lost in the log before its last one.

    ``kept``: the stream holds records, not all of it was pruned.
    """

    next_offset: int = 0
    hash: bytes = GENESIS
    lost: int = 0
    kept: bool = False


_BEGIN = _Tail()


class Chains:
    """The tails of all streams, moved on record by record in the order of the log."""

    def __init__(self, bases: Mapping[str, Base]) -> None:
        """``bases``: where pruned streams continue. Every other one begins at offset 0."""
        self._tails = {stream_id: _Tail(base.offset, base.hash) for stream_id, base in bases.items()}

    @property
    def kept(self) -> int:
        """How many streams hold records."""
        return sum(tail.kept for tail in self._tails.values())

    def take(self, stream_id: str, offset: int, hash_: bytes, event: dict[str, Any], lost: int) -> str | None:
        """In what the stream's next record contradicts those before it, as a sentence; ``None`` if in nothing.

        ``lost`` is how many records of the whole log were lost so far. Whatever is wrong, the stream continues
        behind this record, so that one fault is one finding.
        """
        tail = self._tails.get(stream_id, _BEGIN)
        self._tails[stream_id] = _Tail(offset + 1, hash_, lost, True)
        skipped = offset - tail.next_offset
        if skipped == 0:
            if chain(tail.hash, stored_form_of(event)[1]) != hash_:
                return "it does not continue its stream's hash chain: it or the record before it was changed"
        elif not 0 < skipped <= lost - tail.lost:
            return f"it is offset {offset} of its stream where {tail.next_offset} must follow"
        return None
