"""What the runtime counts. The composition root decides how the counts are exported."""

from __future__ import annotations

from typing import Protocol


class Metrics(Protocol):
    """Counts what happened. Every method returns at once and never raises an error.

    ``agent`` is an agent's configured id, ``kind`` is an effect's kind, and ``seconds`` is a duration on a monotonic
    clock.
    """

    def received(self, agent: str, count: int = 1) -> None:
        """``count`` commands or events were pulled for this agent. Duplicates are counted too."""

    def processed(self, agent: str, seconds: float) -> None:
        """The input was handled or refused; ``seconds`` is the time from its arrival at the agent, before any wait for
        other inputs, until its outcome was durable."""

    def emitted(self, agent: str, count: int) -> None:
        """The agent emitted ``count`` events, and they are now durable."""

    def duplicate(self, agent: str) -> None:
        """The input's idempotency key was known, so the agent was not called."""

    def failed(self, agent: str) -> None:
        """The agent raised an error, or what it returned was refused.

        The input is delivered again, or becomes a dead letter.
        """

    def dead(self, agent: str) -> None:
        """The input will not be tried again, and was recorded as a dead letter."""

    def retried(self, kind: str) -> None:
        """An effect is being retried after a failure."""

    def committed(self, seconds: float, events: int) -> None:
        """A batch of ``events`` became durable, ``seconds`` after it was handed to the log."""


class NoMetrics:
    """Counts nothing."""

    def ignore(self, *_: object, **__: object) -> None:
        """Take any count."""

    received = processed = emitted = duplicate = failed = dead = retried = committed = ignore
