"""What the page on costs shows. What was spent is cached, so that a look reads only the steps that are new."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from heapq import nlargest
from typing import Any, Final

import orjson

from sidecar.background.reading import root_of, starters_of
from sidecar.read.story.catalog import Catalog
from sidecar.read.story.costs import WAYS, By, Cell, When, cells, costs, joined
from sidecar.read.story.reading import Snapshot
from sidecar.read.story.reading import ask as ask_story
from sidecar.read.story.tables import ALIVE
from streams.lineage import Session, Tree
from streams.log.reader import LogReader
from streams.store import NOTHING

RANGES: Final = (7, 30, 90)
"""How many days the page can show; 0: all."""

MOST_DAYS: Final = 120
"""How many bars the picture has, if all days are shown."""

MOST_MODELS: Final = 6
"""How many models have a colour of their own; the others share one."""

DEAREST: Final = 8
WEEK: Final = 7

_TURNS: Final = """
    SELECT turn, cost, ts FROM (
        SELECT *, row_number() OVER (PARTITION BY ts / 900000 ORDER BY cost DESC) AS place FROM (
        SELECT turn, max(t_cost) AS cost, max(ts) AS ts FROM step
        WHERE kind = 'inference' AND n > :after AND n <= :head GROUP BY turn HAVING max(t_cost) > 0) AS spent) AS ranked
    WHERE place <= :most"""
"""The dearest turns of each quarter of an hour: in every zone, a day begins with one. What a turn cost is a sum so far,
so one that was left out comes back with all of it."""
_ASKED: Final = f"""SELECT key, session, asked, first FROM turn
    WHERE key IN (SELECT value FROM json_each(:keys)) AND {ALIVE}"""  # noqa: S608


@dataclass(slots=True)
class _Spent:
    """What the steps up to a ``position`` used. ``turns`` has the cost and the time of the dearest turns, by
    their keys."""

    position: int = NOTHING
    removed: Any = None
    cells: list[Cell] = field(default_factory=list)
    turns: dict[int, tuple[float, int]] = field(default_factory=dict)


class Spending:
    """The costs of one log."""

    def __init__(self, reader: LogReader) -> None:
        self._reader, self._spent, self._starters = reader, _Spent(), dict[str, str]()
        self._answers: dict[tuple[Any, ...], dict[str, Any]] = {}

    async def shown(self, by: str, days: int, now_ms: int) -> dict[str, Any]:
        """What root sessions cost in the last ``days`` days, today included, by one of ``WAYS``; 0: in all days.

        ``sums`` and ``total`` are those of ``costs --json``; ``days`` has what each model cost on each day, ``weeks``
        the costs of the last seven days and of the seven before, and ``turns`` the dearest ones.
        """
        way: By = next((each for each in WAYS if each == by), "day")
        today = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone().date()
        key = self._reader.head, way, days, today
        if key in self._answers:
            return self._answers[key]
        if self._reader.head > self._spent.position:
            self._starters = await starters_of(self._reader)
        removed = await self._reader.removed()
        if removed != self._spent.removed or self._reader.head < self._spent.position:
            self._spent = _Spent(removed=removed)

        def question(story: Snapshot) -> tuple[_Spent, dict[str, Any]]:
            spent, known = self._more(story), _Sessions(story, self._starters)
            return spent, _answer(story, spent, known, way, days, today)

        spent, found = await ask_story(self._reader, question)
        if self._spent.removed == spent.removed:
            self._spent = spent
        self._answers = {each: answer for each, answer in self._answers.items() if each[0] == key[0]} | {key: found}
        return found

    def _more(self, story: Snapshot) -> _Spent:
        """All that was spent, with the steps that are new."""
        old = self._spent if self._spent.position <= story.head else _Spent(removed=self._spent.removed)
        if old.position == story.head:
            return old
        catalog = Catalog(story)

        def moves(sessions: set[str]) -> set[int]:
            roots = {root_of(catalog, self._starters, name) for name in sessions} & moved
            return {position for root in roots for position, _ in catalog.moves(root)}

        moved = {name for (name,) in story.sql("SELECT stream FROM place WHERE moved > 0")}
        new = cells(story, When(None, None), moves if moved else lambda sessions: (), old.position)
        turns = story.sql(_TURNS, after=old.position, head=story.head, most=DEAREST)
        return _Spent(
            story.head,
            old.removed,
            joined([*old.cells, *new]),
            old.turns | {turn: (cost, ts) for turn, cost, ts in turns},
        )


class _Sessions(Tree[Session]):
    """Which session is below which one, and where each worked."""

    def __init__(self, story: Snapshot, starters: Mapping[str, str]) -> None:
        rows = story.sql(
            f"SELECT key, name, parent, title, label FROM session WHERE named = 1 AND {ALIVE} ORDER BY first",  # noqa: S608
            n=story.head,
        )
        super().__init__({name: Session(name, "", parent) for _, name, parent, *_ in rows})
        self.names = {key: name for key, name, *_ in rows}
        self.titles = {name: label or title for _, name, _, title, label in rows}
        self._starters, self._roots, self._catalog = starters, dict[str, str](), Catalog(story)
        places = story.sql(f"SELECT stream, directory FROM place WHERE moved = 0 AND {ALIVE}", n=story.head)  # noqa: S608
        self._directories = {stream: directory for stream, directory in places if directory}

    def counts_in(self, session: str) -> str:
        """The session in which another one counts."""
        if session not in self._roots:
            self._roots[session] = root_of(self, self._starters, session)
        return self._roots[session]

    def directory(self, root: str, at: int) -> str:
        """Where a root session worked at a position."""
        return self._directories.get(root) or self._catalog.directory(root, at)


def _answer(story: Snapshot, spent: _Spent, known: _Sessions, way: By, days: int, today: date) -> dict[str, Any]:
    since = (today - timedelta(days - 1)).isoformat() if days else ""
    shown = [cell for cell in spent.cells if cell.day >= since]
    found = costs(shown, way, known.counts_in, known.directory)
    sums = [each.as_json() for each in found.sums()]
    if way == "session":
        sums = [each | {"title": known.titles.get(each["key"], "")} for each in sums]
    return {
        "by": way,
        "range": days,
        "sums": sums,
        "total": found.total().as_json(),
        "is_partial": found.is_partial,
        **stacked(shown, days, today),
        "weeks": weeks(spent.cells, today),
        "turns": _dearest(story, spent, known, since),
    }


def stacked(shown: Iterable[Cell], days: int, today: date) -> dict[str, Any]:
    """``models``, the dearest first, and for each of the ``days`` its date and what each of these models cost and used
    in tokens; the last model, named ``null``, stands for all others. Pure."""
    by_day: dict[str, dict[str, list[float]]] = {}
    together: dict[str, list[float]] = {}
    for cell in shown:
        count = cell.count
        for sums in (by_day.setdefault(cell.day, {}), together):
            used = sums.setdefault(cell.model, [0.0, 0])
            used[0], used[1] = round(used[0] + cell.cost, 9), used[1] + count
    order = sorted(together, key=lambda model: together[model], reverse=True)
    models, others = order[:MOST_MODELS], order[MOST_MODELS:]
    first = min((day for day in by_day if day), default=today.isoformat())
    count = days or min((today - date.fromisoformat(first)).days + 1, MOST_DAYS)
    rows = []
    for back in range(max(count, 1) - 1, -1, -1):
        day = (today - timedelta(back)).isoformat()
        own = by_day.get(day, {})
        parts = [own.get(model, [0.0, 0]) for model in models]
        if others:
            rest = [own[model] for model in others if model in own]
            parts.append([sum(each[0] for each in rest), sum(each[1] for each in rest)])
        rows.append({"day": day, "used": parts})
    return {"models": models + [None] * bool(others), "days": rows}


def weeks(some: Iterable[Cell], today: date) -> list[float]:
    """What the last seven days cost, today included, and the seven before. Pure."""
    begins = [(today - timedelta(count - 1)).isoformat() for count in (WEEK, 2 * WEEK)]
    found = [0.0, 0.0]
    for cell in some:
        if begins[1] <= cell.day <= today.isoformat():
            found[cell.day < begins[0]] += cell.cost
    return [round(each, 9) for each in found]


def _dearest(story: Snapshot, spent: _Spent, known: _Sessions, since: str) -> list[dict[str, Any]]:
    """The turns that cost most since a day: where each is, what was asked, and the event with which it began."""
    begin = datetime.fromisoformat(since).astimezone().timestamp() * 1000 if since else 0
    dear = ((cost, key, ts) for key, (cost, ts) in spent.turns.items() if ts >= begin)
    found = nlargest(DEAREST, dear)
    rows = story.sql(_ASKED, n=story.head, keys=orjson.dumps([key for _, key, _ in found]).decode())
    turns = {key: (known.names.get(session, ""), asked, first) for key, session, asked, first in rows}
    dearest = []
    for cost, key, ts in found:
        if key not in turns:
            continue
        session, asked, first = turns[key]
        root = known.root(session)
        about = {"event": story.record(first).event.id, "title": known.titles.get(root, ""), "asked": asked[:200]}
        dearest.append({"stream_id": root, "cost": cost, "ts": ts, **about})
    return dearest
