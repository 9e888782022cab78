"""Which call started a session, also if that became known only after the call, which did not wait for it. Pure."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

from sidecar.read.fields import as_text
from sidecar.read.past.journal import Map

T = TypeVar("T")

_STARTING: Final = frozenset({"task", "subagent", "agent_spawn"})
"""The tools whose calls start sessions: of OpenCode 1, of OpenCode 2, and ours."""


def starts_session(step: dict[str, Any]) -> bool:
    """True for the payload of a step whose call may have started a session."""
    return bool(as_text(step.get("child"))) or as_text(step.get("tool")) in _STARTING


class Started(Generic[T]):
    """What stands for each call of a session that has ended and may have started another session."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], tuple[T, str]] = Map()

    def add(self, step: dict[str, Any], call: T) -> None:
        """Take a call and the payload of its step."""
        turn, name, child = (as_text(step.get(each)) for each in ("turn", "call", "child"))
        self._calls[turn, name] = call, child
        if child:
            self._calls[child, name] = self._calls[child, ""] = call, child

    def find(self, spawned: dict[str, Any]) -> T | None:
        """The call that an ``agent.spawned`` names, whose turn may be a later one, and whose call may be unknown."""
        turn, name, child = (as_text(spawned.get(each)) for each in ("turn", "call", "child"))
        for key in ((turn, name), (child, name)):
            call, known = self._calls.get(key, (None, None))
            if known in ("", child):
                return call
        return None
