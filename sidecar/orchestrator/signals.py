"""The built-in agent ``signals``: signals that a person or a script raises by name, for ``wait_for``. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter

from sidecar.runtime.agent import READY, HealthStatus, Output
from streams.event import StreamEvent

NAME: Final = "signals"
KEPT: Final = 500
"""How many signals are remembered, the latest of each name; the log has them all."""


@dataclass(slots=True)
class Signal:
    """The latest signal of a name."""

    name: str
    payload: Any
    raised: int
    count: int = 1


@dataclass(slots=True)
class State:
    """Everything that the agent remembers."""

    signals: dict[str, Signal] = field(default_factory=dict)


_STATE: Final = TypeAdapter(State)


class SignalAgent:
    """An ``Agent``."""

    def __init__(self) -> None:
        self.data = State()

    @property
    def name(self) -> str:
        """See ``Agent``."""
        return NAME

    @property
    def events(self) -> tuple[str, ...]:
        """See ``Agent``: only commands."""
        return ()

    @property
    def begins_anywhere(self) -> bool:
        """See ``Agent``."""
        return True

    def health(self) -> HealthStatus:
        """See ``Agent``."""
        return READY

    def state(self) -> dict[str, Any]:
        """See ``Agent``."""
        dumped: dict[str, Any] = _STATE.dump_python(self.data, mode="json")
        return dumped

    def load(self, state: dict[str, Any] | None) -> None:
        """See ``Agent``."""
        self.data = State() if state is None else _STATE.validate_python(state)

    def receive(self, event: StreamEvent) -> list[Output]:
        """See ``Agent``."""
        if event.type != "signal":
            return []
        return [Output("signal.raised", {**event.payload, "ts": event.ts})]

    def apply(self, event: StreamEvent) -> None:
        """See ``Agent``."""
        if event.type != "signal.raised":
            return
        given = event.payload
        before = self.data.signals.pop(given["name"], None)
        count = before.count + 1 if before is not None else 1
        self.data.signals[given["name"]] = Signal(given["name"], given.get("payload"), given["ts"], count)
        if len(self.data.signals) > KEPT:
            del self.data.signals[next(iter(self.data.signals))]
