"""Verify that each record continues its stream. Pure.

Offsets are dense in a stream, and each record's hash continues the one before it. A gap in a stream is explained by
pruned records, or by lost records, which are already findings. A lost record may have belonged to any stream, so it
explains one skipped offset in each stream. After a gap there is nothing to check the hash against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streams.hashing import GENESIS, chain, digest_form_of
from streams.retention import Base


@dataclass(frozen=True, slots=True)
class _Tail:
    """Where a stream's next record goes. ``lost`` counts the log's lost records before the last record of this stream.

    ``kept``: the stream has records, so it was not fully pruned.
    """

    next_offset: int = 0
    hash: bytes = GENESIS
    lost: int = 0
    kept: bool = False


_BEGIN = _Tail()


class Chains:
    def __init__(self, bases: Mapping[str, Base]) -> None:
        """``bases``: where pruned streams continue. All other streams begin at offset 0."""
        self._tails = {stream_id: _Tail(base.offset, base.hash) for stream_id, base in bases.items()}

    @property
    def kept(self) -> int:
        return sum(tail.kept for tail in self._tails.values())

    def take(self, stream_id: str, offset: int, hash_: bytes, event: bytes, lost: int) -> str | None:
        """Return how the stream's next record contradicts the records before it; ``None`` if it does not.

        ``event`` is the stored event. ``lost`` counts the lost records of the whole log so far. After any fault, the
        stream continues after this record, so that one fault is one finding.
        """
        tail = self._tails.get(stream_id, _BEGIN)
        self._tails[stream_id] = _Tail(offset + 1, hash_, lost, True)
        skipped = offset - tail.next_offset
        if skipped == 0:
            if chain(tail.hash, digest_form_of(event)[1]) != hash_:
                return "it does not continue its stream's hash chain: this record or the one before it was changed"
        elif not 0 < skipped <= lost - tail.lost:
            return f"its stream offset is {offset}; expected {tail.next_offset}"
        return None

    def contradicts(self, stream_id: str, next_offset: int, hash_: bytes) -> bool:
        """True if a stream cannot continue at this offset with this hash. A stream may have grown since."""
        tail = self._tails.get(stream_id, _BEGIN)
        return next_offset < tail.next_offset or (next_offset == tail.next_offset and hash_ != tail.hash)
