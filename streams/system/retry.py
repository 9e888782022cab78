"""How long to wait before something that failed is tried again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class Retry:
    """Wait ``first_s`` seconds after a failure, twice as long after each further one, and at most ``longest_s``.

    ``attempts`` is how often to try in all; ``None``: until it works. ``jitter`` is the largest share that is added to
    a wait, so that what failed together is not tried again together.
    """

    first_s: float
    longest_s: float
    attempts: int | None = None
    jitter: float = 0.0

    def pause(self, failures: int, seed: str = "") -> float:
        """Seconds to wait after so many failures in a row. ``seed`` determines the jitter."""
        pause = min(self.first_s * 2.0 ** min(max(failures - 1, 0), 60), self.longest_s)
        drawn = sha256(f"{seed}:{failures}".encode()).digest()[0] / 255 if self.jitter else 0.0
        return pause * (1 + self.jitter * drawn)

    def is_last(self, attempt: int) -> bool:
        """Whether there is no further attempt after this one, counted from 1."""
        return self.attempts is not None and attempt >= self.attempts
