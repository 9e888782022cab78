"""Kinds of streams and events. Pure."""

from __future__ import annotations

from typing import Final

from streams.event import StreamEvent
from streams.lineage import STEP_STARTED

TURN_ENDED: Final = "turn.ended"

WORK, WORK_STARTED = "agent/intents", "intent.started"
"""Where it is recorded which session is background work, and for which directory."""


def is_agents(stream_id: str) -> bool:
    """True for the stream of an agent, which holds no session."""
    return stream_id.startswith("agent/")


def repeats(event: StreamEvent) -> bool:
    """True for an event that says nothing that a session's other events do not say."""
    return is_agents(event.stream_id) or event.type == STEP_STARTED
