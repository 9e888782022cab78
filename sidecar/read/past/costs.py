"""What sessions cost, by day, project, model, agent or session. Pure.

Each step counts once: in the session at the root of its tree, with the work that this session started.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from bridge.opencode.capture.tokens import add_tokens
from sidecar.read.fields import as_text, model_name
from sidecar.read.sums import add_step
from sidecar.read.wording import local_time
from streams.store import Record

By = Literal["day", "project", "model", "agent", "session"]
WAYS: Final = get_args(By)
TYPES: Final = ("execution.step",)
"""The types of records that the fold needs."""


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
        return self.tokens.get("total") or sum(self.tokens.values())

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
    """A fold over records in position order.

    ``root_of`` returns the root session of a session, and ``project_of`` the directory of a root session
    at a position.
    """

    def __init__(self, by: By, root_of: Callable[[str], str], project_of: Callable[[str, int], str]) -> None:
        self._by, self._root_of, self._project_of = by, root_of, project_of
        self._sums: dict[str, Sum] = {}
        self.is_partial = False
        """Whether a step of OpenCode 2 is in the sums, which has no steps for titles and compactions."""

    def apply(self, record: Record) -> None:
        """Apply one record; records of other types change nothing."""
        event, payload = record.event, record.event.payload
        if event.type not in TYPES or payload.get("kind") != "inference":
            return
        self.is_partial = self.is_partial or event.metadata.get("host") == "opencode2"
        root = self._root_of(as_text(payload.get("session")) or event.stream_id)
        key = self._key(record, payload, root)
        known = self._sums.get(key)
        if known is None:
            known = self._sums[key] = Sum(key, 0.0, 0, {}, set())
        tokens: dict[str, int | float] = {}
        add_tokens(tokens, payload.get("tokens"))
        if tokens:
            tokens.setdefault("total", sum(tokens.values()))  # OpenCode 2 names none
        add_step(known, {**payload, "tokens": tokens})
        known.roots.add(root)

    def _key(self, record: Record, payload: dict[str, Any], root: str) -> str:
        match self._by:
            case "day":
                return local_time(record.event.ts, "%Y-%m-%d")
            case "project":
                return self._project_of(root, record.position)
            case "model":
                return model_name(payload.get("model"))
            case "agent":
                return record.event.actor
            case "session":
                return root

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
