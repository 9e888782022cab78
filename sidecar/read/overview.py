"""A projection with every turn of a log, or of one root session and its descendants, for ``tree``. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from bridge.opencode.capture.tokens import add_tokens
from sidecar.read.catalog import Catalog, SessionView, StreamView, add_cost
from sidecar.read.describe import input_text
from sidecar.read.fields import as_text
from streams.store import Record


@dataclass(slots=True)
class TurnView:
    """One turn. ``outcome`` is ``None`` while the turn is open; times are in ms since 1970."""

    message: str
    agent: str
    started_ms: int
    asked: str = ""
    trigger: str = "prompt"
    outcome: str | None = None
    error: str | None = None
    ended_ms: int | None = None
    steps: int = 0
    cost: float = 0.0
    tokens: dict[str, int | float] = field(default_factory=dict)
    spawned: list[str] = field(default_factory=list)

    @property
    def duration_ms(self) -> int | None:
        """Time from start to end; ``None`` while the turn is open."""
        return None if self.ended_ms is None else max(self.ended_ms - self.started_ms, 0)


class Overview(Catalog):
    """A catalog that also keeps every turn."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: dict[str, list[TurnView]] = {}
        self._asked: dict[str, dict[str, str]] = {}

    def turns(self, session_id: str) -> list[TurnView]:
        """A session's turns in order."""
        return self._turns.get(session_id, [])

    def state(self) -> dict[str, Any]:
        """The streams' figures and the trees of sessions, as JSON."""
        return {
            "streams": [self.stream_json(stream_id) for stream_id in self.streams],
            "sessions": [self.session_json(root) for root in self.roots()],
        }

    def _session(self, record: Record, stream: StreamView, session: SessionView) -> None:
        was_active = session.is_active
        super()._session(record, stream, session)
        event, payload = record.event, record.event.payload
        if event.type in ("human.input", "agent.input"):
            self._asked.setdefault(session.id, {})[as_text(payload.get("message"))] = input_text(payload)
        elif event.type == "turn.started":
            self._turn_started(record, session, was_active)
        elif session.id in self._turns:
            self._in_turn(record, session)

    def _turn_started(self, record: Record, session: SessionView, was_active: bool) -> None:
        payload = record.event.payload
        turns = self._turns.setdefault(session.id, [])
        if turns and was_active:
            # The previous turn never ended, because OpenCode died. The session continued in a new process.
            turns[-1].outcome = "unknown"
        message = as_text(payload.get("message"))
        turns.append(
            TurnView(
                message,
                agent=as_text(payload.get("agent")) or record.event.actor,
                started_ms=record.event.ts,
                asked=self._asked.get(session.id, {}).get(message, ""),
                trigger=as_text(payload.get("trigger")) or "prompt",
            )
        )

    def _in_turn(self, record: Record, session: SessionView) -> None:
        event, payload = record.event, record.event.payload
        message = payload.get("message") if event.type == "turn.ended" else payload.get("turn")
        turn = next((t for t in reversed(self._turns[session.id]) if t.message == message), None)
        if turn is None:
            return
        if event.type == "turn.ended":
            turn.outcome = as_text(payload.get("outcome")) or "ended"
            turn.error = as_text(payload.get("error")) or None
            turn.ended_ms = event.ts
        elif event.type == "execution.step":
            turn.steps += 1
            turn.cost = add_cost(turn.cost, payload)
            add_tokens(turn.tokens, payload.get("tokens"))
        elif event.type == "agent.spawned":
            turn.spawned.append(as_text(payload.get("child")))

    def session_json(self, session: SessionView) -> dict[str, Any]:
        """A session, its turns and the sessions below it, in the form that ``tree --json`` prints."""
        below = {child.id: child for child in self.children(session.id)}
        turns = []
        for turn in self.turns(session.id):
            spawned = [below.pop(child) for child in turn.spawned if child in below]
            turns.append(
                {
                    "message": turn.message,
                    "agent": turn.agent,
                    "trigger": turn.trigger,
                    "input": turn.asked,
                    "outcome": turn.outcome,
                    "error": turn.error,
                    "steps": turn.steps,
                    "cost": turn.cost,
                    "tokens": turn.tokens,
                    "started_ms": turn.started_ms,
                    "ended_ms": turn.ended_ms,
                    "duration_ms": turn.duration_ms,
                    "sessions": [self.session_json(child) for child in spawned],
                }
            )
        known = self.lineage.sessions.get(session.id)
        return {
            "session": session.id,
            "stream_id": session.stream,
            "title": session.title,
            "agent": session.agent,
            "ended": session.ended,
            "asks": len(session.asks),
            "running": [msgspec.structs.asdict(call) for call in session.running],
            "fork": self.fork(session.id),
            "lineage_known": known is None or known.known,
            "turns": turns,
            "sessions": [self.session_json(child) for child in below.values()],
        }
