"""The wording for gaps in a log, so that missing records have the same numbers and words everywhere. Pure."""

from __future__ import annotations


def missing_before(first: int, end: int) -> str:
    """The sentence for the records (at least one) from ``first`` up to, but not including, ``end``."""
    return f"{_records(first, end)} {'is' if end - first == 1 else 'are'} missing before it"


def missing_at_end(first: int, end: int) -> str:
    """The sentence for records that are missing at the end of the log."""
    verbs = "was written and is" if end - first == 1 else "were written and are"
    return f"{_records(first, end)} {verbs} missing"


def _records(first: int, end: int) -> str:
    return f"record {first}" if end - first == 1 else f"records {first} to {end - 1}"
