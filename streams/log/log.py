"""The log as the rest of the program sees it: a ``StreamStore`` whose backend may change while it is open.

``Log`` owns the store's directory: it takes the lock, opens the backend that
``store.json`` names, and can migrate to another one while appends continue.
``streams/log/reader.py`` can read the log at the same time, even from another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from streams.errors import StoreClosed, StoreUnavailable
from streams.event import StreamEvent
from streams.identity import Identity
from streams.log.backends import DiskStore, open_backend, unavailable
from streams.log.migrate import Migration, discard_old
from streams.log.presence import located
from streams.log.reader import AnyBackend
from streams.retention import Removed
from streams.store import NOTHING, OnKnown, Record, Snapshot, Wanted, every_event
from streams.stores.directory import (
    LOCK,
    Backend,
    Manifest,
    StoreLock,
    create,
    name_log,
    read_manifest,
    take_lock,
    write_manifest,
)
from streams.stores.disk import Disk
from streams.stores.hints import HintAhead, Hints
from streams.stores.journal.store import JournalStore
from streams.stores.jsonl.store import SEGMENT_BYTES, JsonlStore
from streams.stores.live import LiveTail
from streams.stores.sqlite.kept import KeptRows
from streams.stores.sqlite.store import SqliteStore
from streams.system.threads import in_thread

SLOWED_SECONDS: Final = 0.002
MOST_SLOWED_SECONDS: Final = 0.05
"""``SLOWED_SECONDS`` and ``MOST_SLOWED_SECONDS`` are the first and the longest pause between two appends while a
migration falls behind.
"""

Result = TypeVar("Result")


class Log(AnyBackend):
    """``RetentionStore`` over a store's directory. Open it with ``Log.open``."""

    def __init__(
        self, store: Path, lock: StoreLock, manifest: Manifest, backend: DiskStore, segment_bytes: int
    ) -> None:
        self.store, self.manifest, self.segment_bytes = store, manifest, segment_bytes
        self._lock, self._backend = lock, backend
        backend.guard(lock.check)
        self._hints = Hints(store)
        self._admitted = asyncio.Event()
        self._admitted.set()
        self._appending = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._pace = 0.0
        """Minimum seconds between two appends; 0: no limit."""
        self._waiting = 0
        """How many appends are waiting. A later append must not overtake them."""
        self._gate = asyncio.Lock()
        self._to_sqlite_turn = asyncio.Lock()
        self._moving = self._removals = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._still = asyncio.Event()
        self._still.set()
        self._closed = False
        self.lost: list[HintAhead] = []
        """Records that the log has lost. Cursors and snapshots show that it once held them."""
        self._differences = 0
        self._kept_rows: dict[str, KeptRows] = {}
        self._live = LiveTail(lambda after: self.read_all(after=after), lambda: self._backend.recent)

    @classmethod
    async def open(
        cls,
        store: Path,
        identity: Identity,
        *,
        backend: Backend = "jsonl",
        disk: Disk | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> Log:
        """Take the lock and open the backend that the manifest names. A new log gets the backend ``backend``.

        Raises:
            StoreLocked: another process is writing to the store.
            CorruptLog, MissingLog, ForeignStore, StoreUnavailable: see the backend's ``open``; nothing was changed.
        """

        def prepared() -> tuple[StoreLock, Manifest | None]:
            if not (store / LOCK).exists():
                located(store)  # refuse a bad store before the next two calls put files into it
            create(store)
            lock = take_lock(store)
            try:
                return lock, located(store, alone=True)
            except BaseException:
                lock.release()
                raise

        try:
            lock, named = await asyncio.to_thread(prepared)
        except OSError as error:
            raise unavailable(store, error) from error
        try:
            kind = backend if named is None else named.backend
            opened = await open_backend(store, kind, disk=disk, segment_bytes=segment_bytes)
            try:
                manifest = await asyncio.to_thread(name_log, store, named, identity, kind)
            except BaseException:
                await opened.close()
                raise
        except OSError as error:
            lock.release()
            raise unavailable(store, error) from error
        except BaseException:
            lock.release()
            raise
        log = cls(store, lock, manifest, opened, segment_bytes)
        try:
            log.lost = await asyncio.to_thread(log._hints.set_aside_after, opened.head)
        except BaseException:
            await log.close()
            raise
        return log

    @property
    def backend(self) -> Backend:
        return self.manifest.backend

    @property
    def torn(self) -> Path | None:
        """Where opening put the incomplete tail of a jsonl log; ``None`` if there was none."""
        return self._backend.torn if isinstance(self._backend, JsonlStore | JournalStore) else None

    @property
    def head_lost(self) -> bool:
        """True if the head file was missing, so records lost at the log's very end would go unnoticed."""
        return self._backend.head_lost

    @property
    def head_warning(self) -> str | None:
        if not self.head_lost:
            return None
        file = self.store / ("sqlite-head" if self.backend == "sqlite" else "head")
        return (
            f"missing: {file}: it was missing or damaged and has now been renewed; until then, a loss of records at "
            "the very end of the log would have gone unnoticed"
        )

    @property
    def head(self) -> int:
        return self._backend.head

    @property
    def differences(self) -> int:
        """See ``StreamStore.differences``; counted by this object."""
        return self._differences + self._backend.differences

    def _now(self) -> DiskStore:
        return self._backend

    async def find_each(self, idempotency_keys: Sequence[str]) -> list[Record | None]:
        return await self._ask(lambda _: self._backend.find_each(idempotency_keys))

    async def cursor(self, name: str) -> int:
        position = await asyncio.to_thread(self._hints.cursor, name)
        return position if position <= self.head else NOTHING

    async def advance(self, name: str, position: int) -> None:
        await asyncio.to_thread(self._hints.advance, name, position)

    async def snapshot(self, name: str, version: int) -> Snapshot | None:
        found = await asyncio.to_thread(self._hints.snapshot, name, version)
        return found if found is not None and found.position <= self.head else None

    async def put_snapshot(self, name: str, snapshot: Snapshot) -> None:
        await asyncio.to_thread(self._hints.put_snapshot, name, snapshot)

    async def rows(self, name: str, version: int) -> KeptRows:
        """Open a projection's snapshot in rows, or begin a new one if there is none of this version that is not beyond
        head. It is closed with the log. Remove it before a removal, which deletes its files.

        Raises:
            StreamError, OSError: it cannot be written.
        """
        found = await in_thread(KeptRows, self.store, name, version, self.head)
        self._kept_rows[name] = found
        return found

    async def append(
        self,
        events: Sequence[StreamEvent],
        *,
        expected: Mapping[str, int] | None = None,
        on_known: OnKnown = "conflict",
    ) -> list[Record]:
        """See ``StreamStore.append``.

        The call waits less than a second while the backend is being exchanged. While a migration cannot keep up with
        the appends, the call waits for its turn.
        """
        if self._pace or self._waiting or not self._admitted.is_set():
            await self._wait_for_turn()
        self._appending += 1
        self._quiet.clear()
        try:
            return await self._backend.append(events, expected=expected, on_known=on_known)
        finally:
            self._appending -= 1
            if not self._appending:
                self._quiet.set()
            self._live.notify()

    async def _wait_for_turn(self) -> None:
        self._waiting += 1
        try:
            async with self._gate:
                if self._pace:
                    await asyncio.sleep(self._pace)
                while not self._admitted.is_set():
                    await self._admitted.wait()
        finally:
            self._waiting -= 1

    async def prune(self, cuts: Mapping[str, int], *, at_ms: int) -> Removed:
        """See ``RetentionStore.prune``. First migrates a jsonl log to sqlite, and deletes the old store of a migration.

        Raises:
            StoreUnavailable: also during a migration.
        """
        return await self._to_its_end(self._prune(cuts, at_ms))

    async def forget(self, streams: Collection[str], *, at_ms: int, positions: Collection[int] = ()) -> Removed:
        """See ``RetentionStore.forget``. First migrates a jsonl log to sqlite, and deletes the old store of a
        migration.

        Raises:
            StoreUnavailable: also during a migration.
        """
        return await self._to_its_end(self._forget(streams, positions, at_ms))

    async def _prune(self, cuts: Mapping[str, int], at_ms: int) -> Removed:
        if not self._closed and not any(cuts.get(s.stream_id, 0) > s.first_offset for s in await self.sizes()):
            return Removed()
        moved = await self._to_sqlite()
        async with self._removing() as backend:
            return (await backend.prune(cuts, at_ms=at_ms))._replace(moved_from=moved)

    async def _forget(self, streams: Collection[str], positions: Collection[int], at_ms: int) -> Removed:
        if not self._closed and not positions and {size.stream_id for size in await self.sizes()}.isdisjoint(streams):
            return Removed()
        moved = await self._to_sqlite()
        async with self._removing() as backend:
            return (await backend.forget(streams, at_ms=at_ms, positions=positions))._replace(moved_from=moved)

    async def _to_sqlite(self) -> Backend | None:
        if self._closed:
            raise StoreClosed("the log is closed", "open it again")
        async with self._to_sqlite_turn:  # hold the lock, so that concurrent removals migrate the log only once
            if self.backend in ("sqlite", "journal"):
                return None
            moved_from = self.backend
            self._refuse_moving()
            await Migration(self, "sqlite").run()
            return moved_from

    def _refuse_moving(self) -> None:
        if self._moving:
            raise StoreUnavailable(
                f"the log in {self.store} is migrating to another backend, so nothing was removed",
                "try again when `durable-stream status` no longer shows a migration",
            )

    async def _to_its_end(self, removal: Coroutine[Any, Any, Result]) -> Result:
        """Wait for a removal to end. Cancelling ends the wait alone, because no migration may begin before that end."""
        task = asyncio.ensure_future(removal)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark the exception as retrieved; otherwise asyncio logs it if no caller is waiting

    @asynccontextmanager
    async def _removing(self) -> AsyncIterator[SqliteStore | JournalStore]:
        self._refuse_moving()
        self._removals += 1
        self._still.clear()
        try:
            async with self._to_sqlite_turn:
                if self.backend != "journal":
                    await discard_old(self.store)  # the old store would still contain what is removed here
            self.reread_manifest()
            if not isinstance(self._backend, SqliteStore | JournalStore):
                raise StoreUnavailable(
                    f"the log in {self.store} migrated to {self.backend} in the meantime", "try again"
                )
            yield self._backend
        finally:
            self._removals -= 1
            if not self._removals:
                self._still.set()

    def subscribe(self, *, after: int = NOTHING, wanted: Wanted = every_event) -> AsyncIterator[Record]:
        """See ``StreamStore.subscribe``; continues across a change of the backend."""
        return self._live.follow(after, wanted)

    def check_lock(self) -> None:
        """Check that no other process can have taken over the log. Quick; every commit also makes this check.

        Raises:
            StoreFenced: the lock file was deleted or replaced, so nothing more is written.
        """
        self._lock.check()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._backend.close()
        for rows in self._kept_rows.values():
            await asyncio.to_thread(rows.close)
        self._live.close()
        self._lock.release()

    # --- the files of a jsonl log ---

    def file_sizes(self) -> dict[str, int] | None:
        """``{files, bytes}`` of a jsonl log; ``None`` with another backend. Blocks briefly."""
        return self._backend.file_sizes() if isinstance(self._backend, JsonlStore) else None

    # --- migrating to another backend (see streams/log/migrate.py) ---

    @property
    def source(self) -> JsonlStore | SqliteStore:
        assert not isinstance(self._backend, JournalStore), "a log in a journal and a database does not migrate"
        return self._backend

    @asynccontextmanager
    async def moving(self) -> AsyncIterator[None]:
        """Wait for any running prune or forget to end, and let none begin during a migration."""
        self._moving += 1
        try:
            await self._still.wait()
            yield
        finally:
            self._moving -= 1

    async def hold(self) -> None:
        """Admit no append until ``release``. Returns when all running appends have ended, including cancelled ones."""
        self._admitted.clear()
        await self._quiet.wait()
        # Cancelling an append ends only its caller's wait, so also wait for the writes of cancelled appends.
        await self._backend.drained()

    def release(self) -> None:
        self._admitted.set()

    def slow_down(self) -> None:
        """Slow down appends further, because a migration that is slower than they are would never end."""
        self._pace = min(self._pace * 2 or SLOWED_SECONDS, MOST_SLOWED_SECONDS)

    def full_speed(self) -> None:
        """Let appends pass as they arrive, after the appends that are already waiting."""
        self._pace = 0.0

    def reread_manifest(self) -> None:
        manifest = read_manifest(self.store)
        if manifest is not None:
            self.manifest = manifest

    async def exchange(self, backend: DiskStore, manifest: Manifest) -> None:
        """Make ``backend`` the backend of the log. Call this only between ``hold`` and ``release``, when both heads are
        equal.

        Raises:
            OSError: the manifest could not be replaced; the old backend stays.
            StoreFenced: another process may have taken over.
        """
        self.check_lock()
        backend.guard(self.check_lock)
        try:
            await asyncio.to_thread(write_manifest, self.store, manifest)
        except OSError:
            # The rename may have happened without a sync. Restore the manifest, because the next start must not find
            # the copy, which gets no more records.
            await asyncio.to_thread(write_manifest, self.store, self.manifest)
            raise
        old, self._backend, self.manifest = self._backend, backend, manifest
        self._differences += old.differences
        await old.close()
