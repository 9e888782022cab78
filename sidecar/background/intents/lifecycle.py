"""The life cycles of intents and notices, as transition tables. Pure.

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
session is being prompted again. ``finishing``: the changes in the worktree are being saved. ``refused``: a limit
forbade the intent."""

NOTICE: Final[dict[str, dict[str, str]]] = {
    "queued": {
        "notice.gathering": "queued",
        "notice.sending": "sending",
        "notice.returned": "returned",
        "notice.observed": "observed",
    },
    "sending": {
        "notice.sent": "sent",
        "notice.held": "queued",
        "notice.returned": "returned",
        "notice.observed": "observed",
    },
    "sent": {"notice.held": "queued"},
    "returned": {"notice.observed": "observed", "notice.held": "queued"},
    "observed": {},
}
"""A notice is ``observed`` when its own message is found in the session's history; nothing before that counts as proof.

``notice.gathering``: other work of the same parent still runs, so the result waits a few seconds for more results.

``sent``: OpenCode accepted the message, but the history does not have the message yet.

A ``queued`` notice can be ``observed``: what sent it may be forgotten with other work, whose result was sent with it.

``returned``: a tool call of the parent returned the notice's content. Once OpenCode has saved that result, the notice
is ``observed``.
"""

ENDED: Final = frozenset({"completed", "failed", "cancelled", "refused"})
ACTIVE: Final = frozenset({"starting", "running", "resuming", "cancelling", "finishing"})
"""The states in which an intent counts towards ``[phantom] max_running``."""
WORKING: Final = frozenset({"running", "resuming"})


def after(table: dict[str, dict[str, str]], state: str, event: str) -> str:
    return table[state].get(event, state)
