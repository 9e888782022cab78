"""Read a log while it is being written, even from another process, in whichever backend holds it now.

A log may migrate to the other backend during a read, and its old store may be deleted.
So each read finds out where the log is, and continues there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar, cast

from streams.errors import CorruptLog, StreamError
from streams.log.presence import located
from streams.query import Filter
from streams.retention import StreamRemoval, StreamSize
from streams.store import NOTHING, Record, Snapshot
from streams.stores.directory import is_being_written, read_manifest
from streams.stores.hints import Hints
from streams.stores.journal.reading import JournalReader, TwoPlaces
from streams.stores.jsonl.reader import JsonlReader
from streams.stores.sqlite.kept import ReadRows, read_rows
from streams.stores.sqlite.reader import SqliteReader

DiskReader = JsonlReader | SqliteReader | TwoPlaces
Result = TypeVar("Result")


def every_record(record: Record) -> bool:
    return True


class AnyBackend:
    """Reading a log that may migrate during a read. ``_now`` returns the backend that holds the log now."""

    def _now(self) -> DiskReader:
        raise NotImplementedError

    def read(self, stream_id: str, *, from_offset: int = 0) -> AsyncIterator[Record]:
        return self._read(lambda backend, _: backend.read(stream_id, from_offset=from_offset))

    def read_all(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        return self._read(lambda backend, last: backend.read_all(after=max(after, last)))

    def query(self, wanted: Filter) -> AsyncIterator[Record]:
        return self._read(lambda backend, _: backend.query(wanted))

    async def find(self, idempotency_key: str) -> Record | None:
        return await self._ask(lambda backend: backend.find(idempotency_key))

    async def sizes(self) -> list[StreamSize]:
        return await self._ask(lambda backend: backend.sizes())

    async def removed(self) -> dict[str, StreamRemoval]:
        return await self._ask(lambda backend: backend.removed())

    async def _read(self, read: Callable[[DiskReader, int], AsyncIterator[Record]]) -> AsyncIterator[Record]:
        """Yield what ``read`` yields; continue in the other backend if the log has migrated there in the meantime.

        Reading deleted files finds damage, or nothing. Either result counts only if the log is still in the backend
        that was read. ``read`` also gets the position after which to continue; earlier records are skipped.
        """
        backend, last = self._now(), NOTHING
        while True:
            try:
                async with aclosing(cast("AsyncGenerator[Record, None]", read(backend, last))) as records:
                    async for record in records:
                        if record.position > last:
                            last = record.position
                            yield record
            except (StreamError, OSError) as error:
                if (moved_to := self._now()) is backend:
                    self._end(error)
                    return
            else:
                if (moved_to := self._now()) is backend:
                    return
            backend = moved_to

    def _end(self, error: Exception) -> None:
        """Reading met an error. Raises it, unless reading may just end here."""
        raise error

    async def _ask(self, ask: Callable[[DiskReader], Awaitable[Result]]) -> Result:
        """Like ``_read``, but returns one answer."""
        while True:
            backend = self._now()
            try:
                answer = await ask(backend)
            except (StreamError, OSError):
                if self._now() is backend:
                    raise
            else:
                if self._now() is backend:
                    return answer


class LogReader(AnyBackend):
    """``StreamReader`` over a store's directory, in either backend; a missing directory reads as an empty log.

    With ``to_damage``, each read ends before a damaged record, and ``damage`` says where. A caller that shows
    what it read must also show ``damage``. Without it, such a read raises ``CorruptLog``.

    Raises:
        ForeignStore: another program or a newer version wrote the store.
        MissingLog: a part of the store was deleted.
    """

    def __init__(self, store: Path, *, to_damage: bool = False) -> None:
        self.store, self._to_damage = store, to_damage
        self.damage: CorruptLog | None = None
        self._sqlite: SqliteReader | None = None
        self._jsonl = JsonlReader(store)
        self._journal: JournalReader | None = None

    def _end(self, error: Exception) -> None:
        if not self._to_damage or not isinstance(error, CorruptLog):
            raise error
        self.damage = self.damage or error

    def _now(self) -> DiskReader:
        # Check a sqlite store's files only until its database is open, because a check on every read is slow.
        look = located if self._sqlite is None and self._journal is None else read_manifest
        manifest = look(self.store)
        if manifest is None or manifest.backend == "jsonl":
            if self._sqlite is not None:
                # The old store may be deleted at any time, and open files would keep its disk space in use.
                self._sqlite.let_go()
            return self._jsonl
        if manifest.backend == "journal":
            self._journal = self._journal or JournalReader(self.store)
            return self._journal
        if self._sqlite is None:
            self._sqlite = SqliteReader(self.store)
        return self._sqlite

    @property
    def head(self) -> int:
        """See ``StreamReader.head``. Read from disk at each call."""
        while True:
            backend = self._now()
            try:
                head = backend.head
            except (StreamError, OSError):
                if self._now() is backend:
                    raise
                continue
            # The log may have migrated in the meantime, and the store that was just read may be deleted.
            if self._now() is backend:
                return head

    @property
    def is_indexed(self) -> bool:
        """True if finding one stream, or one event, does not read the whole log."""
        return not isinstance(self._now(), JsonlReader)

    async def newest(
        self, wanted: Filter, count: int, *, after: int = NOTHING, fits: Callable[[Record], bool] = every_record
    ) -> list[Record] | None:
        """The last ``count`` records of ``query`` above position ``after`` that ``fits`` accepts, in the order of
        ``query``. Reads the log from its end, and no further than it must.

        ``fits`` sees the records newest first. The result is ``None`` if the end that was read is damaged, or if the
        log has migrated in the meantime: only a read from the beginning tells what is damaged, and where.
        """
        backend = self._now()
        found: list[Record] = []
        try:
            async with aclosing(cast("AsyncGenerator[Record, None]", backend.back(wanted, after))) as records:
                while len(found) < count and (record := await anext(records, None)) is not None:
                    if fits(record):
                        found.append(record)
        except CorruptLog:
            return None
        except (StreamError, OSError):
            if self._now() is backend:
                raise
        return found[::-1] if self._now() is backend else None

    async def find_event(self, event_id: str) -> Record | None:
        try:
            return await self._ask(lambda backend: backend.find_event(event_id))
        except CorruptLog as error:
            self._end(error)
            return None

    async def glance(self) -> None:
        """Check that every file of the log exists and is long enough. Quick for a log of any size.

        Raises:
            CorruptLog: a file is missing or was cut short.
        """
        # Only a jsonl log needs this check, because ``located`` has already compared a sqlite log with its head file.
        if self._now() is self._jsonl:
            try:
                await self._jsonl.glance()
            except CorruptLog as error:
                self._end(error)

    def file_sizes(self) -> dict[str, int] | None:
        """``{files, bytes}`` of a jsonl log; ``None`` with another backend. Blocks briefly."""
        return self._jsonl.file_sizes() if self._now() is self._jsonl else None

    async def event_ids(self, part: str = "") -> AsyncIterator[list[str]]:
        """Yield the ids that contain ``part``, many at a time, in no particular order, without reading payloads.

        Some ids may come twice if the log migrates in the meantime.
        """
        while True:
            backend = self._now()
            try:
                async with aclosing(cast("AsyncGenerator[list[str], None]", backend.event_ids(part))) as found:
                    async for some in found:
                        yield some
            except (StreamError, OSError) as error:
                if self._now() is backend:
                    self._end(error)
                    return
            else:
                if self._now() is backend:
                    return

    async def snapshot(self, name: str, version: int) -> Snapshot | None:
        """See ``StreamStore.snapshot``. ``None`` also during a removal."""
        found = await asyncio.to_thread(Hints(self.store).snapshot, name, version)
        if found is None or found.position > self.head:
            return None
        # The snapshot may include removed records, because a removal drops snapshots last.
        return None if (await self._now().removal()).pending else found

    async def rows(self, name: str, version: int) -> ReadRows | None:
        """Like ``snapshot``, for a snapshot in rows (see ``Log.rows``)."""
        found = await asyncio.to_thread(read_rows, self.store, name, version)
        if found is None or found.snapshot.position > self.head:
            return None
        return None if (await self._now().removal()).pending else found

    async def is_removing(self) -> bool:
        """True if a prune or forget is running or was cut off, so some of the records it removes may still exist."""
        return (await self._now().removal()).pending

    async def cut_off(self) -> str | None:
        """The message about a prune or forget that was cut off, for example by a kill; ``None`` if there was none."""
        if not await self.is_removing() or await asyncio.to_thread(is_being_written, self.store):
            return None
        return (
            "a prune or forget was interrupted, so some of the records to be removed may remain: the next start of the "
            "sidecar or `durable-stream repair` finishes it"
        )

    async def close(self) -> None:
        for reader in (self._sqlite, self._journal):
            if reader is not None:
                await reader.close()
