"""The rules for a ring at the end of an ordinary turn: the turn's facts, the settings and the focus of its terminal say
whether a person gets a message, and if not, why. Pure.

An ordinary turn is one that a person's own words began, in a session of theirs. Questions of such a session, and
background work, have alerts of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sidecar.notify_config import Turns

Focus = Literal["front", "away", "unknown"]
"""Where the terminal that shows a session is. ``unknown``: no terminal has told its focus."""

OLD_MS: Final = 86_400_000
"""A turn that ended longer ago than this does not ring, such as one of an imported session."""

QUIET: Final = {
    "off": "turns do not ring",
    "aborted": "a person ended the turn",
    "old": "the turn ended more than a day ago",
    "short": "the turn was short",
    "in-front": "its terminal is in front",
    "focus-unknown": "no terminal tells whether it is in front",
}
"""Why a turn does not ring: each code with its text."""

_HOW: Final = {"completed": "finished", "failed": "failed", "interrupted": "was interrupted", "stopped": "stopped"}


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that decide: ``turns`` and ``min_seconds`` of ``[notify]``."""

    turns: Turns = "off"
    min_ms: int = 0


def why_not_raised(rules: Rules, outcome: str, took_ms: int) -> str:
    """Why the end of a turn is no alert: a code of ``QUIET``, or empty if it is one."""
    if rules.turns == "off":
        return "off"
    if outcome == "aborted":
        return "aborted"
    return "short" if took_ms < rules.min_ms else ""


def why_not_sent(rules: Rules, focus: Focus, age_ms: int) -> str:
    """Why such an alert reaches no channel at this moment: a code of ``QUIET``, or empty if it may be sent."""
    if age_ms > OLD_MS:
        return "old"
    if rules.turns == "always":
        return ""
    if focus == "front":
        return "in-front"
    return "focus-unknown" if focus == "unknown" and rules.turns == "away" else ""


def turn_text(outcome: str, error: str, title: str, session: str) -> str:
    how = _HOW.get(outcome, outcome)
    return f"{title or 'A turn'} {how}{f': {error}' if error else ''} ({session})"
