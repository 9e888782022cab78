"""The log as the rest of the program sees it: ``RetentionStore`` over a store's directory, whose lock it holds.

``streams/log/reader.py`` can read the log at the same time, even from another process.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from streams.derived import Derived, Write
from streams.errors import StoreClosed, StoreUnavailable
from streams.event import StreamEvent
from streams.identity import Identity
from streams.log.completeness import located
from streams.retention import Removed
from streams.store import NOTHING, OnKnown, Record, Snapshot, Wanted, every_event
from streams.stores.directory import LOCK, Manifest, StoreLock, create, name_log, take_lock
from streams.stores.disk import Disk
from streams.stores.journal.segments import HEAD
from streams.stores.journal.store import SEGMENT_BYTES, LogStore
from streams.stores.live import LiveTail
from streams.stores.plan import Request, encode_batch
from streams.stores.space import mib_to_open
from streams.stores.sqlite.cursors_and_snapshots import CURSOR, ROWS, SNAPSHOT, Kind, Noted, SavedTables
from streams.stores.sqlite.files import LOG_FILE
from streams.system.threads import in_thread

Result = TypeVar("Result")

__all__ = ["SEGMENT_BYTES", "Log"]


class Log(LogStore):
    """Open it with ``Log.open``."""

    def __init__(
        self, store: Path, lock: StoreLock, disk: Disk, segment_bytes: int, derived: Derived | None = None
    ) -> None:
        super().__init__(store, disk, segment_bytes, lock.check, derived)
        self.store, self._lock = store, lock
        self.manifest = Manifest("")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._saved_tables = SavedTables(store / LOG_FILE)
        self._live = LiveTail(lambda after: self.read_all(after=after), lambda: self.recent)

    @classmethod
    async def open(
        cls,
        store: Path,
        identity: Identity,
        *,
        disk: Disk | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        derived: Derived | None = None,
    ) -> Log:
        """Take the lock and open the log; begin one if there is none. ``derived``: the tables to keep beside the
        records. They are made in the background, which ``waiting`` shows.

        Raises:
            StoreLocked: another process is writing to the store.
            CorruptLog, MissingLog, ForeignStore, StoreUnavailable: see ``LogStore``; nothing was changed.
        """

        def opened() -> Log:
            if not (store / LOCK).exists():
                located(store)  # refuse a bad store before the next two calls put files into it
            create(store)
            lock = take_lock(store)
            try:
                named = located(store)
                log = cls(store, lock, disk or Disk(), segment_bytes, derived)
            except BaseException:
                lock.release()
                raise
            try:
                log.manifest = name_log(store, named, identity)
            except BaseException:
                log.close_at_once()
                raise
            return log

        try:
            return await in_thread(opened)
        except OSError as error:
            raise unavailable(store, error) from error

    @property
    def head_warning(self) -> str | None:
        """What to say if the head file was missing, so that records lost at the log's very end would go unnoticed."""
        if not self.head_lost:
            return None
        return (
            f"missing: {self.store / HEAD}: it was missing or damaged and has now been renewed; until then, a loss of "
            "records at the very end of the log would have gone unnoticed"
        )

    async def cursor(self, name: str) -> int:
        found = await self._hint(CURSOR, name)
        return NOTHING if found is None else found.position

    async def advance(self, name: str, position: int) -> None:
        self._note(CURSOR, name, Noted(Snapshot(1, position, b"")))

    async def snapshot(self, name: str, version: int) -> Snapshot | None:
        found = await self._hint(SNAPSHOT, name)
        return found if found is not None and found.version == version else None

    async def put_snapshot(self, name: str, snapshot: Snapshot) -> None:
        self._note(SNAPSHOT, name, Noted(snapshot))

    async def saved(self, name: str, version: int) -> Snapshot | None:
        """The last snapshot of this version that ``save`` wrote, whose tables are there, too; ``None`` without one."""
        found = await self._hint(ROWS, name)
        return found if found is not None and found.version == version else None

    def save(
        self, name: str, snapshot: Snapshot, write: Write, *, is_new: bool = False, written: Callable[[], None]
    ) -> None:
        """Note a snapshot that has tables, which are in the log's database, with names that begin with ``saved_``.

        ``write`` changes them, in the transaction that writes the snapshot. It runs on another thread, and again if the
        transaction fails. ``is_new``: before that, all such tables are dropped. ``written`` is called after it, on any
        thread. One snapshot of a name is to be noted at a time. Raises ``ValueError`` for a bad name.
        """
        self._note(ROWS, name, Noted(snapshot, write, is_new, written))

    def spoil(self, name: str) -> None:
        """Note that a snapshot is damaged, so it is not given back again."""
        self._note(ROWS, name, Noted(Snapshot(0, NOTHING, b"")))

    def fetch_saved(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What is in the tables of ``save``. Blocks briefly; for one thread. See ``SavedTables.fetch``."""
        return self._saved_tables.fetch(query, *values)

    async def _hint(self, kind: Kind, name: str) -> Snapshot | None:
        found = self._stored.hints.newest(kind, name) or await asyncio.to_thread(self._stored.hint, kind, name)
        return found if found is not None and found.position <= self.head else None

    def _note(self, kind: Kind, name: str, noted: Noted) -> None:
        self._stored.hints.note(kind, name, noted)
        self.mover.wake()

    async def append(
        self,
        events: Sequence[StreamEvent],
        *,
        expected: Mapping[str, int] | None = None,
        on_known: OnKnown = "conflict",
    ) -> list[Record]:
        """See ``StreamStore.append``."""
        try:
            return await self._commits.submit(Request(encode_batch(events), expected or {}, on_known))
        finally:
            self._live.notify()

    async def prune(self, cuts: Mapping[str, int], *, at_ms: int, change: Write | None = None) -> Removed:
        """See ``RetentionStore.prune``. ``change`` writes the tables of ``save``, in the transaction that notes what is
        to be removed."""
        self._refuse_closed()
        if not any(cuts.get(s.stream_id, 0) > s.first_offset for s in await self.sizes()):
            return Removed()
        return await self._to_its_end(super().prune(cuts, at_ms=at_ms, change=change))

    async def forget(
        self,
        streams: Collection[str],
        *,
        at_ms: int,
        positions: Collection[int] = (),
        change: Write | None = None,
    ) -> Removed:
        """See ``RetentionStore.forget``; for ``change``, see ``prune``."""
        self._refuse_closed()
        if not positions and {size.stream_id for size in await self.sizes()}.isdisjoint(streams):
            return Removed()
        return await self._to_its_end(super().forget(streams, at_ms=at_ms, positions=positions, change=change))

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreClosed("the log is closed", "open it again")

    async def _to_its_end(self, removal: Coroutine[Any, Any, Result]) -> Result:
        """Wait for a removal to end. Cancelling ends the wait alone."""
        task = asyncio.ensure_future(removal)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark the exception as retrieved; otherwise asyncio logs it if no caller is waiting

    def subscribe(self, *, after: int = NOTHING, wanted: Wanted = every_event) -> AsyncIterator[Record]:
        """See ``StreamStore.subscribe``."""
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
        await super().close()
        self._saved_tables.close()
        self._live.close()
        self._lock.release()

    def close_at_once(self) -> None:
        """``close``, blocking, for a log that nobody has used."""
        super().close_at_once()
        self._lock.release()


_OWNED: Final = (
    "another user owns this file, or you lack permission: choose another home, or ask the file's owner to transfer it "
    "to you"
)


def unavailable(store: Path, error: OSError) -> StoreUnavailable:
    """Explain an error of the operating system that occurred while a store was being opened."""
    if error.errno in (errno.EACCES, errno.EPERM):
        named = error.filename or store
        return StoreUnavailable(f"cannot open the log in {store}: {named}: {error.strerror}", _OWNED)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = f"free {mib_to_open(store)} MiB on that disk, then run the same command again"
    elif error.errno == errno.EROFS:
        hint = "mount the file system writable, or copy the home elsewhere"
    else:
        hint = "check that you own the directory and that the disk has free space"
    return StoreUnavailable(f"cannot open the log in {store}: {error.strerror or error}", hint)
