"""How many times an effect is tried, how long to wait between attempts, and which effects count as the same. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal

from streams.hashing import canonical
from streams.system.retry import Retry

EffectClass = Literal["safe", "idempotent", "unsafe"]
"""What a second execution does. ``safe``: nothing new. ``idempotent``: nothing new, if the receiver honours the key.
``unsafe``: the effect happens again."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One requested action: ``kind`` names the kind that executes it, ``args`` are JSON values.

    ``run`` is the chain of work that includes the effect; ``agent`` asked for the effect, in its step ``node``.
    ``visit`` counts from 1 how many times the agent has asked for the same effect at the same node in this run, so a
    loop that repeats a call gets a new result.
    """

    kind: str
    args: dict[str, Any] = field(repr=False)
    run: str
    node: str = ""
    visit: int = 1
    agent: str = ""

    @property
    def base(self) -> str:
        """The digest of everything except the visit; repeated calls have equal digests."""
        return sha256(canonical([self.run, self.agent, self.node, self.kind, self.args])).hexdigest()[:32]


EFFECTS: Final = Retry(1.0, 300.0, jitter=0.2)


@dataclass(frozen=True, slots=True)
class EffectPolicy:
    """Decides how effects are tried. ``[worker] policy`` can name another policy, with the same methods."""

    attempts: int = 5
    retry: Retry = EFFECTS
    deadline: float = 60.0

    def max_attempts(self, effect: Effect) -> int:
        """Maximum number of attempts, including the first and any before a crash; at least 1."""
        return self.attempts

    def backoff_seconds(self, *, effect: Effect, attempt: int) -> float:
        """Seconds between the failed ``attempt`` (counted from 1) and the next attempt."""
        return self.retry.pause(attempt, f"{effect.base}:{effect.visit}")

    def idempotency_key(self, *, run: str, node: str, effect: Effect) -> str:
        """The key under which a result is stored. If a key has a result, the effect is not executed again."""
        return f"{effect.base}:{effect.visit}"

    def deadline_seconds(self, effect: Effect) -> float:
        """How many seconds one attempt may take."""
        return self.deadline


DEFAULT_POLICY: Final = EffectPolicy()
