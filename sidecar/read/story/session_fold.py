"""What the rules know of each session while they fold its next record, and the small steps that all rules share.

Little is in memory: a session's newest rows, what is open in it, and a few numbers. Those numbers are a row of
``live``, so that a session that rested is read back as it was. Whatever else a rule needs, it looks up in the tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

import msgspec

from sidecar.read.fields import as_mapping, as_text, has_cut, is_forgotten
from sidecar.read.story import tables
from sidecar.read.story.tables import Table
from streams.lineage import MARKS
from streams.store import Record

MOST_LIVE: Final = 256
"""How many sessions, and how many places, stay in memory."""


class State(msgspec.Struct, array_like=True):
    """The numbers of a session that no row of it has. Times are in ms since 1970."""

    first: int
    last: int
    free: int
    """Since when the model may have been at work: the start of the turn, or the end of the step before."""
    busy: int | None = None
    """When the first tool of this step started or asked, so that the model was at work no longer."""
    count: int = 0
    number: int = 0
    """How many turns began."""
    ran: int = 0
    """How long the turns that ended took."""
    waited: int = 0
    """How long the asks that ended took."""
    current: int = 0
    """The key of the turn that records without a turn belong to."""
    model_at: int = 0
    """The record that named the model last."""
    running: int = 0
    """How many calls run whose children are known."""
    run_steps: int = 0
    run_cost: float = 0.0
    reply: tuple[str, str] = "", ""
    """The newest row of ``reply``."""
    marks: dict[str, int] = {}
    lost: dict[str, tuple[int, str]] = {}
    """The calls that ended last without a result: their spans, and the messages of their turns."""


class Sums:
    """What some steps used so far; ``text`` is their tokens as JSON."""

    __slots__ = ("cost", "steps", "text", "tokens")

    def __init__(self, steps: int = 0, cost: float = 0.0, text: str = "{}") -> None:
        self.steps, self.cost, self.text = steps, cost, text
        self.tokens: dict[str, int | float] = msgspec.json.decode(text)

    def add(self, cost: float, tokens: dict[str, int | float]) -> None:
        self.steps += 1
        if cost:
            # Round the sum, so that it does not depend on the order in which the costs are added.
            self.cost = round(self.cost + cost, 9)
        if tokens:
            for name, count in tokens.items():
                self.tokens[name] = self.tokens.get(name, 0) + count
            self.text = encoded(self.tokens)


def encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class Live:
    """A session: its newest row, the turn that runs, and what is open in it."""

    __slots__ = (
        *("asked", "branch", "current", "key", "open", "pause"),
        *("row", "run", "state", "sums", "turn_sums", "used_by"),
    )

    def __init__(self, row: tables.Session, state: State) -> None:
        self.row, self.key, self.state, self.sums = row, row.key, state, Sums()
        self.current: tables.Turn | None = None
        self.branch: tables.Branch | None = None
        self.run: tables.Span | None = None
        self.pause: tables.Span | None = None
        self.open: dict[int, tables.Span] = {}
        """The calls and waits that are open, by key."""
        self.asked: set[str] | None = None
        """The calls that asked since the turn began; ``None`` if they are not known."""
        self.used_by, self.turn_sums = 0, Sums()
        """The sums of one turn, which has the key ``used_by``."""

    def waiting(self, request: str) -> tables.Span | None:
        """The open ask of a request."""
        return next((each for each in self.open.values() if each.kind == "wait" and each.request == request), None)

    def calling(self, call: str) -> tables.Span | None:
        """The newest open call with an id."""
        found = (each for each in reversed(self.open.values()) if each.kind == "tool" and each.call == call)
        return next(found, None)


class Story:
    """The tables of what was recorded so far, and the steps of the rules that change them."""

    def __init__(
        self, db: sqlite3.Connection, source: Callable[[int], Record], into: Callable[[str], str] = str
    ) -> None:
        """``source`` reads the record at a position again; ``into``: see ``Table``."""
        self.source = source
        self.moments = Table(db, tables.Moment, into)
        self.places = Table(db, tables.Place, into)
        self.sessions = Table(db, tables.Session, into)
        self.turns = Table(db, tables.Turn, into)
        self.items = Table(db, tables.Item, into)
        self.undone = Table(db, tables.Undone, into)
        self.spans = Table(db, tables.Span, into)
        self.steps = Table(db, tables.Step, into)
        self.edits = Table(db, tables.Edit, into)
        self.allowed = Table(db, tables.Allowed, into)
        self.branches = Table(db, tables.Branch, into)
        self.spawns = Table(db, tables.Spawn, into)
        self.marks = Table(db, tables.Mark, into)
        self.gaps = Table(db, tables.Gap, into)
        self.inputs = Table(db, tables.Input, into)
        self.replies = Table(db, tables.Reply, into)
        self.started = Table(db, tables.Started, into)
        self.states = Table(db, tables.Live, into)
        self._tables: list[Table[Any]] = [each for each in vars(self).values() if isinstance(each, Table)]
        self._live: dict[str, Live] = {}
        self._newest: dict[str, tuple[tables.Place, tables.Moment | None]] = {}
        self._touched: dict[int, Live] = {}
        works = self.states.find("id = 0")
        self.works: dict[str, str] = msgspec.json.decode(works.state) if works is not None else {}
        """The background work of which no session is recorded yet, and the directory that each works for."""

    def write(self) -> None:
        """Write what changed; nothing in memory depends on it afterwards."""
        for key, live in self._touched.items():
            self.states.put(key, tables.Live(key, encoded(live.state)))
        self._touched.clear()
        for table in self._tables:
            table.write()

    def rest(self) -> None:
        """Let go of all but the newest sessions and places, after ``write``."""
        for name in list(self._live)[: max(len(self._live) - MOST_LIVE, 0)]:
            del self._live[name]
        for stream in list(self._newest)[: max(len(self._newest) - MOST_LIVE, 0)]:
            del self._newest[stream]

    # --- sessions and places ---

    def known(self, name: str) -> Live | None:
        """A session, which may have rested; ``None`` if nothing names it yet."""
        live = self._live.pop(name, None) or self._awake(name)
        if live is not None:
            self._live[name] = self._touched[live.key] = live  # the newest is the last, and a rule may change it
        return live

    def live_of(self, key: int) -> Live:
        row = self.sessions.find("key = ?", key)
        found = self.known(row.name) if row is not None else None
        assert found is not None
        return found

    def _awake(self, name: str) -> Live | None:
        row = self.sessions.find("name = ? AND died IS NULL", name)
        if row is None:
            return None
        stored = self.states.find("id = ?", row.key)
        assert stored is not None
        live = Live(row, msgspec.json.decode(stored.state, type=State))
        for span in self.spans.all("session = ? AND till IS NULL AND died IS NULL ORDER BY key", row.key):
            if span.kind == "turn":
                live.run = span
            elif span.kind == "pause":
                live.pause = span
            else:
                live.open[span.key] = span
        live.current = self.turns.find("key = ? AND died IS NULL", live.state.current)
        live.branch = self.branches.find("session = ? ORDER BY id DESC", row.key)
        if (used := self.steps.find("session = ? ORDER BY n DESC", row.key)) is not None:
            live.sums = Sums(used.s_steps, used.s_cost, used.s_tokens)
        return live

    def live(self, name: str, record: Record, place: int, *, is_own: bool) -> Live:
        """The session that a record names; ``is_own`` if the record is one of the session itself."""
        live, event, n = self.known(name), record.event, record.position
        if live is None:
            row = self.sessions.add(tables.Session(name=name, place=place, trace=event.traceparent, born=n))
            live = self._live[name] = self._touched[row.key] = Live(row, State(event.ts, event.ts, event.ts))
        if is_own and not live.row.named:
            waits = self.started.find("child = ? AND background = 1", name) is None
            parent = self._started_by(name)
            up = parent.key if parent is not None else None
            about = {"up": up, "trace": event.traceparent, "background": int(not waits), "place": place}
            self.sessions.change(live.row, n, named=1, first=n, **about)
            self.places.change(self.place_of(live), n, used=1)
            if parent is not None and parent.till is None and event.ts < parent.start:
                # A call whose start was not recorded is known once its session is there, but it began before.
                self.spans.change(parent, n, start=event.ts)
            live.state.free = live.state.first = live.state.last = event.ts
        return live

    def _started_by(self, child: str) -> tables.Span | None:
        """The call that started a session."""
        spawn = self.spawns.find("child = ? AND span IS NOT NULL ORDER BY id DESC", child)
        span = self.spans.find("key = ? AND died IS NULL", spawn.span) if spawn is not None else None
        return self.live_of(span.session).open.get(span.key, span) if span is not None else None

    def place(self, record: Record) -> tuple[tables.Place, tables.Moment]:
        """The place of a record, and the record's row, as far as it is about the place."""
        stream, n, ts = record.event.stream_id, record.position, record.event.ts
        place, last = self._newest.pop(stream) if stream in self._newest else self._place(stream, n)
        row = tables.Moment(n, place.key, ts=ts, since=ts, until=ts, news=n)
        if last is not None:
            row.since, row.until, row.news = last.since, last.until, last.news
            row.number, row.forgotten, row.cut = last.number, last.forgotten, last.cut
            last.next = n
            self.moments.put(last.n, last)
            # What a person says about a session makes it no newer: neither its age nor its place in a list changes.
            if record.event.type not in MARKS:
                row.since, row.until, row.news = min(row.since, ts), max(row.until, ts), n
        row.number += 1
        row.forgotten += is_forgotten(record.event.payload)
        row.cut += has_cut(record.event.payload)
        self.moments.put(n, row)
        self._newest[stream] = place, row
        return place, row

    def place_at(self, record: Record) -> tables.Place:
        return self._newest[record.event.stream_id][0]

    def _place(self, stream: str, n: int) -> tuple[tables.Place, tables.Moment | None]:
        place = self.places.find("stream = ? AND died IS NULL", stream)
        if place is None:
            return self.places.add(tables.Place(stream=stream, first=n, born=n)), None
        return place, self.moments.find("place = ? ORDER BY n DESC", place.key)

    def place_of(self, s: Live) -> tables.Place:
        """The place of a session."""
        found = self.places.find("key = ? AND died IS NULL", s.row.place)
        assert found is not None
        return self._newest[found.stream][0] if found.stream in self._newest else found

    def touch(self, s: Live, ts: int, *, is_news: bool) -> None:
        """Count a record of a session; what a person says about it is no news of it."""
        state = s.state
        state.count += 1
        if is_news:
            state.first, state.last = min(state.first, ts), max(state.last, ts)

    # --- turns and items ---

    def turn(self, s: Live, message: str, n: int) -> tables.Turn:
        """The turn of a message; without one, the latest turn. It is made if there is none."""
        if (turn := self.known_turn(s, message)) is None:
            given = self.inputs.find("session = ? AND message = ?", s.key, message)
            turn = self.new_turn(s, message, given.asked or "" if given is not None else "", n)
        return turn

    def known_turn(self, s: Live, message: str) -> tables.Turn | None:
        if not message or (s.current is not None and s.current.message == message):
            return s.current
        return self.turns.find("session = ? AND message = ? AND died IS NULL", s.key, message)

    def new_turn(self, s: Live, message: str, asked: str, n: int) -> tables.Turn:
        branch = s.branch.id if s.branch is not None else None
        row = tables.Turn(session=s.key, message=message, first=n, branch=branch, asked=asked, born=n)
        turn = self.turns.add(row)
        if s.current is None or s.current.outcome or s.current.started_ms is None:
            self.be_current(s, turn)
        return turn

    def be_current(self, s: Live, turn: tables.Turn) -> None:
        s.current, s.state.current = turn, turn.key

    def turn_of(self, s: Live, p: dict[str, Any], n: int) -> tables.Turn:
        """The turn that a step or an answer belongs to."""
        turn = self.turn(s, as_text(p.get("turn")), n)
        if message := as_text(p.get("message")):
            self.replied(s, message, turn)
        return turn

    def replied(self, s: Live, message: str, turn: tables.Turn) -> None:
        """Note which turn a message of the model belongs to."""
        if s.state.reply != (reply := (message, turn.message)):
            s.state.reply = reply
            self.replies.add(tables.Reply(session=s.key, message=message, turn=turn.message))

    def item(self, turn: tables.Turn, n: int, kind: str, **about: Any) -> tables.Item:
        return self.items.add(tables.Item(turn=turn.key, kind=kind, at=n, born=n, **about))

    def prompt(self, s: Live, message: str) -> tables.Item | None:
        """The item of an input."""
        turn = self.known_turn(s, message) if message else None
        if turn is None:
            return None
        return self.items.find("turn = ? AND kind = 'prompt' AND died IS NULL ORDER BY key DESC", turn.key)

    def sums_of(self, s: Live, turn: tables.Turn) -> Sums:
        """What the steps of a turn used."""
        if s.used_by != turn.key:
            used = self.steps.find("turn = ? ORDER BY n DESC", turn.key)
            s.turn_sums = Sums(used.t_steps, used.t_cost, used.t_tokens) if used is not None else Sums()
            s.used_by = turn.key
        return s.turn_sums

    # --- spans ---

    def begin(self, s: Live, n: int, kind: str, start: int, **about: Any) -> tables.Span:
        """A span of a session; it is open unless ``about`` says how it ended."""
        up = s.run.key if s.run is not None and kind != "turn" else None
        row = tables.Span(session=s.key, kind=kind, at=n, start=start, up=up, number=s.state.number, born=n, **about)
        return self.spans.add(row)

    def end(self, s: Live, span: tables.Span, n: int, end: int, state: str, result: int | None = None) -> None:
        self.spans.set(span, till=n, end=max(end, span.start), state=state, result=result or span.result)
        if span.kind == "wait":
            s.state.waited += max(end - span.start, 0)

    def go_on(self, s: Live, n: int, now: int) -> None:
        """End the pause: the model was called again, or the turn is over."""
        if s.pause is not None:
            self.end(s, s.pause, n, min(s.state.free, now), "completed")
            s.pause = None

    def over(self, s: Live, n: int, ts: int, turn: str | None = None) -> None:
        """End the asks and the calls without an answer; with ``turn``, only the asks that name it."""
        gone = [each for each in s.open.values() if turn is None or (each.kind == "wait" and each.turn == turn)]
        for span in gone:
            self.end(s, span, n, ts, "over")
            del s.open[span.key]
        message = s.run.turn if s.run is not None else ""
        lost = {span.call: (span.key, message) for span in gone if span.kind == "tool"}
        s.state.lost = lost or s.state.lost

    def close(self, s: Live, n: int, ts: int, state: str, result: int | None = None) -> None:
        """End the turn and everything in it; ``result`` if a record says how it ended."""
        self.go_on(s, n, ts)
        self.over(s, n, ts)
        if s.run is not None:
            self.end(s, s.run, n, ts, state, result)
            s.state.ran += (s.run.end or 0) - s.run.start
            s.run = None

    def mark(self, s: Live, n: int, kind: str) -> None:
        """Count a record that a person may want to jump to."""
        s.state.marks[kind] = number = s.state.marks.get(kind, 0) + 1
        self.marks.add(tables.Mark(n=n, session=s.key, kind=kind, number=number))

    def change(self, s: Live, n: int, p: dict[str, Any], **new: Any) -> None:
        """A new version of a session's row, also with the title and the fork that a record names."""
        fork = as_text(as_mapping(p.get("fork")).get("session")) or s.row.fork
        self.sessions.change(s.row, n, title=as_text(p.get("title")) or s.row.title, fork=fork, **new)
