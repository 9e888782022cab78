"""What the orchestrator's agents have in common: their state is a dataclass, and they are always ready."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from sidecar.agents.agent import READY, HealthStatus

S = TypeVar("S")


class OwnAgent(Generic[S]):
    """The parts of an ``Agent`` that are the same for all of them.

    Args:
        name: the agent's name, unique in the home.
        kind: the dataclass of its state; a new agent's state has only defaults.
    """

    events: Sequence[str] = ()
    has_turns = False
    begins_anywhere = True
    """See ``Agent``. True, because these agents react only to what they began themselves."""

    def __init__(self, name: str, kind: type[S]) -> None:
        self.name = name
        self.data: S = kind()
        self._kind: Any = kind

    def health(self) -> HealthStatus:
        return READY

    def state(self) -> dict[str, Any]:
        dumped: dict[str, Any] = _adapter(self._kind).dump_python(self.data, mode="json")
        return dumped

    def load(self, state: dict[str, Any] | None) -> None:
        self.data = self._kind() if state is None else _adapter(self._kind).validate_python(state)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Built when first used: a sidecar starts sooner without it."""
    return TypeAdapter(kind)
