"""What the runtime counts. The composition root decides how the counts are exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Counted = Literal[
    "received", "processed", "emitted", "duplicate", "failed", "dead", "retried", "commit_seconds", "commit_events"
]
"""What is counted of an agent, or (``retried``) of a kind of effects:

* ``received``: commands and events that were pulled for the agent, duplicates included
* ``processed``: the seconds from an input's arrival at the agent, before any wait, until its outcome was durable
* ``emitted``: the agent's events, which are now durable
* ``duplicate``: inputs whose key was known, so that the agent was not called
* ``failed``: inputs at which the agent raised an error, or for which its events were refused; they come again, or
* ``dead``: will not be tried again, and were recorded as dead letters
* ``retried``: effects that are tried again after a failure
* ``commit_seconds``, ``commit_events``: how long a batch took to become durable, and how many events it had
"""

Count = Callable[[Counted, str, float], None]
"""Gets what is counted, the agent's configured id or the effect's kind, and how much. Returns at once, never raises."""


def uncounted(what: Counted, of: str, much: float) -> None:
    """Count nothing."""
