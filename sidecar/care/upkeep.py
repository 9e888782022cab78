"""Background upkeep of the log: snapshots, the search index, migrations, limits, pruning and forgetting.

The recorded data is correct without any of this: a snapshot makes the next start quick,
the index makes a search quick, and an interrupted migration continues later. So a
failure is logged and recording continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from typing import Any, Final

from streams.log.copies import kept_facts
from streams.log.migrate import Migration, Progress, discard_old

from sidecar.care import retaining
from sidecar.care.snapshots import CaptureSnapshot, CatalogSnapshot
from sidecar.components import in_background
from sidecar.config import StoreConfig
from sidecar.read.catalog import Catalog
from streams.errors import StoreUnavailable, StreamError
from streams.log.directory import Backend, SearchIndex
from streams.log.log import Log
from streams.log.prune_plan import PrunePlan, PruneRequest
from streams.retention import Removed
from streams.store import Record
from streams.system.threads import in_thread

log = logging.getLogger("sidecar.care.upkeep")

SNAPSHOT_RECORDS: Final = 2000
"""A new snapshot is written after this many records. Applying that many takes about 20 ms."""

LOOK_SECONDS: Final = 10.0
PRUNE_SECONDS: Final = 300.0
DAY_MS: Final = 24 * 3_600_000
INDEX_RECORDS: Final = 128
"""How many records are indexed at a time; appends run in between."""

INDEX_REST: Final = 9.0
"""How long indexing rests while hooks wait for the log, as a multiple of the time that its last step took."""

INDEX_LAG: Final = 10_000
"""Beyond this many records that it lacks, the index does not rest: a search reads so many itself in about 0.1 s."""


class Upkeep:
    """The upkeep of one sidecar's log, bound to the sidecar's event loop.

    ``is_quiet`` returns true if nothing is on its way to the disk, so that the capture state equals a fold over the
    whole log.
    """

    def __init__(
        self,
        store: Log,
        capture: CaptureSnapshot,
        is_quiet: Callable[[], bool],
        now_ms: Callable[[], int],
        *,
        config: StoreConfig,
    ) -> None:
        self._store, self._capture, self._is_quiet, self._now_ms = store, capture, is_quiet, now_ms
        self._state, self._catalog = capture.state, CatalogSnapshot(store)
        self._config = config
        self.removed: Callable[[], None] = lambda: None
        """Called after records were removed or forgotten."""
        self._files = asyncio.Lock()
        """Held while the log's files are replaced or removed: a migration and a removal wait for each other."""
        self._removing = asyncio.Lock()
        self._next_prune = 0.0
        self.kept_over_limit = 0
        """How many streams over the configured age or size were not pruned, because they are still needed."""
        self._migration: asyncio.Task[None] | None = None
        self._progress: Progress | None = None
        self._failed: str | None = None
        self._failed_code: str | None = None
        self._index: SearchIndex | None = None
        self._grown = asyncio.Event()
        """Set when there may be records to index."""

    async def start(self, stack: AsyncExitStack) -> None:
        """See ``Component``. At the end, migrations stop and a last snapshot is written."""
        stack.push_async_callback(self.keep_last)
        stack.push_async_callback(self.close)
        in_background(stack, self._run())
        in_background(stack, self._watch())
        in_background(stack, self._keep_index())

    async def _watch(self) -> None:
        """Note each commit, for ``_keep_index``, which may be slower and must not make this subscription read back."""
        try:
            async for _ in self._store.subscribe(after=self._store.head, wanted=lambda event: False):
                self._grown.set()
        except (StreamError, OSError) as error:
            log.warning("new records are indexed every %g seconds only: %s", LOOK_SECONDS, error)

    async def _keep_index(self) -> None:
        """Index each commit as soon as it is durable, and before that whatever the index of an older log lacks."""
        while True:
            self._grown.clear()
            try:
                await self._advance_index()
            except (StreamError, OSError) as error:
                log.warning("the search index was not updated, so a search reads more of the log: %s", error)
                await asyncio.sleep(LOOK_SECONDS)
            await self._grown.wait()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._grown.set()  # the log may have migrated to sqlite without growing
            try:
                await self.look()
            except (StreamError, OSError) as error:
                log.warning("upkeep of the log failed, but recording continues: %s", error)

    async def look(self) -> None:
        # Hold the lock, because a snapshot taken during a removal could bring back what is being forgotten.
        async with self._removing:
            await self.keep_snapshot(SNAPSHOT_RECORDS)
            await self._catalog.caught_up()
            await self._catalog.keep(SNAPSHOT_RECORDS)
        if self._is_due():
            self.migrate("sqlite")
        await self._prune_by_itself()

    async def keep_snapshot(self, records: int = 1) -> None:
        """Write a snapshot of the capture state, if the log has grown by ``records`` and is quiet."""
        if self._store.head - self._capture.kept >= records:
            await self._capture.keep(self._is_quiet)

    def recorded(self, records: Sequence[Record]) -> None:
        """Take captured records as soon as they are durable."""
        self._catalog.recorded(records)

    async def keep_last(self) -> None:
        """Write the snapshots before the log is closed, so that the next start and command are quick."""
        try:
            await self.keep_snapshot()
            await self._catalog.keep_last()
        except (StreamError, OSError) as error:
            log.warning("no snapshot was saved, so the next start reads more of the log: %s", error)

    # --- migrating to another backend ---

    def migrate(self, to: Backend) -> dict[str, Any]:
        """Begin to migrate the log, unless a migration is in progress. Returns the same as ``migration``."""
        if self._migration is None or self._migration.done():
            self._failed = self._failed_code = None
            self._progress = Progress(to)
            self._migration = asyncio.create_task(self._migrate(to))
        return self.migration()

    def migration(self) -> dict[str, Any]:
        """The state of the last migration: ``{backend, kept, running, failed, failed_code, progress}``.

        ``progress`` is null if no migration was begun; ``failed`` is a sentence about a failed migration, and
        ``failed_code`` is the code of that error. ``kept`` is ``{backend, head, there}``, or null if no old store is
        kept; ``there`` is false if somebody else deleted the old store.
        """
        return {
            "backend": self._store.backend,
            "kept": kept_facts(self._store.store, self._store.manifest),
            "running": self._migration is not None and not self._migration.done(),
            "failed": self._failed,
            "failed_code": self._failed_code,
            "progress": None if self._progress is None else asdict(self._progress),
        }

    def owes(self) -> bool:
        """True while a migration, prune or forget is running, because the sidecar must not exit then."""
        return self._removing.locked() or (self._migration is not None and not self._migration.done())

    async def discard(self) -> int:
        """Delete the old store that the last migration left behind; return the bytes freed.

        Raises:
            StoreUnavailable: a migration is running, or the log failed verification: nothing was deleted. The same
                error is raised if the disk is full or failed; then the next call deletes the rest.
        """
        async with self._exclusively("deleted"):
            try:
                return await discard_old(self._store.store)
            finally:
                # Read the manifest again in any case: ``discard_old`` has changed it even if the deletion fails.
                self._store.reread_manifest()

    @asynccontextmanager
    async def _exclusively(self, what: str) -> AsyncIterator[None]:
        """Stop migrations, snapshots and the index while files are removed; an open index would keep their space."""
        async with self._removing:
            if self.migration()["running"]:
                raise StoreUnavailable(
                    f"the log in {self._store.store} is migrating to another backend, so nothing was {what}",
                    "try again when `durable-stream status` no longer shows a migration",
                )
            async with self._files:
                await self._close_index()
                yield

    # --- pruning and forgetting ---

    async def prune(self, request: PruneRequest) -> tuple[PrunePlan, Removed | None]:
        """Remove what the request asks for; return the plan, and what was done, or ``None`` if there was nothing to
        remove.

        Raises:
            StreamError: a migration is running, or the disk failed.
        """
        async with self._exclusively("pruned"):
            now = self._now_ms()
            plan = await retaining.plan_prune(self._store, retaining.open_turns(self._state), request, now_ms=now)
            if not plan.cuts:
                return plan, None
            catalog = await self.catalog()
            views = map(catalog.streams.get, plan.offsets)
            sessions = [session for view in views if view is not None for session in view.sessions]
            done = await retaining.prune(self._store, self._state, plan, sessions, self._let_go, now_ms=now)
            self.removed()
        _log_move(done.moved_from)
        log.info("pruned %d records in %d streams, %d bytes", done.records, done.streams, done.bytes)
        return plan, done

    async def forget(self, streams: Sequence[str], sessions: Sequence[str] = ()) -> Removed:
        """Replace payloads by their digests, in all records of these streams and in all records of these sessions.

        Raises:
            Failure: see ``retaining.forget``.
            StreamError: a migration is running, or the disk failed.
        """
        async with self._exclusively("forgotten"):
            elsewhere = await self.streams_beside(streams, sessions)
            done = await retaining.forget(
                self._store, self._state, streams, sessions, elsewhere, self._let_go, now_ms=self._now_ms()
            )
            self.removed()
        _log_move(done.moved_from)
        log.info("forgot the payloads of %d records in %d streams", done.records, done.streams)
        return done

    async def streams_beside(self, streams: Sequence[str], sessions: Sequence[str]) -> set[str]:
        return retaining.streams_beside((await self.catalog()).sessions, streams, sessions)

    async def catalog(self) -> Catalog:
        """The catalog at the head of the log."""
        return await self._catalog.caught_up()

    async def _let_go(self) -> None:
        """Close the snapshots before a removal, which deletes them: they have data of the records to remove."""
        await self._capture.let_go()
        await self._catalog.let_go()

    async def _prune_by_itself(self) -> None:
        """Every ``PRUNE_SECONDS``, prune the log to the configured age and size."""
        request = PruneRequest(
            older_than_ms=round(self._config.max_age_days * DAY_MS) or None,
            max_bytes=self._config.max_bytes or None,
        )
        now = asyncio.get_running_loop().time()
        if not request or now < self._next_prune or self.migration()["running"]:
            return
        self._next_prune = now + PRUNE_SECONDS
        plan, _ = await self.prune(request)
        self.kept_over_limit = len(plan.kept)

    async def close(self) -> None:
        """Stop running work. The next request for a migration continues an unfinished one."""
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
            self._failed_code = error.code if isinstance(error, StreamError) else "disk-error"
            log.error("the migration to %s failed: %s", to, error)
            return
        log.info("the log migrated to %s: %d records, appends held for %.0f ms", to, done.copied, done.held_ms)

    def _is_due(self) -> bool:
        if not self._config.migrate_at_bytes or self._store.backend != "jsonl" or self._failed is not None:
            return False
        sizes = self._store.file_sizes()
        return sizes is not None and sizes["bytes"] >= self._config.migrate_at_bytes

    async def _advance_index(self) -> None:
        if self._store.backend != "sqlite":
            await self._close_index()
            return
        indexed, now = 1, asyncio.get_running_loop().time
        while indexed:
            begun = now()
            async with self._removing:  # a removal closes the index
                if self._store.backend != "sqlite":
                    return  # the log has migrated in the meantime
                if self._index is None:
                    self._index = await in_thread(SearchIndex, self._store.store)
                indexed = await in_thread(self._index.advance, INDEX_RECORDS)
                lag = self._store.head - await in_thread(lambda index: index.position, self._index)
            if lag <= INDEX_LAG and not self._is_quiet():
                await asyncio.sleep(INDEX_REST * (now() - begun))

    async def _close_index(self) -> None:
        index, self._index = self._index, None
        if index is not None:
            await asyncio.to_thread(index.close)


def _log_move(moved_from: str | None) -> None:
    if moved_from is not None:
        log.info("the log moved from %s to sqlite, the only backend that can remove records", moved_from)
