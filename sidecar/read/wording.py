"""Formats values for people: one line of text, moments, counts, sizes, money. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from bridge.opencode.capture.tokens import MOST_COST, MOST_TOKENS, can_be
from streams.query import describe_span

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")

UNKNOWN = "?"
"""What stands for a number that cannot be true: absurd, negative or no number at all."""

_HALF = 1e-9
"""So that half a cent is rounded up, as the page does."""

_LONGEST_MS = 366 * 86_400_000
"""A turn or a call that took longer did not: the clock was set."""

_UNSEEN = re.compile("[\u034f\u115f\u1160\u2800\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]")
"""Characters that Python calls printable, but that a screen shows as nothing or as a space."""


_SPELLS = "\t\u200c\u200d"
"""Characters that Python calls unprintable, but that are part of a text."""

_JOINS = re.compile("(?<=[^\0-\x7f\u200c\u200d])[\u200c\u200d](?=[^\0-\x7f\u200c\u200d])")
"""A joiner where it spells: a single one, between letters or signs that are not ASCII."""


def visible(text: str) -> str:
    """``text`` with its line breaks and tabs, and every character that a screen hides or obeys as ``<U+202E>``.

    For what a person is asked to allow: unlike ``printable``, nothing that is there is left out.
    """
    if text.isprintable() and text.isascii():
        return text
    joins = {found.start() for found in _JOINS.finditer(text)}
    return "".join(
        c if c in "\n\t" or n in joins or (c.isprintable() and not _UNSEEN.match(c)) else f"<U+{ord(c):04X}>"
        for n, c in enumerate(text)
    )


def cut_middle(text: str, most: int) -> tuple[str, int]:
    """``text`` on at most ``most`` characters, and how many characters were left out.

    The beginning and the end stay, because either may be what matters. The text in between says what is missing.
    """
    if len(text) <= most:
        return text, 0
    mark = f" … {len(text)} characters left out … "  # the number that is left out has no more digits than this
    left = len(text) - max(most - len(mark), 2)
    shown = len(text) - left
    return f"{text[: shown - shown // 2]} … {left} characters left out … {text[len(text) - shown // 2 :]}", left


def counted(number: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


WAY_OUT: Final = (
    "`durable-stream export` saves what can be read of a session, and `durable-stream import` puts it into a new home"
)
"""What to do about a damaged log without a backup."""

MANY_WAITING: Final = 100_000
"""So many records in the journal mean that the database does not keep up."""


def waiting_text(waiting: Mapping[str, Any]) -> str:
    """Why the journal grows, and how large it is; empty if there is nothing to say. See ``LogStore.waiting``."""
    size = f"{counted(waiting['records'], 'record')}, {bytes_text(waiting['bytes'])}"
    if waiting["fault"]:
        return f"the journal grows, because its records cannot be moved to the database ({size}): {waiting['fault']}"
    if waiting["records"] > MANY_WAITING:
        return f"the journal grows faster than it is moved to the database: {size}"
    return ""


MANY_LACKING: Final = 10_000
"""So many records take a second or more to get into the tables that commands and pages read."""


def lacking_text(waiting: Mapping[str, Any]) -> str:
    """How many records commands and pages do not show yet, and why; empty if there is nothing to say. See
    ``LogStore.waiting``."""
    lacking = waiting.get("derived") or {"records": 0, "fault": None}
    records = counted(lacking["records"], "record")
    if lacking["fault"]:
        return f"commands and pages cannot show the newest {records}: {lacking['fault']}"
    return f"commands and pages do not show the newest {records} yet" if lacking["records"] > MANY_LACKING else ""


def stored_text(records: int, pruned: int) -> str:
    """How many records there are, and how many were pruned: ``12 records (3 pruned)``."""
    return f"{counted(records, 'record')}{f' ({pruned} pruned)' if pruned else ''}"


def printable(text: str) -> str:
    """``text`` with its line breaks, but without escape sequences, control characters and format characters.

    The two joiners stay: Persian, Hindi and joined emoji are spelled with them, and no terminal obeys them.
    """
    if text.isprintable():
        return text
    lines = _ANSI.sub("", text).split("\n")  # most lines are printable as a whole
    return "\n".join(line if line.isprintable() else "".join(map(_shown, line)) for line in lines)


def _shown(c: str) -> str:
    return c if c.isprintable() or c in _SPELLS else " " if c.isspace() else ""


def one_line(text: str) -> str:
    """``text`` on one line, without escape sequences and other characters that could drive a terminal."""
    return " ".join(printable(text).split())


def local_time(ts: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A moment in the reader's own time zone."""
    try:
        return datetime.fromtimestamp(ts / 1000, UTC).astimezone().strftime(form)
    except (OverflowError, ValueError, OSError):
        return f"{ts}ms"  # a badly wrong clock may give a time after the year 9999


def moment(ts: int) -> str:
    """A moment within a sentence, to the minute: ``22 Nov, 14:03``."""
    return local_time(ts, "%d %b, %H:%M")


def iso_time(ts: int) -> str:
    """A moment for other programs: ISO 8601, UTC, milliseconds."""
    try:
        return datetime.fromtimestamp(ts / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{ts}ms"


def ago(ms: int) -> str:
    """How long ago, in one unit: ``just now``, ``5m ago``, ``3h ago``, ``12d ago``; in the future, ``12d ahead``."""
    return f"{rough_span(abs(ms))} {'ago' if ms >= 0 else 'ahead'}" if abs(ms) >= 60_000 else "just now"


def lasted(ms: float) -> str:
    """How long something took: ``1.2s``, ``3m 05s``, ``2h 10m``; ``?`` if only a clock that was set can say so.

    Every duration that a person sees comes from here, or from ``span`` in the page's ``lib.js``, which does the same.
    """
    return describe_span(ms) if can_be(ms, _LONGEST_MS) else UNKNOWN


def rough_span(ms: int) -> str:
    """The largest unit of ``lasted``, for what nobody needs to know exactly: ``12s``, ``2m``, ``3h``, ``4d``."""
    seconds = max(ms, 0) // 1000
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def amount(number: float) -> str:
    """A count in short form: ``987``, ``12.3k``, ``4.5M``; ``?`` if it cannot be true."""
    if not can_be(number, 1000 * MOST_TOKENS):
        return UNKNOWN
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


def bytes_text(size: int) -> str:
    """A size in bytes, in short form: ``0 B``, ``12.3 KiB``, ``4.5 GiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def plain_money(cost: float) -> str:
    """US dollars for a pipe: all digits, and ``-`` where ``money`` has it."""
    return str(cost) if cost else "-"


def money(cost: float) -> str:
    """US dollars with two decimals: ``-`` for nothing, ``<$0.01`` below half a cent; ``?`` if it cannot be true.

    Every cost that a person sees comes from here, or from ``money`` in the page's ``lib.js``, which does the same.
    """
    if not cost:
        return "-"
    if not can_be(cost, 1000 * MOST_COST):
        return UNKNOWN
    return f"${cost + _HALF:.2f}" if cost >= 0.005 else "<$0.01"
