"""What the recording lost: in which stream, how much, why, and what a person can do about it. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sidecar.read.fields import as_int, as_text
from sidecar.read.wording import moment

GAP: Final = "capture.gap"

SHOWN: Final = 3
"""Maximum number of losses and of streams that a text names one by one."""

_READ_AGAIN = "after the session's next turn, the sidecar adds the turns that OpenCode still has"
_REASONS: Final = {
    "text_cut": ("OpenCode ended while it wrote them", "ask again if you need them"),
    "not_kept": ("no sidecar answered and no spool could be written until OpenCode ended", _READ_AGAIN),
    "feed_broken": ("OpenCode announced its events to nobody for a moment", _READ_AGAIN),
    "memory_full": ("no sidecar answered, no spool could be written, and the plugin's memory was full", _READ_AGAIN),
    "spool_damaged": ("the spool file is damaged", _READ_AGAIN),
    "unserialisable": ("JSON cannot hold what OpenCode handed over", _READ_AGAIN),
}
"""For each reason of a gap: why something was lost, and what to do."""


class Loss(msgspec.Struct):
    """What was lost for one reason, in one session or in one OpenCode process (``boot``).

    ``gaps`` is how many events reported it, ``lost`` is how many hooks or answers are missing, and ``last_ts`` is the
    time of the newest event, in ms since 1970. ``streams`` are the streams that may lack something.
    """

    reason: str
    boot: str
    streams: list[str]
    gaps: int = 0
    lost: int = 0
    last_ts: int = 0


def lost_text(payload: dict[str, Any]) -> str:
    """What one gap lost, and why: ``3 hooks lost: the spool file is damaged``."""
    reason = as_text(payload.get("reason"))
    why = _REASONS[reason][0] if reason in _REASONS else reason.replace("_", " ")
    return ": ".join(filter(None, (_what(reason, as_int(payload.get("lost")) or 0), why)))


def loss_text(loss: Loss, streams: list[str]) -> str:
    """The whole sentence: in which of ``streams`` something is missing, what, why, when, and what to do."""
    named = ", ".join(streams[-SHOWN:]) + f" and {len(streams) - SHOWN} more" * (len(streams) > SHOWN)
    where = f"one of {named}" if len(streams) > 1 else named or "an OpenCode that recorded no session"
    what = lost_text({"reason": loss.reason, "lost": loss.lost})
    todo = _REASONS[loss.reason][1] if loss.reason in _REASONS else "`durable-stream query --type capture.gap` shows it"
    return f"{where}: {what}, last on {moment(loss.last_ts)}; {todo}"


def _what(reason: str, lost: int) -> str:
    if reason == "text_cut":
        return f"the words of {lost} answers lost" if lost > 1 else "the words of an answer lost"
    return f"{lost} hook{'s'[: lost != 1]} lost" if lost else "hooks lost"
