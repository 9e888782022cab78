"""What a log holds, as streams, sessions and turns: a projection that several commands print. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bridge.opencode.state import add_tokens
from sidecar.cli.describe import input_text
from streams.lineage import CREATED, ENDED, RESUMED, Lineage
from streams.store import Record


@dataclass(slots=True)
class TurnView:
    """One turn. ``outcome`` is ``None`` while it is open; times are in ms since 1970."""

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
    tokens: dict[str, float] = field(default_factory=dict)
    spawned: list[str] = field(default_factory=list)

    @property
    def duration_ms(self) -> int | None:
        """From its start to its end; ``None`` while it is open."""
        return None if self.ended_ms is None else max(self.ended_ms - self.started_ms, 0)


@dataclass(slots=True)
class SessionView:
    """One session: what it is called, who works in it, and its turns in order."""

    id: str
    stream: str
    agent: str = ""
    title: str = ""
    ended: str | None = None
    turns: list[TurnView] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)

    def open_turn(self) -> TurnView | None:
        """The turn under way. Turns follow one another, so only the last can be."""
        return self.turns[-1] if self.turns and self.turns[-1].outcome is None and self.ended is None else None


@dataclass(slots=True)
class StreamView:
    """One stream's figures. Times are the events' own, in ms since 1970."""

    id: str
    first_position: int
    records: int = 0
    first_ts: int = 0
    last_ts: int = 0
    turns: int = 0
    cost: float = 0.0
    tokens: dict[str, float] = field(default_factory=dict)
    sessions: list[str] = field(default_factory=list)


class Overview:
    """Fold a whole log, or one family of it; records in position order."""

    def __init__(self) -> None:
        self.lineage = Lineage()
        self.streams: dict[str, StreamView] = {}
        self.sessions: dict[str, SessionView] = {}
        self.gaps = 0
        self.records = 0
        self._below: dict[str, list[SessionView]] | None = None

    def apply(self, record: Record) -> None:
        """Take one record."""
        self.lineage.apply(record)
        self.records += 1
        self._below = None
        event, payload = record.event, record.event.payload
        stream = self.streams.get(event.stream_id)
        if stream is None:
            stream = self.streams[event.stream_id] = StreamView(event.stream_id, record.position, first_ts=event.ts)
        stream.records += 1
        stream.first_ts = min(stream.first_ts, event.ts)
        stream.last_ts = max(stream.last_ts, event.ts)
        if event.type == "capture.gap":
            self.gaps += 1
        session_id = payload.get("session")
        if not isinstance(session_id, str):
            return
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = SessionView(session_id, event.stream_id)
            stream.sessions.append(session_id)
        self._session(record, stream, session)

    def state(self) -> dict[str, Any]:
        """The streams' figures and the trees of sessions, as JSON."""
        return {
            "streams": [self.stream_json(stream_id) for stream_id in self.streams],
            "sessions": [self.session_json(root) for root in self.roots()],
        }

    def _session(self, record: Record, stream: StreamView, session: SessionView) -> None:
        event, payload = record.event, record.event.payload
        session.title = _string(payload.get("title")) if event.type in _TITLED else session.title
        if event.type in (CREATED, RESUMED):
            session.agent = session.agent or _string(payload.get("agent"))
            session.ended = None
        elif event.type == ENDED:
            session.ended = _string(payload.get("reason")) or "ended"
        elif event.type in ("human.input", "agent.input"):
            session.asked[_string(payload.get("message"))] = input_text(payload)
        elif event.type == "turn.started":
            stream.turns += 1
            self._turn_started(record, session)
        elif session.turns:
            self._in_turn(record, stream, session)

    def _turn_started(self, record: Record, session: SessionView) -> None:
        payload = record.event.payload
        previous = session.open_turn()
        if previous is not None:
            # Its end was never told: OpenCode died, and the session goes on in a new process.
            previous.outcome = "unknown"
        message = _string(payload.get("message"))
        session.agent = session.agent or record.event.actor
        session.turns.append(
            TurnView(
                message,
                agent=_string(payload.get("agent")) or record.event.actor,
                started_ms=record.event.ts,
                asked=session.asked.get(message, ""),
                trigger=_string(payload.get("trigger")) or "prompt",
            )
        )

    def _in_turn(self, record: Record, stream: StreamView, session: SessionView) -> None:
        event, payload = record.event, record.event.payload
        message = payload.get("message") if event.type == "turn.ended" else payload.get("turn")
        turn = next((t for t in reversed(session.turns) if t.message == message), None)
        if turn is None:
            return
        if event.type == "turn.ended":
            turn.outcome = _string(payload.get("outcome")) or "ended"
            turn.error = _string(payload.get("error")) or None
            turn.ended_ms = event.ts
        elif event.type == "execution.step":
            turn.steps += 1
            for total in (turn, stream):
                total.cost = round(total.cost + _number(payload.get("cost")), 9)
                add_tokens(total.tokens, payload.get("tokens"))
        elif event.type == "agent.spawned":
            turn.spawned.append(_string(payload.get("child")))

    # What is asked of it

    def own_session(self, stream_id: str) -> SessionView | None:
        """The session that a stream is named after: the first of its own; ``None`` for ``system`` and the like."""
        stream = self.streams.get(stream_id)
        return self.sessions[stream.sessions[0]] if stream is not None and stream.sessions else None

    def root_stream(self, stream_id: str) -> str:
        """The stream of the family's root session; itself where nothing is known above."""
        session = self.own_session(stream_id)
        if session is None:
            return stream_id
        root = self.lineage.sessions.get(self.lineage.root(session.id))
        return root.stream if root is not None else stream_id

    def status(self, stream_id: str) -> str:
        """``active`` while a turn is open; else ``ended``, ``unknown`` (its parent is not known) or ``idle``."""
        stream = self.streams[stream_id]
        if any(self.sessions[session].open_turn() is not None for session in stream.sessions):
            return "active"
        own = self.own_session(stream_id)
        if own is not None and own.ended is not None:
            return "ended"
        known = self.lineage.sessions.get(own.id) if own is not None else None
        return "unknown" if known is not None and not known.known else "idle"

    def stream_json(self, stream_id: str) -> dict[str, Any]:
        """One stream as ``streams --json`` prints it; ``root`` is null unless it was joined to another stream."""
        stream = self.streams[stream_id]
        own = self.own_session(stream_id)
        root = self.root_stream(stream_id)
        return {
            "stream_id": stream_id,
            "records": stream.records,
            "first_ts": stream.first_ts,
            "last_ts": stream.last_ts,
            "status": self.status(stream_id),
            "title": own.title if own is not None else "",
            "sessions": len(stream.sessions),
            "turns": stream.turns,
            "cost": stream.cost,
            "tokens": stream.tokens,
            "root": root if root != stream_id else None,
        }

    def children(self, session_id: str) -> list[SessionView]:
        """Child sessions in the order they first appeared."""
        if self._below is None:
            self._below = {}
            for one in self.lineage.sessions.values():
                # A root is below nobody, also one of sessions that wrongly descend from each other.
                if one.parent is not None and one.id in self.sessions and self.lineage.root(one.id) != one.id:
                    self._below.setdefault(one.parent, []).append(self.sessions[one.id])
        return self._below.get(session_id, [])

    def roots(self) -> list[SessionView]:
        """Sessions with nothing known above, in the order they first appeared."""
        return [self.sessions[s.id] for s in self.lineage.roots() if s.id in self.sessions]

    def session_json(self, session: SessionView) -> dict[str, Any]:
        """A session, its turns and the sessions below it, as ``tree --json`` prints it."""
        below = {child.id: child for child in self.children(session.id)}
        turns = []
        for turn in session.turns:
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
            "lineage_known": known is None or known.known,
            "turns": turns,
            "sessions": [self.session_json(child) for child in below.values()],
        }


_TITLED = frozenset({CREATED, RESUMED, ENDED, "turn.ended"})


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
