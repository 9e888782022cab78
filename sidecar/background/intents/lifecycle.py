"""The life cycle of intents, as a transition table. Pure.

A combination of state and event that is not in the table changes nothing.
"""

from __future__ import annotations

from typing import Final

INTENT: Final[dict[str, dict[str, str]]] = {
    "queued": {
        "intent.starting": "starting",
        "intent.finishing": "finishing",
        "intent.cancelled": "cancelled",
        "intent.failed": "failed",
    },
    "starting": {
        "intent.started": "running",
        "intent.unhosted": "queued",
        "intent.finishing": "finishing",
        "intent.cancelled": "cancelled",
        "intent.failed": "failed",
    },
    "running": {
        "intent.interrupted": "resuming",
        "intent.finishing": "finishing",
        "intent.completed": "completed",
        "intent.failed": "failed",
        "intent.cancelling": "cancelling",
        "intent.cancelled": "cancelled",
    },
    "resuming": {
        "intent.resumed": "running",
        "intent.interrupted": "resuming",
        "intent.finishing": "finishing",
        "intent.completed": "completed",
        "intent.failed": "failed",
        "intent.cancelling": "cancelling",
        "intent.cancelled": "cancelled",
    },
    "cancelling": {
        "intent.finishing": "finishing",
        "intent.cancelled": "cancelled",
        "intent.completed": "cancelled",
        "intent.failed": "cancelled",
    },
    "finishing": {"intent.completed": "completed", "intent.failed": "failed", "intent.cancelled": "cancelled"},
    "completed": {},
    "failed": {},
    "cancelled": {},
    "refused": {},
}
"""The transitions of an intent. ``queued``: waiting for a free place, or for an OpenCode with
the environment of the one that asked. ``resuming``: OpenCode ended, and the same
session is being prompted again. ``finishing``: the changes in the copy are being saved. ``refused``: a limit
forbade the intent."""

ENDED: Final = frozenset({"completed", "failed", "cancelled", "refused"})
ACTIVE: Final = frozenset({"starting", "running", "resuming", "cancelling", "finishing"})
"""The states in which an intent counts towards ``[phantom] max_running``."""
WORKING: Final = frozenset({"running", "resuming"})


def after(table: dict[str, dict[str, str]], state: str, event: str) -> str:
    return table[state].get(event, state)
