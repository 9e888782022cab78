"""The tree of sessions with their turns, for ``tree``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sidecar.read.sessions import Sessions
from sidecar.read.transcript.model import Turn
from sidecar.read.views import SessionView


class Tree:
    """The sessions of a catalog, and the ``turns`` that each of them had started."""

    def __init__(self, catalog: Sessions, turns: Mapping[str, list[Turn]]) -> None:
        self.catalog, self._turns = catalog, turns

    def branches(self, session: SessionView) -> list[tuple[Turn | None, list[SessionView]]]:
        """The session's turns, each with the sessions that it started; at the end, without a turn, the other child
        sessions."""
        below = {child.id: child for child in self.catalog.children(session.id)}
        turns = self._turns.get(session.id, [])
        started = [(turn, [below.pop(child) for child in turn.spawned if child in below]) for turn in turns]
        return [*started, (None, list(below.values()))]

    def as_json(self, session: SessionView) -> dict[str, Any]:
        """A session, its turns and the sessions below it, in the form that ``tree --json`` prints."""
        *turns, (_, others) = self.branches(session)
        return {
            "session": session.id,
            "stream_id": session.stream,
            "title": session.title,
            "pinned": session.pinned,
            "agent": session.agent,
            "ended": session.ended,
            "asks": len(session.asks),
            "retries": session.retries,
            "running": [msgspec.structs.asdict(call) for call in session.running],
            "fork": session.fork,
            "lineage_known": session.known,
            "turns": [
                {
                    "message": turn.message,
                    "agent": turn.agent,
                    "trigger": turn.trigger or "prompt",
                    "input": turn.asked,
                    "outcome": turn.outcome or None,
                    "error": turn.error or None,
                    "steps": turn.steps,
                    "cost": turn.cost,
                    "tokens": turn.tokens,
                    "started_ms": turn.started_ms,
                    "ended_ms": turn.ended_ms,
                    "duration_ms": turn.duration_ms,
                    "sessions": [self.as_json(child) for child in children],
                }
                for turn, children in turns
                if turn is not None
            ],
            "sessions": [self.as_json(child) for child in others],
        }
