"""A session and everything that it started, as they were after one record. Reads the tables, so it blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import orjson

from sidecar.read.sessions import Sessions
from sidecar.read.story import tables
from sidecar.read.story.catalog import Catalog
from sidecar.read.story.tables import ALIVE
from sidecar.read.transcript.model import Turn
from streams.store import Record

if TYPE_CHECKING:
    from sidecar.read.story.reading import Snapshot

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
        self._one: Callable[[int], Record] = lru_cache(maxsize=KEPT)(story.record)
        self._some: dict[int, Record] = {}

    def read(self, positions: Iterable[int]) -> None:
        """Read the records at these positions at once, for ``record``, in place of those that were read so before."""
        self._some = self.story.records(positions)

    def record(self, position: int) -> Record:
        return self._some.get(position) or self._one(position)

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
    def undone(self) -> set[int]:
        """The keys of the turns that are undone."""
        messages = f"SELECT message FROM undone WHERE session = :s AND {ALIVE}"  # noqa: S608
        where = f"SELECT key FROM turn WHERE session = :s AND message IN ({messages})"  # noqa: S608
        return {key for session in self.all for (key,) in self.story.sql(where, n=self.n, s=session)}

    @cached_property
    def _log(self) -> Catalog:
        return Catalog(self.story, self.n)

    @cached_property
    def runs(self) -> Mapping[int, tables.Span]:
        """The latest turn of each session that had one."""
        return self._log.runs(self.sessions.values())

    def used(self, of: str, key: int) -> Any:
        """The last step of a ``session``, ``turn`` or ``run``, whose row has the sums so far; ``None`` before it."""
        return self.one("step", f"{of} = :key AND n <= :n ORDER BY n DESC", key=key)

    def turn(self, row: tables.Turn) -> Turn:
        """A turn, without its items."""
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
    def catalog(self) -> Sessions:
        """The sessions and their streams."""
        places = [self.one("place", f"key = :key AND {ALIVE}", key=key) for key in self.places.values()]
        streams = self._log.stream_views([place for place in places if place is not None])
        sessions = self._log.views(self.sessions.values())
        for stream in streams.values():
            stream.sessions = [name for name in stream.sessions if name in sessions]
        return Sessions(streams, sessions)

    def stream(self, session: tables.Session) -> str:
        """The name of a session's stream."""
        return next(name for name, key in self.places.items() if key == session.place)

    @cached_property
    def _waiting(self) -> list[tables.Span]:
        open_ = self._log.open(self.sessions.values(), self.runs)
        return [span for key in self.sessions for span in open_.get(key, ()) if span.kind == "wait"]

    @property
    def waits(self) -> int:
        """How many answers of a person are waited for."""
        return len(self._waiting)

    def waited_ms(self, now: int) -> int:
        """How long a person was waited for until ``now``, in all asks together."""
        open_ = sum(max(now - span.start, 0) for span in self._waiting)
        return open_ + sum(self.last(key).waited for key in self.sessions)

    def last(self, session: int) -> tables.Moment:
        """The last record of a session so far."""
        found: tables.Moment = self.one("moment", "session = :s AND n <= :n ORDER BY n DESC", s=session)
        return found

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
