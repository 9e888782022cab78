"""The rules for a ring at the end of an ordinary turn: the turn's facts, the settings and the focus of its terminal say
whether a person gets a message, and if not, why. Pure.

An ordinary turn is one that a person's own words began, in a session of theirs. Questions of such a session, and
background work, have alerts of their own.
"""

from __future__ import annotations

from typing import Final, Literal

from sidecar.notify_config import NotifyConfig
from sidecar.read.wording import money

Focus = Literal["front", "away", "unknown"]
"""Where the terminal that shows a session is. ``unknown``: no terminal has reported its focus."""

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


def why_not_raised(config: NotifyConfig, outcome: str, took_ms: int) -> str:
    """Why the end of a turn is no alert: a code of ``QUIET``, or empty if it is one."""
    if config.turns == "off":
        return "off"
    if outcome == "aborted":
        return "aborted"
    return "short" if took_ms < config.min_seconds * 1000 else ""


def why_not_sent(config: NotifyConfig, focus: Focus, age_ms: int) -> str:
    """Why such an alert reaches no channel at this moment: a code of ``QUIET``, or empty if it may be sent."""
    if age_ms > OLD_MS:
        return "old"
    if config.turns == "always":
        return ""
    if focus == "front":
        return "in-front"
    return "focus-unknown" if focus == "unknown" and config.turns == "away" else ""


def turn_text(outcome: str, error: str, title: str, session: str) -> str:
    how = _HOW.get(outcome, outcome)
    return f"{title or 'A turn'} {how}{f': {error}' if error else ''} ({session})"


def cost_text(config: NotifyConfig, before: float, cost: float, stream: str) -> str | None:
    """What is said of a cost that has just reached the limit, or twice, four times, … the limit; else ``None``."""
    reached, known = (int(each / config.cost).bit_length() for each in (cost, before))
    text = f"{money(cost)} were spent in {stream}, with its child sessions; your limit is {money(config.cost)}"
    return text if reached > known else None
