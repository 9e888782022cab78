"""A session and everything that it started, as they were after one record. Reads the tables, so it blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import orjson

from sidecar.read.asked import OpenAsk, OpenCall, asked_text
from sidecar.read.catalog import ASK_LENGTH, Catalog
from sidecar.read.fields import as_text
from sidecar.read.story import tables
from sidecar.read.telling.describe import call_text, describe
from sidecar.read.transcript.model import Turn
from sidecar.read.views import SessionView, StreamView
from sidecar.read.wording import cut_middle
from streams.lineage import RETRIED
from streams.store import Record

if TYPE_CHECKING:
    from sidecar.read.story.reading import Snapshot

ALIVE: Final = "born <= :n AND (died IS NULL OR died > :n)"
"""The versions of rows that held after record ``n``."""

MARKS: Final = ("turn", "ask", "error", "edit")
"""The records that a person may want to jump to."""

KEPT: Final = 64
"""How many of the last records stay at hand: several parts of an answer read the same ones."""


class Moment:
    """What was known after the record at position ``n``, of the sessions in some streams.

    With ``only``, of that session and its descendants.
    """

    def __init__(self, story: Snapshot, streams: Iterable[str], n: int, only: str | None = None) -> None:
        self.story, self.n, self.only = story, n, only
        self.streams = sorted(streams)
        self.record: Callable[[int], Record] = lru_cache(maxsize=KEPT)(story.record)

    def rows(self, table: str, where: str, **given: Any) -> list[Any]:
        """The rows of a table that fit, in which ``:n`` is the moment's record."""
        return self.story.rows(table, where, n=self.n, **given)

    def one(self, table: str, where: str, **given: Any) -> Any:
        return next(iter(self.rows(table, f"{where} LIMIT 1", **given)), None)

    def has(self, position: int | None) -> TypeGuard[int]:
        """Whether a record that something happened with was there already."""
        return position is not None and position <= self.n

    @cached_property
    def places(self) -> dict[str, int]:
        """The keys of those of the streams that have a record."""
        where = "SELECT stream, key FROM place WHERE stream IN (SELECT value FROM json_each(:streams)) ORDER BY key"
        return dict(self.story.sql(where, streams=orjson.dumps(self.streams).decode()))

    @cached_property
    def all(self) -> dict[int, tables.Session]:
        """Every session that a record has named so far, by its key, in the order in which they were first named."""
        # A session has many versions, so look only for the last one of each.
        last = "key = :key AND born <= :n ORDER BY born DESC"
        found = [self.one("session", last, key=key) for key in self._keys()]
        rows = [row for row in found if row is not None and row.place in self.places.values()]
        if self.only is not None:
            parents = {row.name: row.parent for row in rows}
            rows = [row for row in rows if self.only in _above(parents, row.name)]
        return {row.key: row for row in rows}

    def _keys(self) -> list[int]:
        """The keys of all sessions that were ever at one of the places."""
        following = "SELECT key FROM session WHERE place = :place AND key > :key ORDER BY key LIMIT 1"
        found = set[int]()
        for place in self.places.values():
            rows: list[Any] = [(0,)]
            while rows := self.story.sql(following, place=place, key=rows[0][0]):
                found.add(rows[0][0])
        return sorted(found)

    @cached_property
    def sessions(self) -> dict[int, tables.Session]:
        """Those of which something was recorded, by their keys, in the order of their first records."""
        named = [row for row in self.all.values() if row.named]
        return {row.key: row for row in sorted(named, key=lambda row: row.first or 0)}

    @cached_property
    def undone(self) -> set[tuple[int, str]]:
        """The session and the message of each turn that is undone."""
        where = f"SELECT session, message FROM undone WHERE session = :s AND {ALIVE}"  # noqa: S608
        return {each for key in self.all for each in self.story.sql(where, n=self.n, s=key)}

    @cached_property
    def runs(self) -> dict[int, tables.Span]:
        """The latest turn of each session that had one."""
        where = "session = :s AND kind = 'turn' AND at <= :n ORDER BY at DESC"
        found = {key: self.one("span", where, s=key) for key in self.sessions}
        return {key: run for key, run in found.items() if run is not None}

    def used(self, of: str, key: int) -> Any:
        """The last step of a ``session``, ``turn`` or ``run``, whose row has the sums so far; ``None`` before it."""
        return self.one("step", f"{of} = :key AND n <= :n ORDER BY n DESC", key=key)

    def turn(self, row: tables.Turn) -> Turn:
        """A turn, without what is told of it."""
        used = self.used("turn", row.key)
        steps, cost, tokens = (used.t_steps, used.t_cost, used.t_tokens) if used is not None else (0, 0.0, "{}")
        spawned = self.story.sql("SELECT child FROM spawn WHERE turn = :t AND n <= :n ORDER BY id", t=row.key, n=self.n)
        about = row.message, row.agent, row.model, row.trigger, row.started_ms, row.ended_ms, row.outcome, row.error
        return Turn(*about, steps, cost, orjson.loads(tokens), row.asked, [child for (child,) in spawned])

    def turns(self, session: int) -> list[Turn]:
        """The turns that a session had started."""
        where = f"session = :s AND {ALIVE} AND started_ms IS NOT NULL ORDER BY key"
        return [self.turn(row) for row in self.rows("turn", where, s=session)]

    def is_open(self, span: tables.Span) -> bool:
        return not self.has(span.till)

    @cached_property
    def open(self) -> dict[int, list[tables.Span]]:
        """The asks and calls that are open, by session. None outlives its turn, so none is older than the last one."""
        where = f"""session = :s AND at >= :since AND at <= :n AND {ALIVE}
            AND (till IS NULL OR till > :n) AND kind IN ('wait', 'tool')"""
        since = {key: run.at for key, run in self.runs.items()}
        return {
            key: self.rows("span", f"{where} ORDER BY key", s=key, since=since.get(key, 0)) for key in self.sessions
        }

    # --- in the form of the catalog ---

    @cached_property
    def catalog(self) -> Catalog:
        """The sessions and their streams as a catalog that has seen no more records than these."""
        found = Catalog()
        for name, key in self.places.items():
            if (place := self.one("place", f"key = :key AND {ALIVE}", key=key)) is not None:
                given = {"directory": place.directory, "project": place.project, "ran_in": place.ran_in}
                found.streams[name] = StreamView(name, 0, boot=place.boot, **given)
        for row in self.sessions.values():
            stream = self.stream(row)
            found.sessions[row.name] = self._view(row, stream)
            found.streams[stream].sessions.append(row.name)
        return found

    def stream(self, session: tables.Session) -> str:
        """The name of a session's stream."""
        return next(name for name, key in self.places.items() if key == session.place)

    def _view(self, row: tables.Session, stream: str) -> SessionView:
        view = SessionView(row.name, stream, row.parent, bool(row.known), bool(row.announced), row.ended)
        view.title, view.name, view.told = row.label or row.title, row.label, row.title if row.label else ""
        view.fork, view.agent, view.model, view.is_background = row.fork, row.agent, row.model, bool(row.background)
        view.pinned, key = bool(row.pinned), row.key
        if (used := self.used("session", key)) is not None:
            view.steps, view.cost, view.tokens = used.s_steps, used.s_cost, orjson.loads(used.s_tokens)
        if (run := self.runs.get(key)) is not None:
            first = self.one("span", "session = :s AND kind = 'turn' ORDER BY at", s=key)
            view.turn = as_text(self.record(run.at).event.payload.get("message"))
            view.turns, view.begun_ms, view.turn_ms, view.ran_ms = run.number, first.start, run.start, run.total
            if not self.is_open(run):
                view.ran_ms += (run.end or run.start) - run.start
                view.outcome = "unknown"
            if not self.is_open(run) and self.has(run.told):
                view.outcome = as_text(self.record(run.told).event.payload.get("outcome")) or "ended"
                view.ended_ms = run.end
        for span in self.open[key]:
            self._opened(view, span)
        last = self.one("moment", "session = :s AND n <= :n ORDER BY n DESC", s=key)
        event = self.record(last.n).event
        view.retries = _cut(str(describe(event))) if event.type == RETRIED else ""
        return view

    def _opened(self, view: SessionView, span: tables.Span) -> None:
        event = self.record(span.at).event
        if span.kind == "wait" and not span.marked:
            text = _cut(asked_text(event.payload))
            view.asks[span.request] = OpenAsk(span.request, view.id, event.id, span.start, text)
        elif span.kind == "tool" and span.at != span.about:
            view.calls[span.call] = OpenCall(event.ts, _cut(call_text(event.payload)))

    @property
    def waits(self) -> int:
        """How many answers of a person are waited for."""
        return sum(span.kind == "wait" for spans in self.open.values() for span in spans)

    def waited_ms(self, now: int) -> int:
        """How long a person was waited for until ``now``, in all asks together."""
        where = f"session = :s AND kind = 'wait' AND {ALIVE}"
        sum_ = "SELECT sum(max(CASE WHEN till <= :n THEN end ELSE :now END - start, 0)) FROM span WHERE"
        found = [self.story.sql(f"{sum_} {where}", n=self.n, now=now, s=key)[0][0] for key in self.sessions]
        return sum(each or 0 for each in found)

    def counts(self) -> dict[str, int]:
        """How many records so far a person may want to jump to, by what they are; only kinds of which there are any."""
        found: dict[str, int] = {}
        where = "session = :s AND kind = :kind AND n <= :n ORDER BY n DESC"
        for kind in MARKS:
            marks = [mark for key in self.sessions if (mark := self.one("mark", where, s=key, kind=kind)) is not None]
            found |= {kind: sum(mark.number for mark in marks)} if marks else {}
        return found


def _above(parents: dict[str, str | None], name: str | None) -> list[str]:
    """A session and its ancestors."""
    found: list[str] = []
    while name in parents and name not in found:
        found.append(name)
        name = parents[name]
    return found


def _cut(text: str) -> str:
    return cut_middle(text, ASK_LENGTH)[0]
