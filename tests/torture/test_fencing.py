"""Sidecars that are stopped under load and wake up after another took over.

SIGSTOP, both lock files deleted, the next sidecar starts, SIGCONT. ``TORTURE_FENCINGS`` sets how often.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from streams.stores.directory import LOCK
from tests.streams.sizes import size
from tests.torture.figures import seeded
from tests.torture.sidecars import HANG_S
from tests.torture.test_kills import Torment, judge

FENCINGS = size("FENCINGS", 1)


class Usurped(Torment):
    """Each sidecar is stopped, and continued when the next one serves."""

    moments = ("up", "linked", "acking", "acking", "acking", "acking")

    async def _end(self) -> None:
        old = self.one.leave()
        os.kill(old.pid, signal.SIGSTOP)
        try:
            (self.one.home.store_path / LOCK).unlink()
            self.one.home.lock_path.unlink()
            await self._restart()
            os.kill(old.pid, signal.SIGCONT)  # it may be a zombie
            await asyncio.to_thread(old.wait, HANG_S)
        finally:
            old.kill()
            old.wait()
        before = self.acked
        await self._until(lambda: self.acked > before)
        self.one.kill()


async def test_a_sidecar_that_wakes_up_breaks_nothing(tmp_path: Path) -> None:
    torment = Usurped(tmp_path / "home", seeded("fencing"))
    await torment.run(FENCINGS)
    await judge("fencing", [torment])
