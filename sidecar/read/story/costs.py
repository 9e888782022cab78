"""What sessions cost, by day, project, model, agent or session.

Each step counts once: in the session at the root of its tree, with the work that this session started.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import orjson

from bridge.opencode.capture.tokens import add_tokens, total_of
from sidecar.read.story.reading import Snapshot

By = Literal["day", "project", "model", "agent", "session"]
WAYS: Final = get_args(By)

_KEYS: Final = {
    "day": "strftime('%Y-%m-%d', ts / 1000, 'unixepoch', 'localtime')",
    "project": "(SELECT count(*) FROM json_each(:moves) WHERE value <= n)",
    "model": "model",
    "agent": "agent",
    "session": "0",
}
_SUMS: Final = "max(n), count(*), sum(cost), max(partial)"
_WANTED: Final = """FROM step WHERE kind = 'inference' AND (
    (ts >= ifnull(:since, ts) AND ts <= ifnull(:until - 1, ts) AND n NOT IN (SELECT value FROM json_each(:doubted)))
    OR n IN (SELECT value FROM json_each(:believed)))"""


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


def costs(
    story: Snapshot,
    by: By,
    when: When,
    root_of: Callable[[str], str],
    project_of: Callable[[str, int], str],
    moves: Callable[[str], Collection[int]],
) -> Costs:
    """What the steps of some time cost.

    ``root_of`` returns the root session of a session, ``project_of`` the directory of a root session at a position,
    and ``moves`` the positions at which that changed.
    """
    names = dict(story.sql("SELECT key, name FROM session WHERE key IN (SELECT session FROM step)"))
    roots = {key: root_of(name) for key, name in names.items()}
    given: dict[str, Any] = {"since": when.since, "until": when.until}
    given |= {
        name: orjson.dumps([*each]).decode() for name, each in (("doubted", when.doubted), ("believed", when.believed))
    }
    given["moves"] = orjson.dumps(sorted({n for root in set(roots.values()) for n in moves(root)})).decode()
    tokens: dict[tuple[Any, int], dict[str, int | float]] = {}
    used = _WANTED.replace("FROM step", "FROM step, json_each(step.tokens) AS used")
    for key, session, name, count in story.sql(
        f"SELECT {_KEYS[by]}, session, used.key, sum(used.value) {used} GROUP BY 1, 2, 3", **given
    ):
        tokens.setdefault((key, session), {})[name] = count
    found = Costs(by)
    for key, session, last, steps, cost, partial in story.sql(
        f"SELECT {_KEYS[by]}, session, {_SUMS} {_WANTED} GROUP BY 1, 2 ORDER BY min(n)", **given
    ):
        root = roots[session]
        named = {"project": project_of(root, last), "session": root}.get(by, key)
        found.add(named, root, steps, cost, tokens.get((key, session), {}))
        found.is_partial = found.is_partial or bool(partial)
    return found
