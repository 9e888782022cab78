"""What the sidecar does for its log beside recording: snapshots, the search index, compressing, moving to another
backend.

Nothing here is needed for what was recorded to be right: a snapshot makes the
next start quick, the index makes a search quick, and a move that is cut off is
continued later. So a failure is logged and counted, and recording goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from bridge.opencode.state import STATE_VERSION, CaptureState
from streams.errors import StreamError
from streams.log import Log
from streams.migrate import Migration, Progress, discard_kept
from streams.store import Snapshot
from streams.stores.directory import Backend
from streams.stores.sqlite_search import SearchIndex

log = logging.getLogger("sidecar.upkeep")

SNAPSHOT: Final = "capture"
SNAPSHOT_RECORDS: Final = 2000
"""Records after which a new snapshot is worth its writing; folding so many takes some 20 ms."""

LOOK_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 600.0
"""How long a segment that could not be compressed is left alone."""

INDEX_RECORDS: Final = 128
"""Records indexed at a time, between which appends have their turn."""


async def restore(store: Log) -> CaptureState:
    """The capture state: the last snapshot, and what was recorded after it.

    Raises:
        CorruptLog: a record after the snapshot is damaged.
    """
    state, after = CaptureState(), -1
    snapshot = await store.snapshot(SNAPSHOT, STATE_VERSION)
    if snapshot is not None:
        try:
            state, after = CaptureState.load(snapshot.state), snapshot.position
        except ValueError:
            log.warning("the snapshot of the capture state cannot be read; the whole log is read instead")
    async for record in store.read_all(after=after):
        state.apply(record.event)
    return state


class Upkeep:
    """One for the sidecar; belongs to its event loop.

    ``is_quiet`` says whether ``state`` is what a fold over the log to its head gives:
    nothing is on its way to the disk.
    """

    def __init__(
        self,
        store: Log,
        state: CaptureState,
        is_quiet: Callable[[], bool],
        *,
        migrate_at_bytes: int,
        compress: bool = True,
    ) -> None:
        self._store, self._state, self._is_quiet = store, state, is_quiet
        self._migrate_at_bytes, self._compresses = migrate_at_bytes, compress
        self._files = asyncio.Lock()
        """Held by what rewrites or leaves the files of the log: a move and a compression wait for each other."""
        self._compress_after = 0.0
        self.compressed = 0
        """How many segments were compressed in the life of this object."""
        self._kept = store.head
        self._migration: asyncio.Task[None] | None = None
        self._progress: Progress | None = None
        self._failed: str | None = None
        self._index: SearchIndex | None = None

    async def run(self) -> None:
        """Look after the log from time to time; ends by being cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except (StreamError, OSError) as error:
                log.warning("upkeep of the log failed, recording goes on: %s", error)

    async def look(self) -> None:
        """Do what is due now."""
        await self.keep_snapshot(SNAPSHOT_RECORDS)
        if self._is_due():
            self.migrate("sqlite")
        await self._advance_index()
        await self._compress()

    async def keep_snapshot(self, records: int = 1) -> None:
        """Keep the capture state, if the log grew by so many records since and nothing is under way."""
        if self._store.head - self._kept < records or not self._is_quiet():
            return
        position = self._store.head
        await self._store.put_snapshot(SNAPSHOT, Snapshot(STATE_VERSION, position, self._state.dump()))
        self._kept = position

    # Compressing

    def segments(self) -> dict[str, Any] | None:
        """The files of a jsonl log: ``{files, compressed, bytes, disk_bytes}``; null with sqlite.

        ``bytes`` is what the lines take when they are not compressed.
        """
        sizes = self._store.file_sizes()
        return None if sizes is None else asdict(sizes)

    async def _compress(self) -> None:
        """Compress one segment, if nothing else is to be done. After a failure it waits ten minutes."""
        now = asyncio.get_running_loop().time()
        if not self._compresses or not self._is_quiet() or self._files.locked() or now < self._compress_after:
            return
        async with self._files:
            try:
                done = await self._store.compress()
            except StreamError:
                self._compress_after = now + RETRY_SECONDS
                raise
        if done is not None:
            self.compressed += 1
            log.info("compressed %s: %d bytes are %d", done.segment.path.name, done.bytes, done.disk_bytes)

    # Moving to another backend

    def migrate(self, to: Backend) -> dict[str, Any]:
        """Begin to move the log, unless a move is under way; its progress, as ``migration`` gives it."""
        if self._migration is None or self._migration.done():
            self._failed = None
            self._progress = Progress(to)
            self._migration = asyncio.create_task(self._migrate(to))
        return self.migration()

    def migration(self) -> dict[str, Any]:
        """The last move: ``{backend, kept, running, failed, progress}``; ``progress`` is null where none was begun."""
        kept = self._store.manifest.kept
        return {
            "backend": self._store.backend,
            "kept": None if kept is None else {"backend": kept.backend, "head": kept.head},
            "running": self._migration is not None and not self._migration.done(),
            "failed": self._failed,
            "progress": None if self._progress is None else asdict(self._progress),
        }

    async def discard(self) -> int:
        """Delete the store that the last move left behind; returns the bytes freed."""
        freed = await asyncio.to_thread(discard_kept, self._store.store)
        self._store.reread_manifest()
        return freed

    async def close(self) -> None:
        """Stop what runs; a move is continued at the next start that asks for it."""
        if self._migration is not None:
            self._migration.cancel()
            await asyncio.wait([self._migration])
        await self._close_index()

    async def _migrate(self, to: Backend) -> None:
        def report(progress: Progress) -> None:
            self._progress = progress

        try:
            async with self._files:
                done = await Migration(self._store, to, report).run()
        except (StreamError, OSError) as error:
            self._failed = str(error)
            log.error("the log was not moved to %s: %s", to, error)
            return
        log.info("the log moved to %s: %d records, appends held for %.0f ms", to, done.copied, done.held_ms)

    def _is_due(self) -> bool:
        if not self._migrate_at_bytes or self._store.backend != "jsonl" or self._failed is not None:
            return False
        sizes = self._store.file_sizes()
        return sizes is not None and sizes.bytes >= self._migrate_at_bytes

    async def _advance_index(self) -> None:
        if self._store.backend != "sqlite":
            await self._close_index()
            return
        if self._index is None:
            self._index = await asyncio.to_thread(SearchIndex, self._store.store)
        indexed = 1
        while indexed and self._is_quiet():
            indexed = await asyncio.to_thread(self._index.advance, INDEX_RECORDS)

    async def _close_index(self) -> None:
        index, self._index = self._index, None
        if index is not None:
            await asyncio.to_thread(index.close)
