"""The progress of a play, and the speed at which it plays the recording."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """The progress of a play. ``relinked`` counts lost links that were reopened."""

    total: int
    acked: int = 0
    relinked: int = 0


@dataclass(frozen=True, slots=True)
class Pace:
    """``speed`` multiplies the recorded pace; ``None`` means as fast as possible. ``note`` is called on progress."""

    speed: float | None
    note: Callable[[], None]

    async def keep(self, gap_ms: float) -> None:
        """Wait for the time that passed between two lines of the recording."""
        if self.speed is not None:
            await asyncio.sleep(max(gap_ms, 0) / 1000 / self.speed)
