"""The snapshot of the capture state. Each save writes what changed since the last one, and what is not in use then
leaves the memory, so neither grows with the number of sessions that ever were.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Final

from bridge.opencode.capture.state import STATE_VERSION, CaptureState
from sidecar.care.resting_sessions import CAPTURE, RestingRows, delete, write
from streams.derived import Write
from streams.errors import ForeignStore, StreamError
from streams.log.log import Log
from streams.store import NOTHING, Snapshot

log = logging.getLogger("sidecar.care.snapshots")

IN_MEMORY: Final = 256
"""About how many sessions stay in memory when all is saved. A busier sidecar has more."""

SLOW_TAIL: Final = 20_000
"""If more records than this are applied while a caller waits, a log line says so. Applying this many takes about 0.4
s."""

SAVED_AT_ONCE: Final = 20_000
"""While a long log is read, what it makes is saved each time this many records have passed."""

PROGRESS_EVERY: Final = 1_000_000
"""While a long log is read, a log line tells the progress each time this many records have passed."""


class CaptureSnapshot:
    """The capture state, and saving it. ``saved`` is the position of its last snapshot; ``NOTHING`` without one."""

    def __init__(self, store: Log, state: CaptureState, saved: int = NOTHING) -> None:
        self._store, self.state, self.saved = store, state, saved
        self._rows = RestingRows(store)
        self._is_saving = False

    def save(self, is_quiet: Callable[[], bool] = lambda: True) -> None:
        """Have a snapshot written, if the state equals a fold over the whole log, as ``is_quiet`` says. The log writes
        it soon; ``write_hints`` of the log waits for that."""
        if not self._is_saving and is_quiet():
            self._save(self._store.head)

    def _save(self, position: int) -> None:
        dumped, changes = self.state.changes()
        is_new, loop = self.saved == NOTHING, asyncio.get_running_loop()

        def written() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._saved, position)

        self._is_saving = True
        change = partial(write, changes=changes, is_new=is_new)
        self._store.save(CAPTURE, Snapshot(STATE_VERSION, position, dumped), change, is_new=is_new, written=written)

    def _saved(self, position: int) -> None:
        self.state.sessions.saved(self._rows, IN_MEMORY)
        self.saved, self._is_saving = position, False

    async def catch_up(self) -> None:
        """Apply the records after the last snapshot."""
        first, head = self.saved + 1, self._store.head
        if head - self.saved > SLOW_TAIL:
            log.info("reading %d records for the capture state", head - self.saved)
        async for record in self._store.read_all(after=self.saved):
            self.state.apply(record.event)
            passed = record.position + 1 - first
            if passed % SAVED_AT_ONCE == 0 and not self._is_saving:
                self._save(record.position)
                try:
                    await self._store.write_hints()
                except (StreamError, OSError) as error:
                    log.warning("the capture state is not saved while the log is read: %s", error)
            if passed % PROGRESS_EVERY == 0:
                log.info("read %d of %d records for the capture state", passed, head + 1 - first)

    async def drop(self, streams: Collection[str], sessions: Collection[str] = ()) -> Write | None:
        """Drop sessions from the state before their records are removed; see ``CaptureState.drop``. Return what deletes
        their rows, for the transaction that notes the removal. No snapshot may be saved until then.

        Raises:
            StreamError, OSError: the database cannot be written; nothing was dropped.
        """
        await self._store.write_hints()
        gone = self.state.drop(streams, sessions)
        return partial(delete, sessions=gone) if self.saved != NOTHING else None


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
        found = CaptureSnapshot(store, CaptureState())
        await found.catch_up()
    return found


async def _resumed(store: Log) -> CaptureSnapshot:
    snapshot = await store.saved(CAPTURE, STATE_VERSION)
    if snapshot is not None:
        with suppress(ValueError):  # a snapshot is only a hint
            return CaptureSnapshot(store, CaptureState.load(snapshot.state, RestingRows(store)), snapshot.position)
    return CaptureSnapshot(store, CaptureState())
