"""How records that are missing are told: by the same numbers and words, whoever meets the gap. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from streams.errors import CorruptLog
from streams.retention import Ranges
from streams.stores.segments import Segment


def missing_before(pruned: Ranges, first: int, end: int) -> str:
    """Of the records from ``first`` to before ``end``, those that were not pruned are missing; there is one."""
    return f"{pruned.told(first, end)} {'is' if pruned.kept(first, end) == 1 else 'are'} missing before it"


def missing_at_end(pruned: Ranges, first: int, end: int) -> str:
    """The same, at the end of the log."""
    verbs = "was written and is" if pruned.kept(first, end) == 1 else "were written and are"
    return f"{pruned.told(first, end)} {verbs} missing"


def lost_end(log: Path, segments: Sequence[Segment], lines: int, pruned: Ranges, first: int, head: int) -> CorruptLog:
    """The records from ``first`` to ``head`` should follow the last segment's ``lines``, and do not."""
    # Without a segment there is no file to name, let alone a line of it.
    file, line = (str(segments[-1].path), lines + 1) if segments else (str(log), None)
    return CorruptLog(file, line, pruned.following(first), missing_at_end(pruned, first, head + 1))
