"""The snapshots of the capture state and of the catalog. Each save writes what changed since the last one, and what is
not in use then leaves the memory, so neither grows with the number of sessions that ever were.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from bridge.opencode.capture.state import STATE_VERSION, CaptureState
from sidecar.read.catalog import CATALOG, CATALOG_VERSION
from sidecar.read.kept_catalog import KeptCatalog
from streams.errors import ForeignStore, StreamError
from streams.log.directory import KeptRows
from streams.log.log import Log
from streams.rows import MemoryRows
from streams.store import NOTHING, Record
from streams.system.threads import in_thread

log = logging.getLogger("sidecar.care.snapshots")

SNAPSHOT: Final = "capture"

IN_MEMORY: Final = 256
"""About how many sessions, and how many streams, stay in memory when all is saved. A busier sidecar has more."""

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


class CatalogSnapshot:
    """The catalog, and the rows in which it rests."""

    def __init__(self, store: Log) -> None:
        self._store = store
        self._saving = asyncio.Lock()
        self._catalog: KeptCatalog | None = None
        self._rows: KeptRows | None = None
        self._kept = NOTHING

    def recorded(self, records: Sequence[Record]) -> None:
        """Apply captured records to the catalog as soon as they are durable, because reading them later costs several
        times as much.

        A record that does not follow the catalog's last one is left to ``caught_up``, and so are all after it.
        """
        catalog = self._catalog
        if catalog is None:
            return
        try:
            for record in records:
                if record.position == catalog.position + 1:
                    catalog.apply(record)
        except ForeignStore as error:
            self._begin_anew(error)

    async def caught_up(self) -> KeptCatalog:
        """The catalog at the head."""
        try:
            return await self._caught_up()
        except ForeignStore as error:
            self._begin_anew(error)
            return await self._caught_up()

    def _begin_anew(self, error: ForeignStore) -> None:
        log.warning("the catalog is damaged, so it is made anew: %s", error)
        if self._rows is not None:
            self._rows.remove()
        self._catalog, self._rows, self._kept = None, None, NOTHING

    async def _caught_up(self) -> KeptCatalog:
        catalog = await self._resumed()
        async for record in self._store.read_all(after=catalog.position):
            catalog.apply(record)  # changes nothing if ``recorded`` was quicker
            if catalog.position - self._kept >= SAVED_AT_ONCE:
                await self._keep()
        return catalog

    async def keep(self, records: int) -> None:
        """Save the catalog, if the log has grown by ``records`` since the last save."""
        catalog = self._catalog
        if catalog is not None and catalog.position - self._kept >= records:
            await self._keep()

    async def keep_last(self) -> None:
        """Save the catalog, but only as far as it has been built if building it would delay the exit."""
        catalog = await self._resumed()
        if self._store.head - catalog.position <= SLOW_TAIL:
            await self.caught_up()
        await self.keep(1)

    async def let_go(self) -> None:
        """Begin anew, because a removal deletes the rows, and what they were made from."""
        if self._rows is not None:
            await in_thread(self._rows.remove)
        self._catalog, self._rows, self._kept = None, None, NOTHING

    async def _resumed(self) -> KeptCatalog:
        if self._catalog is None:
            rows = self._rows = await self._store.rows(CATALOG, CATALOG_VERSION)
            try:
                snapshot = rows.snapshot
                catalog = KeptCatalog() if snapshot is None else KeptCatalog.resumed(snapshot.state, rows)
            except ValueError:  # a snapshot is only a hint
                await self.let_go()
                return await self._resumed()
            self._catalog, self._kept = catalog, catalog.position
        return self._catalog

    async def _keep(self) -> None:
        async with self._saving:
            catalog, rows = self._catalog, self._rows
            if catalog is None or rows is None:
                return
            position = catalog.position
            state, changes = catalog.changes()
            await in_thread(rows.put, position, state, changes)
            catalog.saved(rows, IN_MEMORY)
            self._kept = position
            await self._store.advance(CATALOG, position)
