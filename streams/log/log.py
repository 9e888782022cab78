"""The log as the rest of the program sees it: ``RetentionStore`` over a store's directory, whose lock it holds.

``streams/log/reader.py`` can read the log at the same time, even from another process.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from streams.derived import Derived
from streams.errors import StoreClosed, StoreUnavailable
from streams.event import StreamEvent
from streams.identity import Identity
from streams.log.presence import located
from streams.retention import Removed
from streams.store import NOTHING, OnKnown, Record, Snapshot, Wanted, every_event
from streams.stores.directory import LOCK, Manifest, StoreLock, create, name_log, take_lock
from streams.stores.disk import Disk
from streams.stores.journal.segments import HEAD
from streams.stores.journal.store import SEGMENT_BYTES, LogStore
from streams.stores.live import LiveTail
from streams.stores.plan import Request, encode_batch
from streams.stores.space import mib_to_open
from streams.stores.sqlite.hints import CURSOR, SNAPSHOT, Kind
from streams.stores.sqlite.kept import KeptRows
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
        self._kept_rows: dict[str, KeptRows] = {}
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
        self._note(CURSOR, name, Snapshot(1, position, b""))

    async def snapshot(self, name: str, version: int) -> Snapshot | None:
        found = await self._hint(SNAPSHOT, name)
        return found if found is not None and found.version == version else None

    async def put_snapshot(self, name: str, snapshot: Snapshot) -> None:
        self._note(SNAPSHOT, name, snapshot)

    async def _hint(self, kind: Kind, name: str) -> Snapshot | None:
        found = self._stored.hints.newest(kind, name) or await asyncio.to_thread(self._stored.hint, kind, name)
        return found if found is not None and found.position <= self.head else None

    def _note(self, kind: Kind, name: str, hint: Snapshot) -> None:
        self._stored.hints.note(kind, name, hint)
        self.mover.wake()

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
        """See ``StreamStore.append``."""
        try:
            return await self._commits.submit(Request(encode_batch(events), expected or {}, on_known))
        finally:
            self._live.notify()

    async def prune(self, cuts: Mapping[str, int], *, at_ms: int) -> Removed:
        """See ``RetentionStore.prune``."""
        self._refuse_closed()
        if not any(cuts.get(s.stream_id, 0) > s.first_offset for s in await self.sizes()):
            return Removed()
        return await self._to_its_end(super().prune(cuts, at_ms=at_ms))

    async def forget(self, streams: Collection[str], *, at_ms: int, positions: Collection[int] = ()) -> Removed:
        """See ``RetentionStore.forget``."""
        self._refuse_closed()
        if not positions and {size.stream_id for size in await self.sizes()}.isdisjoint(streams):
            return Removed()
        return await self._to_its_end(super().forget(streams, at_ms=at_ms, positions=positions))

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
        for rows in self._kept_rows.values():
            await asyncio.to_thread(rows.close)
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
