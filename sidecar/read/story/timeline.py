"""Where the time of a session went, up to a moment: its spans, made from rows and the records that they point to."""

from __future__ import annotations

from typing import Any, Final, cast

import orjson

from bridge.opencode.capture.tokens import add_tokens
from sidecar.read.ask_text import answered_with, what_is_asked, withdrawn_text
from sidecar.read.fields import as_mapping, as_text, exit_of, model_name
from sidecar.read.past.spans import Span, SpanKind
from sidecar.read.story import tables
from sidecar.read.story.moment import Moment
from sidecar.read.story.tables import ALIVE
from sidecar.read.sums import add_cost
from streams.event import StreamEvent

_KINDS = {"model": "step", "agent.spawned": "call", "execution.step.started": "call", "execution.step": "step"}
_INSIDE: Final = "start <= :end AND (till IS NULL OR till > :n OR end >= :begin)"
_AROUND: Final = """
    SELECT min(at) FILTER (WHERE till IS NULL OR till > :n OR end >= :begin), max(at) FILTER (WHERE start <= :begin),
        max(at) FILTER (WHERE start <= :end)
    FROM span WHERE session = :s AND kind = 'turn' AND at <= :n"""
"""The records with which turns began: the first one that ended in a stretch of time or later, the last one that began
before it, and the last one that began before its end."""

_SOME: Final = f"session = :s AND at <= :n AND {ALIVE}"
_TURNS: Final = f"""
    SELECT key, at, start, CASE WHEN till <= :n THEN end END, CASE WHEN till <= :n THEN state END, number
    FROM span WHERE kind = 'turn' AND {_SOME} ORDER BY at"""  # noqa: S608
_TOOK: Final = f"""
    SELECT up, kind, sum(CASE WHEN end > start THEN end - start ELSE 0 END) FROM span
    WHERE kind IN ('model', 'tool', 'wait') AND till <= :n AND {_SOME} GROUP BY up, kind"""  # noqa: S608

_READ: Final = 200
"""How many spans are made at once."""


class Timeline:
    """The spans of a moment. The sessions come with the steps, all in the order in which they began to be known."""

    def __init__(self, at: Moment) -> None:
        self._at = at
        self._names: dict[int, str] = {}

    def is_longer(self, than: int) -> bool:
        """Whether there are more spans than so many besides those of sessions."""
        some = f"SELECT 1 FROM span WHERE session = :s AND at <= :n AND {ALIVE} LIMIT :most"  # noqa: S608
        given = {"n": self._at.n, "most": than + 1}
        return sum(len(self._at.story.sql(some, s=key, **given)) for key in self._at.sessions) > than

    def turns(self, session: str, now: int, last: int) -> list[tuple[int, int, str, int]]:
        """The last turns of a session, oldest first: ``start, end, state, number``, which counts from 1. ``now`` ends
        one that is open."""
        where = f"session = :s AND kind = 'turn' AND at <= :n AND {ALIVE} ORDER BY at DESC LIMIT :last"
        own = next((key for key, row in self._at.sessions.items() if row.name == session), None)
        rows = self._at.rows("span", where, s=own, last=last)
        ends = [(now, "running") if self._at.is_open(row) else (row.end, row.state) for row in rows]
        return [(row.start, *end, row.number) for row, end in zip(rows, ends, strict=True)][::-1]

    def columns(self, session: str, now: int, most: int) -> list[tuple[int, ...]]:
        """All turns of a session in at most so many columns, oldest first: the numbers of its first and last turn, when
        they started and ended, how many ms models and tools worked and a person was waited for, how many turns
        failed, and the position of its beginning. ``now`` ends a turn that is open."""
        own = next((key for key, row in self._at.sessions.items() if row.name == session), None)
        given = {"s": own, "n": self._at.n}
        turns = self._at.story.sql(_TURNS, **given)
        took = {(up, kind): ms for up, kind, ms in self._at.story.sql(_TOOK, **given)}
        each, found = -(-len(turns) // most), list[tuple[int, ...]]()
        for some in (turns[first : first + each] for first in range(0, len(turns), max(each, 1))):
            kinds = (sum(took.get((key, kind), 0) for key, *_ in some) for kind in ("model", "tool", "wait"))
            model, tool, wait = kinds
            until = max(now if end is None else end for *_, end, _, _ in some)
            failed = sum(state == "error" for *_, state, _ in some)
            # The time of a tool has the time in which it waited to be allowed.
            took_them = model, max(tool - wait, 0), wait
            found.append((some[0][-1], some[-1][-1], some[0][2], until, *took_them, failed, some[0][1]))
        return found

    def spans(self, last: int | None = None) -> list[Span]:
        """Every span; with ``last``, only so many of the newest steps, after the sessions."""
        where = f"session = :s AND at <= :n AND {ALIVE} ORDER BY at DESC, key DESC LIMIT :last"
        most = -1 if last is None else last
        rows = [row for key in self._at.sessions for row in self._at.rows("span", where, s=key, last=most)]
        rows.sort(key=lambda row: (row.at, row.key))
        steps = self._made(rows if last is None else rows[-last:])
        found = [(row.first or 0, 0, self.session(row)) for row in self._at.sessions.values()] + steps
        return [span for *_, span in (found if last is not None else sorted(found, key=lambda each: each[:2]))]

    def between(self, begin: int, end: int, last: int) -> list[Span]:
        """The spans that take some of the time between two moments, at most so many of the newest; before them the
        sessions, and the calls that started one."""
        at, rows = self._at, list[Any]()
        inside = f"""session = :s AND at >= :first AND at < ifnull(:after, :n + 1) AND {ALIVE} AND {_INSIDE}
            ORDER BY at DESC, key DESC LIMIT :last"""
        following = "SELECT min(at) FROM span WHERE session = :s AND kind = 'turn' AND at > :at AND at <= :n"
        for key in at.sessions:
            given = {"n": at.n, "s": key, "begin": begin, "end": end}
            [(ended, begun, latest)] = at.story.sql(_AROUND, **given)
            first = min(at.n if ended is None else ended, begun or 0)
            [(after,)] = at.story.sql(following, n=at.n, s=key, at=latest or 0)
            rows += at.story.rows("span", inside, first=first, after=after, last=last, **given)
        rows = sorted(rows, key=lambda row: (row.at, row.key))[-last:]
        known = {row.key for row in rows}
        calls = orjson.dumps([row.up for row in at.sessions.values() if row.up not in known]).decode()
        starting = f"key IN (SELECT value FROM json_each(:calls)) AND {ALIVE}"  # noqa: S608
        rows = [row for row in at.rows("span", starting, calls=calls) if row.session in at.sessions] + rows
        return [self.session(row) for row in at.sessions.values()] + [span for *_, span in self._made(rows)]

    def _made(self, rows: list[Any]) -> list[tuple[int, int, Span]]:
        """The spans of rows, each after its record and its key."""
        found: list[tuple[int, int, Span]] = []
        for begin in range(0, len(rows), _READ):
            some = rows[begin : begin + _READ]
            self._at.read([n for row in some for n in (row.at, row.result, row.about) if self._at.has(n)])
            found += [(row.at, row.key, self.span(row)) for row in some]
        return found

    def session(self, row: tables.Session) -> Span:
        at = self._at
        seen = at.last(row.key)
        first = at.record(row.first or 0).event
        call = at.one("span", f"key = :key AND {ALIVE}", key=row.up) if row.up else None
        parent = (
            self._name(call) if call is not None and call.session in at.all else as_text(first.payload.get("parent"))
        )
        state, name = "completed" if row.rests else "running", row.label or row.title or row.name
        trace = first.traceparent or ""
        return Span(f"session:{row.name}", "session", name, first.ts, row.name, parent, seen.last, state, "", trace)

    def _name(self, row: tables.Span) -> str:
        """The id of a span."""
        if row.key not in self._names:
            event = self._at.record(row.at).event
            kind = _KINDS.get(event.type if row.kind == "tool" else row.kind, row.kind)
            self._names[row.key] = f"{kind}:{event.id}"
        return self._names[row.key]

    def _around(self, row: tables.Span, session: str) -> str:
        """The id of the span around a step or a turn."""
        if not row.up or row.kind == "turn":
            return f"session:{session}"
        if row.up not in self._names:
            self._name(self._at.one("span", "key = :key", key=row.up))
        return self._names[row.up]

    def span(self, row: tables.Span) -> Span:
        """The span of a row."""
        at = self._at
        event, session = at.record(row.at).event, at.all[row.session].name
        end, state = (
            (row.end, row.state) if not at.is_open(row) else (None, "waiting" if row.kind == "wait" else "running")
        )
        kind = cast(SpanKind, row.kind)
        span = Span(self._name(row), kind, "", row.start, session, self._around(row, session), end, state, event.id)
        result = at.record(row.result).event if at.has(row.till) and at.has(row.result) else None
        getattr(self, f"_{row.kind}")(span, row, event, result)
        return span

    def _turn(self, span: Span, row: tables.Span, event: StreamEvent, result: StreamEvent | None) -> None:
        p, used = event.payload, self._at.used("run", row.key)
        span.trace, span.name = event.traceparent or "", model_name(p.get("model"))
        span.facts = {"agent": as_text(p.get("agent")) or event.actor, "model": as_mapping(p.get("model"))}
        span.facts |= {"cost": used.r_cost, "steps": used.r_steps} if used is not None else {"cost": 0.0, "steps": 0}
        span.facts["number"] = row.number
        if result is not None:
            outcome, error = as_text(result.payload.get("outcome")) or "ended", as_text(result.payload.get("error"))
            span.facts |= {"outcome": outcome, "tokens": as_mapping(result.payload.get("tokens"))}
            span.facts |= {"error": error} if error else {}
        span.facts |= {"reported": True} if self._at.has(row.marked) else {}

    def _model(self, span: Span, row: tables.Span, event: StreamEvent, _: StreamEvent | None) -> None:
        p, tokens = event.payload, dict[str, int | float]()
        about = self._at.record(row.about).event.payload if row.about else p
        model = as_mapping(about.get("model"))
        span.name, span.facts = (
            as_text(model.get("model")),
            {"model": model, "tokens": tokens, "cost": 0.0, "finish": ""},
        )
        if row.about:  # the call failed, so no step has reported it
            span.facts |= {"title": as_text(p.get("reason")), "error": as_text(p.get("name"))}
        else:
            add_tokens(tokens, p.get("tokens"))
            span.facts |= {"cost": add_cost(0.0, p), "finish": as_text(p.get("finish"))}

    def _tool(self, span: Span, row: tables.Span, event: StreamEvent, result: StreamEvent | None) -> None:
        title = as_text(event.payload.get("title")) if event.type != "agent.spawned" else ""
        span.name = as_text(event.payload.get("tool")) or "tool"
        if row.about:
            title, span.name = as_text(self._at.record(row.about).event.payload.get("description")), "task"
        if result is not None:
            title, span.name = (
                as_text(result.payload.get("title")) or title,
                as_text(result.payload.get("tool")) or "tool",
            )
            span.event = result.id
        code = exit_of(result.payload) if result is not None else None
        span.facts = {"call": row.call, "title": title} | ({"exit": code} if code else {})

    def _wait(self, span: Span, row: tables.Span, event: StreamEvent, result: StreamEvent | None) -> None:
        span.name, span.facts = what_is_asked(event.payload), {"call": as_text(event.payload.get("call"))}
        if result is not None and row.result == row.till:
            reply = as_text(result.payload.get("reply")) or as_text(result.payload.get("state"))
            first = answered_with(result.payload)
            reply = withdrawn_text(first) if first and reply == "reject" else reply
            span.facts |= {"reply": reply, "by": result.actor}

    def _pause(self, span: Span, *_: Any) -> None:
        span.name = "waiting to try again"
