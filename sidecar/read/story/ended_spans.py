"""The spans that ended with some records, for a receiver that gets each of them once. Reads the tables, so it blocks.

Each span is that of ``traces.otlp`` over the whole stream, with the same id. A session has ended once it rests for the
first time, when its turn ends, and the tool call that started it has ended, too; its later turns are below it all the
same. A deleted session has ended in any case.
"""

from __future__ import annotations

from typing import Any

from sidecar.read.past.traces import otlp_span, parent_of
from sidecar.read.story import tables
from sidecar.read.story.moment import Moment
from sidecar.read.story.reading import Snapshot
from sidecar.read.story.timeline import Timeline


def ended(story: Snapshot, after: int, until: int, most: int) -> tuple[list[dict[str, Any]], int]:
    """What ended with the records above position ``after`` up to ``until``, as OTLP/JSON, and up to which of them: no
    further once there are ``most`` spans."""
    touched = "SELECT DISTINCT session FROM moment WHERE n > :after AND n <= :until AND session IS NOT NULL"
    ends: list[tuple[int, int, int, Any]] = []
    sessions: set[int] = set()
    for (key,) in story.sql(touched, after=after, until=until):
        below = "key = :key OR parent = (SELECT name FROM session WHERE key = :key)"
        sessions |= {each for (each,) in story.sql(f"SELECT DISTINCT key FROM session WHERE {below}", key=key)}  # noqa: S608
        # None outlives its turn, so none is older than the last turn that had begun.
        where = """session = :key AND till > :after AND till <= :until AND born <= till
            AND (died IS NULL OR died > till)
            AND at >= ifnull((SELECT max(at) FROM span WHERE session = :key AND kind = 'turn' AND at <= :after), 0)"""
        rows = story.rows("span", where, key=key, after=after, until=until)
        ends += [(row.till, row.at, row.key, row) for row in rows]
    for key in sessions:
        n, row = _end_of(story, key, until)
        if n is not None and n > after:
            ends.append((n, row.first or 0, 0, row))
    found: list[dict[str, Any]] = []
    known: dict[tuple[int, int], _Then] = {}
    last = after
    then_at = "SELECT place FROM session WHERE key = :key AND born <= :n ORDER BY born DESC LIMIT 1"
    for n, _, _, row in sorted(ends, key=lambda each: each[:3]):
        if len(found) >= most and n > last:
            return found, last
        last = n
        [(place,)] = story.sql(then_at, key=_session_of(row), n=n)
        then = known.setdefault((n, place), _Then(story, place, n))
        found.append(then.span(row))
    return found, until


class _Then:
    """A stream after the record at a position."""

    def __init__(self, story: Snapshot, place: int, n: int) -> None:
        [(stream,)] = story.sql("SELECT stream FROM place WHERE key = :place LIMIT 1", place=place)
        self._moment = Moment(story, [stream], n)
        self._timeline = Timeline(self._moment)
        self._ts = self._moment.record(n).event.ts

    def span(self, row: Any) -> dict[str, Any]:
        session = self._timeline.session(self._moment.all[_session_of(row)])
        span = session if isinstance(row, tables.Session) else self._timeline.span(row)
        above = [self._timeline.session(each) for each in self._moment.sessions.values()]
        if row.up is not None and (around := self._moment.one("span", "key = :key", key=row.up)) is not None:
            above += [self._timeline.span(around)] if around.session in self._moment.all else []
        return otlp_span(span, parent_of(span, {each.id: each for each in above}), session, self._ts)


def _session_of(row: Any) -> int:
    key: int = row.key if isinstance(row, tables.Session) else row.session
    return key


def _end_of(story: Snapshot, key: int, until: int) -> tuple[int | None, Any]:
    """The record with which a session had ended, if it had by then, and a version of the session."""
    rows = story.rows("session", "key = :key AND named AND born <= :until ORDER BY born", key=key, until=until)
    if not rows:
        return None, None
    call = story.one("span", "key = :up ORDER BY born DESC", up=rows[-1].up) if rows[-1].up is not None else None
    known = story.one("session", "key = :key", key=call.session) if call is not None else None
    is_inside = known is not None and known.place == rows[-1].place
    free = call.till if call is not None and is_inside else 0
    found = [row.born for row in rows if row.ended is not None]
    if free is not None:
        rests = [(max(row.born, free), row.died) for row in rows if row.rests]
        found += [n for n, died in rests if died is None or n < died]
    return min((n for n in found if n <= until), default=None), rows[-1]
