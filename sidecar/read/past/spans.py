"""Where the time of a session went: a tree of spans for its turns, model calls, tools, waits and child sessions. Pure.

A ``wait`` is for a person, and a ``pause`` for the next attempt of a model call that failed.

The same spans are the page's timeline and the exported traces. Times are ms since 1970; the end of a span that has not
ended is ``None``. Payloads come from other programs, so any field may be missing or have another type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from sys import intern
from typing import Any, Final, Literal, NamedTuple

from bridge.opencode.capture.tokens import add_tokens
from sidecar.read.asked import CHECKPOINT, answered_with, what_is_asked, withdrawn_text
from sidecar.read.fields import as_int, as_mapping, as_text, exit_of, has_failed, is_forgotten, model_name
from sidecar.read.past.journal import Items, Kept, Lazy, Map
from sidecar.read.starting import Started, starts_session
from sidecar.read.sums import add_cost
from streams.lineage import CREATED, ENDED, RESUMED, RETRIED
from streams.store import Record

SpanKind = Literal["session", "turn", "model", "tool", "wait", "pause"]

INFERENCE: Final = "inference"


@dataclass(slots=True)
class Span(Kept):
    """One stretch of time. ``event`` is the record that tells most about it, and ``parent`` the ``id`` of the span
    around it; a session's parent is the tool call, or else the session, that started it.

    ``state`` is ``running``, ``completed``, ``error`` or ``waiting``; it is ``over`` if its own end was not
    recorded, so that it ends with its turn, or as the next one begins. A session that rests is ``completed``.
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
    """When the first tool of this step started or asked, so that the model was at work no longer."""
    waits: dict[str, Span] = field(default_factory=Map)
    calls: dict[str, _Open] = field(default_factory=Map)
    model: dict[str, Any] = field(default_factory=dict)
    """The model of the last turn that named one; a compaction does not."""
    pause: Span | None = None
    """The pause after a call of the model that failed; it ends when the model is ``free``."""
    started: Started[Span] = field(default_factory=Started)
    above: tuple[int, int] = (0, 0)
    """The numbers of the session's id and of the id of what is around a step, in the list of ids."""


class _Open(NamedTuple):
    """A call that runs: its span, the place of the span, and the position of the record that began it."""

    span: Span
    place: int
    position: int


_KEY: Final = Struct("<5q")
"""What makes the span of a step again: the position of its record, its start and end, the number of its parent's id,
and the position of the record that began it, or -1."""


MADE: Final = 1000
"""How many spans that were made again are kept."""


class Spans:
    """A fold over the records of a root session and its descendants, in position order; ``found`` is the result.

    With ``source``, which reads the record at a position again, the spans of steps that ended take little memory.
    """

    def __init__(self, source: Callable[[int], Record] | None = None) -> None:
        self._source = source
        again = lru_cache(maxsize=MADE)(self._again)  # a step of the slider shows nearly the same spans again
        self.found: Lazy[Span] = Lazy(make=again if source is not None else None)
        self.sessions: list[Span] = Items()
        self.asks: dict[str, Span] = Map()
        """Those of ``found`` in which a person is waited for, by their ids."""
        self.waited: dict[str, int] = Map()
        """How many ms a person was waited for in asks that are over, by session."""
        self._ids: list[str] = Items()
        self._models: dict[str, dict[str, Any]] = {}
        self._lanes: dict[str, _Lane] = Map()
        self._parents: dict[str, Span] = Map()
        """The span of the call that started a session, by the session."""

    def apply(self, record: Record) -> None:
        event, payload = record.event, record.event.payload
        name = payload.get("session")
        if not isinstance(name, str) or is_forgotten(payload):
            return
        lane = self._lanes.get(name)
        if lane is None:
            call = self._parents.get(name)
            parent = call.id if call is not None else as_text(payload.get("parent"))
            span = self._open(f"session:{name}", "session", name, event.ts, name, parent)
            if call is not None and call.end is None:
                # A call whose start was not recorded is known once its session is there, but it began before.
                call.start = min(call.start, event.ts)
            span.trace = event.traceparent or ""
            self.sessions.append(span)
            above = self._new_id(span)
            lane = self._lanes[name] = _Lane(span, free=event.ts, above=(above, above))
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
            case "agent.error":
                self._failed(lane, record, payload)
            case _ if event.type == RETRIED:
                self._retried(lane, record, payload)
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
        return span

    def _new_id(self, span: Span) -> int:
        if self._source is not None:
            self._ids.append(span.id)
        return len(self._ids) - 1

    def _turn(self, lane: _Lane, record: Record, payload: dict[str, Any]) -> None:
        event = record.event
        self._close(lane, event.ts, "over")
        model = as_mapping(payload.get("model"))
        turn = self._open(f"turn:{event.id}", "turn", model_name(model), event.ts, lane.span.session, lane.span.id)
        turn.event, turn.trace = event.id, event.traceparent or ""
        turn.facts |= {"agent": as_text(payload.get("agent")) or event.actor, "model": model, "cost": 0.0, "steps": 0}
        lane.turn, lane.free, lane.busy, lane.model = turn, event.ts, None, model or lane.model
        lane.span.state = "running"
        lane.above = lane.above[0], self._new_id(turn)

    def _turn_ended(self, lane: _Lane, record: Record, payload: dict[str, Any]) -> None:
        outcome = as_text(payload.get("outcome")) or "ended"
        if lane.turn is not None:
            lane.turn.facts |= {"outcome": outcome, "tokens": as_mapping(payload.get("tokens"))}
            lane.turn.facts |= {"error": error} if (error := as_text(payload.get("error"))) else {}
        self._close(lane, record.event.ts, "error" if outcome == "failed" else "completed")
        lane.span.state = "completed"

    def _close(self, lane: _Lane, end: int, state: str) -> None:
        """End everything that is open in a session: OpenCode keeps asks and calls only in memory."""
        self._go_on(lane, end)
        for span in lane.waits.values():
            self._answered(span, end, "over")
        calls = (each.span for each in lane.calls.values())
        for span in (*calls, *([lane.turn] if lane.turn is not None else ())):
            span.end, span.state = max(end, span.start), state if span.kind == "turn" else "over"
        lane.turn, lane.above = None, (lane.above[0], lane.above[0])
        lane.waits.clear()
        lane.calls.clear()

    def _answered(self, span: Span, end: int, state: str) -> None:
        """Note that the question to a person has ended, with or without an answer."""
        span.end, span.state = max(end, span.start), state
        self.asks.pop(span.id)
        self.waited[span.session] = self.waited.get(span.session, 0) + span.end - span.start

    def _step(self, lane: _Lane, record: Record, payload: dict[str, Any]) -> None:
        end, known = as_int(payload.get("ended_ms")) or record.event.ts, None
        if payload.get("kind") == INFERENCE:
            self._go_on(lane, end)
            start = min(as_int(payload.get("started_ms")) or lane.free, end)
            lane.free, lane.busy, end = max(lane.free, end), None, max(lane.busy or end, start)
            if lane.turn is not None:
                lane.turn.facts["cost"] = add_cost(lane.turn.facts["cost"], payload)
                lane.turn.facts["steps"] += 1
        else:
            known = lane.calls.pop(as_text(payload.get("call")))
            start = max(end - (as_int(payload.get("duration_ms")) or 0), 0) if known is None else known.span.start
            lane.busy = min(lane.busy or start, start)
        key = _KEY.pack(record.position, start, end, lane.above[1], known.position if known is not None else -1)
        if self._source is None or starts_session(payload) or (known is not None and not as_text(payload.get("title"))):
            if known is not None:
                span = self._end(known.span, record, end)
            else:
                span = self._stepped(record, start, end, lane.turn.id if lane.turn is not None else lane.span.id)
                self.found.append(span)
            if starts_session(payload):
                lane.started.add(payload, span)
        elif known is None:
            self.found.add(key)
        else:
            self.found.put(known.place, key)

    def _failed(self, lane: _Lane, record: Record, payload: dict[str, Any]) -> None:
        """A call of the model that failed; without a known model, none was called, and only the turn has failed."""
        event, turn = record.event, lane.turn
        if turn is None or not lane.model:
            return
        self._go_on(lane, event.ts)
        name = as_text(lane.model.get("model"))
        start = min(lane.free, event.ts)
        span = self._open(f"step:{event.id}", "model", name, start, lane.span.session, turn.id)
        span.end, span.event, span.state = event.ts, event.id, "error"
        span.facts |= {"model": lane.model, "tokens": {}, "cost": 0.0, "finish": ""}
        span.facts |= {"title": as_text(payload.get("reason")), "error": as_text(payload.get("name"))}
        lane.free = event.ts
        turn.facts["told"] = True

    def _retried(self, lane: _Lane, record: Record, payload: dict[str, Any]) -> None:
        self._go_on(lane, record.event.ts)
        self._failed(lane, record, payload)
        event, about = record.event, (lane.span.session, lane.turn.id if lane.turn is not None else lane.span.id)
        lane.pause = self._open(f"pause:{event.id}", "pause", "waiting to try again", event.ts, *about)
        lane.pause.event, lane.free = event.id, max(as_int(payload.get("at_ms")) or 0, event.ts)

    def _go_on(self, lane: _Lane, now: int) -> None:
        """End the pause: the model was called again, or the turn is over."""
        if lane.pause is not None:
            lane.pause.end, lane.pause.state = max(min(lane.free, now), lane.pause.start), "completed"
            lane.pause = None

    def _stepped(self, record: Record, start: int, end: int, parent: str, began: str = "") -> Span:
        """The span of a step that has ended."""
        payload, event = record.event.payload, record.event
        kind: SpanKind = "model" if payload.get("kind") == INFERENCE else "tool"
        session = intern(as_text(payload.get("session")))
        return self._end(Span(began or f"step:{event.id}", kind, "", start, session, parent), record, end)

    def _end(self, span: Span, record: Record, end: int) -> Span:
        payload = record.event.payload
        if span.kind == "model":
            model = as_mapping(payload.get("model"))
            tokens: dict[str, int | float] = {}
            add_tokens(tokens, payload.get("tokens"))
            facts = {"model": self._same(model), "tokens": tokens, "cost": add_cost(0.0, payload)}
            span.name, span.facts = (
                intern(as_text(model.get("model"))),
                Map({**facts, "finish": as_text(payload.get("finish"))}),
            )
        else:
            span.name = intern(as_text(payload.get("tool")) or "tool")
            title = as_text(payload.get("title")) or span.facts.get("title", "")
            span.facts |= {"call": as_text(payload.get("call")), "title": title}
            span.facts |= {"exit": code} if (code := exit_of(payload)) else {}
        span.end, span.event = end, record.event.id
        span.state = "error" if has_failed(payload) else "completed"
        return span

    def _again(self, key: bytes) -> Span:
        assert self._source is not None
        position, start, end, parent, began = _KEY.unpack(key)
        first = "" if began < 0 else f"call:{self._source(began).event.id}"
        return self._stepped(self._source(position), start, end, self._ids[parent], first)

    def _running(self, lane: _Lane, record: Record, payload: dict[str, Any]) -> None:
        event, call = record.event, as_text(payload.get("call"))
        parent = lane.turn.id if lane.turn is not None else lane.span.id
        tool = as_text(payload.get("tool")) or "tool"
        span = self._open(f"call:{event.id}", "tool", tool, event.ts, lane.span.session, parent)
        lane.calls[call] = _Open(span, len(self.found) - 1, record.position)
        span.event = event.id
        span.facts |= {"call": call, "title": as_text(payload.get("title"))}

    def _spawned(self, lane: _Lane, record: Record, payload: dict[str, Any]) -> None:
        call, child = as_text(payload.get("call")), as_text(payload.get("child"))
        span = lane.started.find(payload)
        if call in lane.calls or (call and span is None and lane.turn is not None):
            if call not in lane.calls:
                self._running(lane, record, payload)
            span = lane.calls[call].span
            span.name, span.facts["title"] = "task", as_text(payload.get("description"))
        if child and span is not None:
            self._parents[child] = span

    def _wait(self, lane: _Lane, record: Record, payload: dict[str, Any]) -> None:
        event, request = record.event, as_text(payload.get("request"))
        if payload.get("state") == "asked":
            parent = lane.turn.id if lane.turn is not None else lane.span.id
            span = self._open(f"wait:{event.id}", "wait", what_is_asked(payload), event.ts, lane.span.session, parent)
            span.event, span.state = event.id, "waiting"
            span.facts["call"] = as_text(payload.get("call"))
            lane.waits[request] = self.asks[span.id] = span
            lane.busy = min(lane.busy or event.ts, event.ts)
        elif (known := lane.waits.pop(request, None)) is not None:
            self._answered(known, event.ts, "completed")
            reply, first = as_text(payload.get("reply")) or as_text(payload.get("state")), answered_with(payload)
            reply = withdrawn_text(first) if first and reply == "reject" else reply
            known.facts |= {"reply": reply, "by": event.actor}
