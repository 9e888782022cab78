"""The wording for gaps, so that missing records have the same numbers and words everywhere. Pure."""

from __future__ import annotations

from typing import Final

from streams.retention import Ranges

NOTHING_PRUNED: Final = Ranges()


def missing_before(first: int, end: int, pruned: Ranges = NOTHING_PRUNED) -> str:
    """The sentence for the unpruned records (at least one) from ``first`` up to, but not including, ``end``."""
    return f"{pruned.told(first, end)} {'is' if pruned.kept(first, end) == 1 else 'are'} missing before it"


def missing_at_end(first: int, end: int, pruned: Ranges = NOTHING_PRUNED) -> str:
    """The sentence for unpruned records that are missing at the end of the log."""
    verbs = "was written and is" if pruned.kept(first, end) == 1 else "were written and are"
    return f"{pruned.told(first, end)} {verbs} missing"
