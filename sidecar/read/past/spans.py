"""Where the time of a session went: a tree of spans for its turns, model calls, tools, waits and child sessions. Pure.

The same spans are the page's timeline and the exported traces. Times are ms since 1970; the end of a span that has not
ended is ``None``. Payloads come from other programs, so any field may be missing or have another type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from sys import intern
from typing import Any, Final, Literal

from bridge.opencode.capture.tokens import add_tokens
from sidecar.read.asked import CHECKPOINT, what_is_asked
from sidecar.read.catalog import add_cost
from sidecar.read.fields import as_int, as_mapping, as_text, is_forgotten
from sidecar.read.past.journal import Items, Kept, Map
from streams.lineage import CREATED, ENDED, RESUMED
from streams.store import Record

SpanKind = Literal["session", "turn", "model", "tool", "wait"]

INFERENCE: Final = "inference"


@dataclass(slots=True)
class Span(Kept):
    """One stretch of time. ``event`` is the record that tells most about it, and ``parent`` the ``id`` of the span
    around it; a session's parent is the tool call, or else the session, that started it.

    ``state`` is ``running``, ``completed``, ``error`` or ``waiting``.
    """

    id: str
    kind: SpanKind
    name: str
    start: int
    session: str
    parent: str = ""
    end: int | None = None
    state: str = "running"
    event: str = ""
    trace: str = ""
    facts: dict[str, Any] = field(default_factory=Map)


@dataclass(slots=True)
class _Lane(Kept):
    """What is open in one session."""

    span: Span
    turn: Span | None = None
    free: int = 0
    """Since when the model may have been at work: the start of the turn, or the end of the step before."""
    busy: int | None = None
    """When the first tool of this step started, so that the model was at work no longer."""
    waits: dict[str, Span] = field(default_factory=Map)
    calls: dict[str, Span] = field(default_factory=Map)


class Spans:
    """A fold over the records of a root session and its descendants, in position order; ``found`` is the result."""

    def __init__(self) -> None:
        self.found: list[Span] = Items()
        self.waits: list[Span] = Items()
        """Those of ``found`` in which a person was asked."""
        self._models: dict[str, dict[str, Any]] = {}
        self._lanes: dict[str, _Lane] = Map()
        self._parents: dict[str, Span] = Map()
        """The span of the call that started a session, by the session."""

    def apply(self, record: Record) -> None:
        """Apply one record."""
        event, payload = record.event, record.event.payload
        name = payload.get("session")
        if not isinstance(name, str) or is_forgotten(payload):
            return
        lane = self._lanes.get(name)
        if lane is None:
            call = self._parents.get(name)
            parent = call.id if call is not None else as_text(payload.get("parent"))
            span = self._open(f"session:{name}", "session", name, event.ts, name, parent)
            if call is not None:
                # The call is recorded once its session is there, but it began before.
                call.start = min(call.start, event.ts)
            span.trace = event.traceparent or ""
            lane = self._lanes[name] = _Lane(span, free=event.ts)
        lane.span.end = max(lane.span.end or event.ts, event.ts)
        if title := as_text(payload.get("title")):
            lane.span.name = title if event.type != "execution.step" else lane.span.name
        match event.type:
            case "turn.started":
                self._turn(lane, record, payload)
            case "turn.ended":
                self._turn_ended(lane, record, payload)
            case "execution.step":
                self._step(lane, record, payload)
            case "agent.spawned":
                self._spawned(lane, record, payload)
            case "execution.step.started":
                self._running(lane, record, payload)
            case _ if event.type == CHECKPOINT:
                self._wait(lane, record, payload)
            case _ if event.type in (CREATED, RESUMED, ENDED):
                lane.span.state = "completed" if event.type == ENDED else "running"
                if event.type == ENDED:
                    self._close(lane, event.ts, "completed")

    def _same(self, model: dict[str, Any]) -> dict[str, Any]:
        """An equal model that is there already: a long session has thousands of steps, and few models."""
        return self._models.setdefault(repr(model), model)

    def _open(self, identifier: str, kind: SpanKind, name: str, start: int, session: str, parent: str) -> Span:
        span = Span(identifier, kind, intern(name), start, session, parent)
        self.found.append(span)
        if kind == "wait":
            self.waits.append(span)
        return span

    def _turn(self, lane: _Lane, record: Record, payload: dict[str, Any]) -> None:
        event = record.event
        self._close(lane, event.ts, "error")
        model = as_mapping(payload.get("model"))
        name = "/".join(filter(None, (as_text(model.get(each)) for each in ("provider", "model"))))
        turn = self._open(f"turn:{event.id}", "turn", name, event.ts, lane.span.session, lane.span.id)
        turn.event, turn.trace = event.id, event.traceparent or ""
        turn.facts |= {"agent": as_text(payload.get("agent")) or event.actor, "model": model, "cost": 0.0, "steps": 0}
        lane.turn, lane.free, lane.busy = turn, event.ts, None

    def _turn_ended(self, lane: _Lane, record: Record, payload: dict[str, Any]) -> None:
        outcome = as_text(payload.get("outcome")) or "ended"
        if lane.turn is not None:
            lane.turn.facts |= {"outcome": outcome, "tokens": as_mapping(payload.get("tokens"))}
            lane.turn.facts |= {"error": error} if (error := as_text(payload.get("error"))) else {}
        self._close(lane, record.event.ts, "error" if outcome == "failed" else "completed")

    def _close(self, lane: _Lane, end: int, state: str) -> None:
        """End everything that is open in a session: OpenCode keeps asks and calls only in memory."""
        for span in (*lane.waits.values(), *lane.calls.values(), *([lane.turn] if lane.turn is not None else ())):
            span.end, span.state = max(end, span.start), state if span.kind == "turn" else "over"
        lane.turn = None
        lane.waits.clear()
        lane.calls.clear()

    def _step(self, lane: _Lane, record: Record, payload: dict[str, Any]) -> None:
        event = record.event
        parent = lane.turn.id if lane.turn is not None else lane.span.id
        is_model = payload.get("kind") == INFERENCE
        end = as_int(payload.get("ended_ms")) or event.ts
        if is_model:
            model = as_mapping(payload.get("model"))
            start = min(as_int(payload.get("started_ms")) or lane.free, end)
            lane.free, lane.busy, end = max(lane.free, end), None, max(lane.busy or end, start)
            span = self._open(
                f"step:{event.id}", "model", as_text(model.get("model")), start, lane.span.session, parent
            )
            tokens: dict[str, int | float] = {}
            add_tokens(tokens, payload.get("tokens"))
            facts = {"model": self._same(model), "tokens": tokens, "cost": add_cost(0.0, payload)}
            span.facts = Map({**facts, "finish": intern(as_text(payload.get("finish")))})
            if lane.turn is not None:
                lane.turn.facts["cost"] = add_cost(lane.turn.facts["cost"], payload)
                lane.turn.facts["steps"] += 1
        else:
            call = as_text(payload.get("call"))
            known = lane.calls.pop(call, None)
            start = max(end - (as_int(payload.get("duration_ms")) or 0), 0)
            tool = as_text(payload.get("tool")) or "tool"
            span = known or self._open(f"step:{event.id}", "tool", tool, start, lane.span.session, parent)
            span.name = intern(tool)
            span.facts |= {"call": call, "title": as_text(payload.get("title")) or span.facts.get("title", "")}
            lane.busy = min(lane.busy or span.start, span.start)
        span.end, span.event = end, event.id
        span.state = "error" if payload.get("status") == "error" else "completed"

    def _running(self, lane: _Lane, record: Record, payload: dict[str, Any]) -> None:
        event, call = record.event, as_text(payload.get("call"))
        parent = lane.turn.id if lane.turn is not None else lane.span.id
        tool = as_text(payload.get("tool")) or "tool"
        span = lane.calls[call] = self._open(f"call:{event.id}", "tool", tool, event.ts, lane.span.session, parent)
        span.event = event.id
        span.facts |= {"call": call, "title": as_text(payload.get("title"))}

    def _spawned(self, lane: _Lane, record: Record, payload: dict[str, Any]) -> None:
        if as_text(payload.get("call")) not in lane.calls:
            self._running(lane, record, payload)
        span = lane.calls[as_text(payload.get("call"))]
        span.name, span.facts["title"] = "task", as_text(payload.get("description"))
        if child := as_text(payload.get("child")):
            self._parents[child] = span

    def _wait(self, lane: _Lane, record: Record, payload: dict[str, Any]) -> None:
        event, request = record.event, as_text(payload.get("request"))
        if payload.get("state") == "asked":
            parent = lane.turn.id if lane.turn is not None else lane.span.id
            span = self._open(f"wait:{event.id}", "wait", what_is_asked(payload), event.ts, lane.span.session, parent)
            span.event, span.state = event.id, "waiting"
            span.facts["call"] = as_text(payload.get("call"))
            lane.waits[request] = span
        elif (known := lane.waits.pop(request, None)) is not None:
            known.end, known.state = max(event.ts, known.start), "completed"
            known.facts |= {"reply": as_text(payload.get("reply")) or as_text(payload.get("state")), "by": event.actor}
