"""What the sidecar does for its log beside recording: snapshots, the search index, moving it, pruning, forgetting.

Nothing here is needed for what was recorded to be right: a snapshot makes the
next start quick, the index makes a search quick, and a move that is cut off is
continued later. So a failure is logged and counted, and recording goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bridge.opencode.state import STATE_VERSION, CaptureState
from sidecar import retaining
from sidecar.config import StoreConfig
from streams.errors import StreamError
from streams.log import Log
from streams.migrate import Migration, Progress, discard_kept
from streams.prune_plan import PrunePlan, Wishes
from streams.retention import Forgotten, Pruned
from streams.store import Snapshot
from streams.stores.directory import Backend
from streams.stores.segments import list_segments
from streams.stores.sqlite_search import SearchIndex

log = logging.getLogger("sidecar.upkeep")

SNAPSHOT: Final = "capture"
SNAPSHOT_RECORDS: Final = 2000
"""Records after which a new snapshot is worth its writing; folding so many takes some 20 ms."""

LOOK_SECONDS: Final = 10.0
PRUNE_SECONDS: Final = 300.0
DAY_MS: Final = 24 * 3_600_000
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
        now_ms: Callable[[], int],
        *,
        config: StoreConfig,
    ) -> None:
        self._store, self._state, self._is_quiet, self._now_ms = store, state, is_quiet, now_ms
        self._config = config
        self._removing = asyncio.Lock()
        self._next_prune = 0.0
        self.kept_over_limit = 0
        """Streams that the configured age or size would have pruned and that are still needed."""
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
        await self._prune_by_itself()
        await self._advance_index()

    async def keep_snapshot(self, records: int = 1) -> None:
        """Keep the capture state, if the log grew by so many records since and nothing is under way."""
        if self._store.head - self._kept < records or not self._is_quiet():
            return
        position = self._store.head
        await self._store.put_snapshot(SNAPSHOT, Snapshot(STATE_VERSION, position, self._state.dump()))
        self._kept = position

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

    # Pruning and forgetting

    async def prune(self, wishes: Wishes, *, dry_run: bool) -> tuple[PrunePlan, Pruned | None]:
        """What the wishes come to, and unless it is a dry run what was done.

        Raises:
            StreamError: a migration runs, or the disk failed.
        """
        async with self._removing:
            now = self._now_ms()
            plan = await retaining.plan_prune(self._store, self._state, wishes, now_ms=now)
            if dry_run or not plan.cuts:
                return plan, None
            done = await retaining.prune(self._store, self._state, plan, now_ms=now)
        log.info("pruned %d records in %d streams, %d bytes", done.records, done.streams, done.bytes)
        return plan, done

    async def forget(self, streams: Sequence[str]) -> Forgotten:
        """Replace the payloads in these streams by their digests.

        Raises:
            StreamError: a turn is under way there, a migration runs, or the disk failed.
        """
        async with self._removing:
            await self._close_index()
            done = await retaining.forget(self._store, self._state, streams, now_ms=self._now_ms())
        log.info("forgot the payloads of %d records in %d streams", done.records, done.streams)
        return done

    async def _prune_by_itself(self) -> None:
        """Keep to the configured age and size, looking every ``PRUNE_SECONDS``."""
        wishes = Wishes(
            older_than_ms=round(self._config.max_age_days * DAY_MS) or None,
            max_bytes=self._config.max_bytes or None,
        )
        now = asyncio.get_running_loop().time()
        if not wishes or now < self._next_prune or self.migration()["running"]:
            return
        self._next_prune = now + PRUNE_SECONDS
        plan, _ = await self.prune(wishes, dry_run=False)
        self.kept_over_limit = len(plan.kept)

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
            done = await Migration(self._store, to, report).run()
        except (StreamError, OSError) as error:
            self._failed = str(error)
            log.error("the log was not moved to %s: %s", to, error)
            return
        log.info("the log moved to %s: %d records, appends held for %.0f ms", to, done.copied, done.held_ms)

    def _is_due(self) -> bool:
        if not self._config.migrate_at_bytes or self._store.backend != "jsonl" or self._failed is not None:
            return False
        return log_bytes(self._store.store) >= self._config.migrate_at_bytes

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


def log_bytes(store: Path) -> int:
    """Bytes of a jsonl log."""
    return sum(segment.path.stat().st_size for segment in list_segments(store / "log"))
