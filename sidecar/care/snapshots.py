"""The snapshot of the capture state. Each save writes what changed since the last one, and what is not in use then
leaves the memory, so neither grows with the number of sessions that ever were.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from bridge.opencode.capture.state import STATE_VERSION, CaptureState
from streams.errors import ForeignStore, StreamError
from streams.log.directory import KeptRows
from streams.log.log import Log
from streams.rows import MemoryRows
from streams.store import NOTHING
from streams.system.threads import in_thread

log = logging.getLogger("sidecar.care.snapshots")

SNAPSHOT: Final = "capture"

IN_MEMORY: Final = 256
"""About how many sessions stay in memory when all is saved. A busier sidecar has more."""

SLOW_TAIL: Final = 20_000
"""If more records than this are applied while a caller waits, a log line says so. Applying this many takes about 0.4
s."""

SAVED_AT_ONCE: Final = 20_000
"""While a long log is read, what it makes is saved each time this many records have passed."""

TOLD: Final = 1_000_000
"""While a long log is read, a log line tells the progress each time this many records have passed."""


class CaptureSnapshot:
    """The capture state, and the rows in which it rests."""

    def __init__(self, store: Log, state: CaptureState, rows: KeptRows | None = None) -> None:
        self._store, self.state, self._rows = store, state, rows
        self._saving = asyncio.Lock()
        self.kept = rows.snapshot.position if rows is not None and rows.snapshot is not None else NOTHING
        """The position of the last snapshot."""

    async def keep(self, is_quiet: Callable[[], bool] = lambda: True) -> None:
        """Write a snapshot, if the state equals a fold over the whole log, as ``is_quiet`` says."""
        async with self._saving:
            if self._rows is None:
                self._rows = await self._store.rows(SNAPSHOT, STATE_VERSION)
            if is_quiet():
                await self._keep(self._rows, self._store.head)

    async def _keep(self, rows: KeptRows, position: int) -> None:
        dumped, changes = self.state.changes()
        resting = self.state.sessions.rows
        if isinstance(resting, MemoryRows):
            changes = {**resting.rows, **changes}
        await in_thread(rows.put, position, dumped, changes)
        self.state.sessions.saved(rows, IN_MEMORY)
        self.kept = position

    async def catch_up(self) -> None:
        """Apply the records after the last snapshot."""
        first, head = self.kept + 1, self._store.head
        if head - self.kept > SLOW_TAIL:
            log.info("reading %d records for the capture state", head - self.kept)
        async for record in self._store.read_all(after=self.kept):
            self.state.apply(record.event)
            passed = record.position + 1 - first
            if passed % SAVED_AT_ONCE == 0 and self._rows is not None:
                await self._keep(self._rows, record.position)
            if passed % TOLD == 0:
                log.info("read %d of %d records for the capture state", passed, head + 1 - first)

    async def let_go(self) -> None:
        """Take everything into memory, because a removal deletes the rows."""
        if self._rows is not None:
            if self.state.sessions.rows is self._rows:  # not after an earlier removal that nothing was saved since
                self.state.sessions.rows = MemoryRows(await in_thread(self._rows.all))
            await in_thread(self._rows.remove)
            self._rows = None
        self.kept = NOTHING


async def restore(store: Log) -> CaptureSnapshot:
    """Return the capture state at the head.

    Raises:
        CorruptLog: a record after the snapshot is damaged.
    """
    try:
        found = await _resumed(store)
        await found.catch_up()
    except ForeignStore as error:
        log.warning("the snapshot of the capture state is damaged, so the whole log is read: %s", error)
        found = await _resumed(store)
        await found.catch_up()
    return found


async def _resumed(store: Log) -> CaptureSnapshot:
    try:
        rows = await store.rows(SNAPSHOT, STATE_VERSION)
    except (StreamError, OSError) as error:
        log.warning("the snapshot of the capture state cannot be opened, so the whole log is read: %s", error)
        return CaptureSnapshot(store, CaptureState())
    if rows.snapshot is None:
        return CaptureSnapshot(store, CaptureState(), rows)
    try:
        return CaptureSnapshot(store, CaptureState.load(rows.snapshot.state, rows), rows)
    except ValueError:  # a snapshot is only a hint
        await in_thread(rows.remove)
        return await _resumed(store)
