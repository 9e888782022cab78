"""Watches for dead OpenCode processes: records their spools, then ends their turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from sidecar.components import in_background
from sidecar.record.ingest import Ingest
from sidecar.record.spools import boots, take_left, take_marks

log = logging.getLogger("sidecar")

SPOOL_SCAN_SECONDS: Final = 15.0
"""How often the sidecar looks for spools of dead processes; it also looks when a link closes."""

DEATH_SCAN_SECONDS: Final = 1.0
"""How often the sidecar checks the processes of open turns that have no link, because such a process may have just
died."""


class SpoolWatch:
    """A component that looks for dead OpenCode processes at start-up, after each closed link, and periodically."""

    def __init__(self, directory: Path, ingest: Ingest, announce: Callable[[str], str] = lambda service: "") -> None:
        self._directory, self._ingest, self._announce = directory, ingest, announce
        self._scan = asyncio.Event()
        self._taking = asyncio.Lock()
        self._is_uncertain = False

    async def start(self, stack: AsyncExitStack) -> None:
        in_background(stack, self._watch())

    def owes(self) -> bool:
        return self._taking.locked()

    def wake(self) -> None:
        self._scan.set()

    async def take(self) -> int:
        """Record the spools that dead processes left behind, then end the turns of these processes; return the number
        of recorded items."""
        async with self._taking:
            taken = await take_left(self._directory, self._ingest, self._announce)
            await take_marks(self._directory, self._ingest)
            unlinked = self._ingest.dead()
            # Look for spools only after finding the dead processes, which can no longer write spools.
            spooled = await asyncio.to_thread(boots, self._directory) if unlinked else set()
            over = {boot for boot, dead in unlinked.items() if dead and boot not in spooled}
            over = {boot for boot in over if not self._ingest.holds(boot)}
            self._is_uncertain = over != set(unlinked)
            if over:
                await self._ingest.end_turns(over)
        if taken:
            log.info("recorded %d items from spools", taken)
        return taken

    async def _watch(self) -> None:
        while True:
            self._scan.clear()
            await self.take()
            try:
                async with asyncio.timeout(DEATH_SCAN_SECONDS if self._is_uncertain else SPOOL_SCAN_SECONDS):
                    await self._scan.wait()
            except TimeoutError:
                continue
