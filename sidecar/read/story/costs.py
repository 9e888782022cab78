"""What sessions cost, by day, project, model, agent or session.

Each step counts once: in the session at the root of its tree, with the work that this session started.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import orjson

from bridge.opencode.capture.tokens import add_tokens, total_of
from sidecar.read.story.reading import Snapshot
from sidecar.read.wording import local_time
from streams.store import NOTHING

By = Literal["day", "project", "model", "agent", "session"]
WAYS: Final = get_args(By)

_QUARTER_MS: Final = 900_000
"""Every zone's midnight is at a whole quarter of an hour."""

_SPENT: Final = """SELECT ts / 900000, session, CASE WHEN :moves = '[]' THEN -1 ELSE
        (SELECT ifnull(max(value), -1) FROM json_each(:moves) WHERE value <= n) END AS moved,
        model, agent, tokens, max(n), count(*), sum(cost), max(partial)
    FROM step WHERE kind = 'inference' AND n > :after AND (
        (ts >= ifnull(:since, ts) AND ts <= ifnull(:until - 1, ts) AND n NOT IN (SELECT value FROM json_each(:doubted)))
        OR n IN (SELECT value FROM json_each(:believed)))
    GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY min(n)"""
"""Grouped by the tokens, too: to take their JSON apart in SQL takes ten times as long."""


@dataclass(slots=True)
class Cell:
    """What the steps of one session used on one day with one model and agent, between two moves of a session. ``moved``
    is the position of the first of these moves, -1 before any, and ``last`` that of the last step. ``partial``: a step
    is of an OpenCode that tells no steps of titles and compactions."""

    day: str
    session: str
    model: str
    agent: str
    moved: int
    last: int
    steps: int
    cost: float
    partial: bool
    tokens: dict[str, int | float]

    @property
    def count(self) -> int:
        return total_of(self.tokens)


@dataclass(slots=True)
class Sum:
    """What the steps under one key used. ``sessions`` counts root sessions."""

    key: str
    cost: float
    steps: int
    tokens: dict[str, int | float]
    roots: set[str]

    @property
    def count(self) -> int | float:
        return total_of(self.tokens)

    def as_json(self) -> dict[str, Any]:
        """The sum in the form that ``costs --json`` prints."""
        return {
            "key": self.key,
            "cost": self.cost,
            "steps": self.steps,
            "sessions": len(self.roots),
            "tokens": self.tokens,
        }


class Costs:
    """Sums of what inference used, by their keys."""

    def __init__(self, by: By) -> None:
        self._by = by
        self._sums: dict[str, Sum] = {}
        self.is_partial = False
        """Whether a step of OpenCode 2 is in the sums, which has no steps for titles and compactions."""

    def add(self, key: str, root: str, steps: int, cost: float, tokens: dict[str, int | float]) -> None:
        found = self._sums.setdefault(key, Sum(key, 0.0, 0, {}, set()))
        found.cost, found.steps = round(found.cost + cost, 9), found.steps + steps
        add_tokens(found.tokens, tokens)
        found.roots.add(root)

    def total(self) -> Sum:
        """All of it; a session counts once, although it may count under several keys."""
        found = Sum("", 0.0, 0, {}, set())
        for each in self._sums.values():
            found.cost, found.steps = round(found.cost + each.cost, 9), found.steps + each.steps
            add_tokens(found.tokens, each.tokens)
            found.roots |= each.roots
        return found

    def sums(self) -> list[Sum]:
        """Days in order; everything else by cost, then by tokens, the most first."""
        if self._by == "day":
            return sorted(self._sums.values(), key=lambda each: each.key)
        return sorted(self._sums.values(), key=lambda each: (each.cost, each.count, each.steps), reverse=True)


@dataclass(slots=True)
class When:
    """The time in which steps count, from ``since`` up to ``until``, in ms since 1970; ``None``: any. The times of the
    steps at the ``doubted`` positions cannot be true, but some of these steps are ``believed`` to count."""

    since: int | None
    until: int | None
    doubted: list[int] = field(default_factory=list)
    believed: list[int] = field(default_factory=list)

    def doubt(self, position: int, ts: int) -> None:
        """Take ``ts`` for the time of the step at a position."""
        self.doubted.append(position)
        if (self.since is None or ts >= self.since) and (self.until is None or ts < self.until):
            self.believed.append(position)


def cells(
    story: Snapshot, when: When, moves: Callable[[set[str]], Collection[int]], after: int = NOTHING
) -> list[Cell]:
    """What the steps of some time used, above position ``after``, in the order of the first ones.

    ``moves`` returns the positions at which some sessions, or their roots, moved to another directory.
    """
    names = dict(
        story.sql("SELECT key, name FROM session WHERE key IN (SELECT session FROM step WHERE n > :n)", n=after)
    )
    given: dict[str, Any] = {"since": when.since, "until": when.until, "after": after}
    given |= {
        name: orjson.dumps([*each]).decode() for name, each in (("doubted", when.doubted), ("believed", when.believed))
    }
    given["moves"] = orjson.dumps(sorted(moves({*names.values()}))).decode()
    found: dict[tuple[Any, ...], Cell] = {}
    days: dict[int, str] = {}
    for quarter, session, moved, model, agent, tokens, last, steps, cost, partial in story.each(_SPENT, **given):
        if quarter not in days:
            days[quarter] = local_time(quarter * _QUARTER_MS, "%Y-%m-%d")
        key = days[quarter], names[session], model, agent, moved
        cell = found.get(key)
        if cell is None:
            cell = found[key] = Cell(*key, last, 0, 0.0, False, {})
        cell.last, cell.steps, cell.cost = max(cell.last, last), cell.steps + steps, cell.cost + cost
        cell.partial = cell.partial or bool(partial)
        for name, count in orjson.loads(tokens or "{}").items():
            cell.tokens[name] = cell.tokens.get(name, 0) + count * steps
    return [*found.values()]


def joined(some: Iterable[Cell]) -> list[Cell]:
    """The cells, with a new one in place of those that differ only in their steps. Pure."""
    found: dict[tuple[Any, ...], Cell] = {}
    for cell in some:
        key = cell.day, cell.session, cell.model, cell.agent, cell.moved
        if (known := found.get(key)) is not None:
            tokens = dict(known.tokens)
            add_tokens(tokens, cell.tokens)
            steps, cost = known.steps + cell.steps, known.cost + cell.cost
            cell = Cell(*key, cell.last, steps, cost, known.partial or cell.partial, tokens)
        found[key] = cell
    return [*found.values()]


def costs(some: Iterable[Cell], by: By, root_of: Callable[[str], str], project_of: Callable[[str, int], str]) -> Costs:
    """What some cells are together. ``root_of`` returns the root session of a session, and ``project_of`` the directory
    of a root session at a position. Pure."""
    found = Costs(by)
    for cell in some:
        root = root_of(cell.session)
        match by:
            case "project":
                key = project_of(root, cell.last)
            case "session":
                key = root
            case _:
                key = getattr(cell, by)
        found.add(key, root, cell.steps, cell.cost, cell.tokens)
        found.is_partial = found.is_partial or cell.partial
    return found
