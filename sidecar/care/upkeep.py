"""Background upkeep of the log: a snapshot, the search index, limits, pruning and forgetting.

The recorded data is correct without any of this: a snapshot makes the next start quick, and the index makes a search
quick. So a failure is logged and recording continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from sidecar.care import removal
from sidecar.care.snapshots import CaptureSnapshot
from sidecar.components import in_background
from sidecar.config import StoreConfig
from sidecar.failure import Failure
from sidecar.read.find_by_id import ask_catalog
from sidecar.read.story.catalog import Catalog
from streams.errors import StreamError
from streams.log.directory import SearchIndex
from streams.log.log import Log
from streams.log.prune_plan import PrunePlan, PruneRequest
from streams.log.reader import LogReader
from streams.retention import Removed
from streams.system.threads import in_thread

log = logging.getLogger("sidecar.care.upkeep")

Result = TypeVar("Result")

SNAPSHOT_RECORDS: Final = 2000
"""A new snapshot is written after this many records. Applying that many takes about 20 ms."""

LOOK_SECONDS: Final = 10.0
PRUNE_SECONDS: Final = 300.0
DAY_MS: Final = 24 * 3_600_000
INDEX_RECORDS: Final = 128
"""How many records are indexed at a time; appends run in between."""

INDEX_REST: Final = 9.0
"""How long indexing rests while hooks wait for the log, as a multiple of the time that its last step took."""

LONGEST_REST: Final = 1.0
"""How many seconds it rests at most: on a busy machine, a step may take long without work."""

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
        removed: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._capture, self._is_quiet, self._now_ms = store, capture, is_quiet, now_ms
        self._state = capture.state
        self._config, self._removed = config, removed
        self._removing = asyncio.Lock()
        """Held during a removal: no snapshot is written then, and nothing is indexed."""
        self._works: set[asyncio.Task[Any]] = set()
        self._next_prune = 0.0
        self.kept_over_limit = 0
        """How many streams over the configured age or size were not pruned, because they are still needed."""
        self._index: SearchIndex | None = None
        self._grown = asyncio.Event()
        """Set when there may be records to index."""

    async def start(self, stack: AsyncExitStack) -> None:
        """See ``Component``. At the end, a last snapshot is written."""
        stack.push_async_callback(self.keep_last)
        stack.push_async_callback(self.close)
        in_background(stack, self._run())
        self._follow_database()
        in_background(stack, self._keep_index())

    def _follow_database(self) -> None:
        """Set ``_grown`` whenever records were moved to the database, which a thread of the log does."""
        loop = asyncio.get_running_loop()

        def moved() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._grown.set)

        self._store.mover.moved = moved

    async def _keep_index(self) -> None:
        """Index records as soon as they are in the database, and before that whatever the index lacks."""
        warned = ""
        while True:
            self._grown.clear()
            try:
                await self._advance_index()
            except (StreamError, OSError) as error:
                if warned != str(error):
                    warned = str(error)
                    log.warning("the search index was not updated, so a search reads more of the log: %s", error)
                await asyncio.sleep(LOOK_SECONDS)
                continue
            warned = ""
            await self._grown.wait()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except (StreamError, OSError) as error:
                log.warning("upkeep of the log failed, but recording continues: %s", error)

    async def look(self) -> None:
        # Hold the lock, because a snapshot taken during a removal could bring back what is being forgotten.
        async with self._removing:
            self.save_snapshot(SNAPSHOT_RECORDS)
        await self._prune_by_itself()

    def save_snapshot(self, records: int = 1) -> None:
        """Write a snapshot of the capture state, if the log has grown by ``records`` and is quiet."""
        if self._store.head - self._capture.saved >= records:
            self._capture.save(self._is_quiet)

    async def keep_last(self) -> None:
        """Write the snapshot before the log is closed, so that the next start is quick."""
        try:
            self.save_snapshot()
            await self._store.write_hints()
        except (StreamError, OSError) as error:
            log.warning("no snapshot was saved, so the next start reads more of the log: %s", error)

    def owes(self) -> bool:
        """True while a prune or forget is running, because the sidecar must not exit then."""
        return self._removing.locked()

    @asynccontextmanager
    async def _exclusively(self) -> AsyncIterator[None]:
        """Stop snapshots and the index while files are removed; an open index would keep their space."""
        async with self._removing:
            await self._close_index()
            yield

    # --- pruning and forgetting ---

    async def prune(self, request: PruneRequest) -> tuple[PrunePlan, Removed | None]:
        """Remove what the request asks for; return the plan, and what was done, or ``None`` if there was nothing to
        remove.

        Raises:
            StreamError: the disk failed.
        """
        async with self._exclusively():
            now = self._now_ms()
            plan = await removal.plan_prune(self._store, removal.open_turns(self._state), request, now_ms=now)
            if not plan.cuts:
                return plan, None
            sessions = await self.ask(lambda catalog: catalog.sessions_of(plan.offsets))
            done = await removal.prune(self._store, self._capture, plan, sessions, now_ms=now)
            self._removed()
        log.info("pruned %d records in %d streams, %d bytes", done.records, done.streams, done.bytes)
        return plan, done

    async def forget(self, streams: Sequence[str], sessions: Sequence[str] = ()) -> Removed:
        """Replace payloads by their digests, in all records of these streams and in all records of these sessions.

        Raises:
            Failure: see ``removal.forget``, and ``still-reading``: it is not known yet where records of them are.
            StreamError: the disk failed.
        """
        async with self._exclusively():
            elsewhere = await self.streams_beside(streams, sessions)
            done = await removal.forget(self._store, self._capture, streams, sessions, elsewhere, now_ms=self._now_ms())
            self._removed()
        log.info("forgot the payloads of %d records in %d streams", done.records, done.streams)
        return done

    async def streams_beside(self, streams: Sequence[str], sessions: Sequence[str]) -> set[str]:
        def question(catalog: Catalog) -> set[str]:
            if catalog.behind:
                raise Failure("still-reading", removal.STILL_READING)
            return removal.streams_beside(catalog.sessions, streams, sessions)

        return await self.ask(question)

    async def ask(self, question: Callable[[Catalog], Result]) -> Result:
        """What a question returns of the catalog at the head of the log."""
        reader = LogReader(self._store.store)
        try:
            return await ask_catalog(reader, question)
        finally:
            await reader.close()

    async def _prune_by_itself(self) -> None:
        """Every ``PRUNE_SECONDS``, prune the log to the configured age and size."""
        request = PruneRequest(
            older_than_ms=round(self._config.max_age_days * DAY_MS) or None,
            max_bytes=self._config.max_bytes or None,
        )
        now = asyncio.get_running_loop().time()
        if not request or now < self._next_prune:
            return
        self._next_prune = now + PRUNE_SECONDS
        plan, _ = await self.prune(request)
        self.kept_over_limit = len(plan.kept)

    async def to_its_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do ``work``, a removal and what follows it, even if the caller is cancelled, as by a command that is
        interrupted. Only ``close`` cuts it off."""
        task = asyncio.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._works.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the caller may have left

    async def close(self) -> None:
        """Cut off what is being removed, which the next start finishes, and close the index."""
        if works := set(self._works):
            for task in works:
                task.cancel()
            await asyncio.wait(works)
        await self._close_index()

    async def _advance_index(self) -> None:
        indexed, now = 1, asyncio.get_running_loop().time
        while indexed:
            begun = now()
            async with self._removing:  # a removal closes the index
                if self._index is None:
                    self._index = await in_thread(SearchIndex, self._store.store)
                indexed = await in_thread(self._index.advance, INDEX_RECORDS)
                lag = self._store.head - await in_thread(lambda index: index.position, self._index)
            if lag <= INDEX_LAG and not self._is_quiet():
                await asyncio.sleep(min(INDEX_REST * (now() - begun), LONGEST_REST))

    async def _close_index(self) -> None:
        index, self._index = self._index, None
        if index is not None:
            await asyncio.to_thread(index.close)
