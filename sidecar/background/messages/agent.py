"""The built-in agent ``messages``: what waits until a session has heard it. Pure.

The agent's inputs are commands (``signal``, ``signal.await``, ``message.queue``, ``message.return``, ``host.ready``,
``tick``), the results of its effects, the ends of background work, and what capture records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sidecar.agents.agent import Output
from sidecar.background.intents.works import Asker, user
from sidecar.background.messages import deliver
from sidecar.background.messages.message import State
from sidecar.background.own_agent import OwnAgent
from streams.event import StreamEvent

NAME: Final = "messages"


class MessageAgent(OwnAgent[State]):
    """An ``Agent``. ``asker`` says who works in a session."""

    events: Sequence[str] = (
        "turn.ended",
        "execution.step",
        "intent.completed",
        "intent.failed",
        "intent.cancelled",
    )

    def __init__(self, asker: Callable[[str], Asker] = user) -> None:
        self._asker = asker
        super().__init__(NAME, State)

    def deadline(self) -> int | None:
        return min(deliver.deadlines(self.data), default=None)

    def receive(self, event: StreamEvent) -> list[Output]:
        return self.data.in_their_chains(event, self._decide(event))

    def follow(self, event: StreamEvent, outputs: Sequence[Output]) -> list[Output]:
        return self.data.in_their_chains(event, deliver.follow(self.data, outputs, event.ts))

    def _decide(self, event: StreamEvent) -> list[Output]:
        given, data = event.payload, self.data
        match event.type:
            case "signal":
                return data.signals.comes(event)
            case "signal.await":
                return data.signals.awaits(event)
            case "message.queue":
                return [] if given["message"] in data.messages else [Output("message.queued", given)]
            case "message.return":
                return deliver.returned(data, event)
            case "host.ready":
                return deliver.deliver_to(data, given["sessions"])
            case "tick":
                return deliver.tick(data, given["now"])
            case "effect.completed" | "effect.failed" if given.get("kind") == deliver.WAKE:
                return deliver.woken(data, event)
            case "execution.step":
                return deliver.kept(data, event)
            case "turn.ended":
                return deliver.over(data, event, lambda session: not self._asker(session).work)
            case "intent.completed" | "intent.failed" | "intent.cancelled":
                return [*deliver.inherited(data, given), *deliver.ended(given)]
        return []

    def apply(self, event: StreamEvent) -> None:
        self.data.fold(event)
