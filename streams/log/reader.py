"""Read a log while it is being written, even from another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import cast

from streams.errors import CorruptLog
from streams.log.completeness import located
from streams.query import Filter
from streams.store import NOTHING, Record, Snapshot
from streams.stores.directory import is_being_written
from streams.stores.journal.files import FileJournal
from streams.stores.journal.segments import JOURNAL, sizes_of
from streams.stores.journal.whole_log import TwoPlaces
from streams.stores.sqlite.copied import Copied as Copied
from streams.stores.sqlite.cursors_and_snapshots import CURSOR, SNAPSHOT
from streams.stores.sqlite.derived import DerivedReader
from streams.stores.sqlite.derived import DerivedTables as DerivedTables
from streams.stores.sqlite.files import LOG_FILE, STEPS, connect_to_read
from streams.stores.sqlite.reader import SqliteReader


def every_record(record: Record) -> bool:
    return True


class LogReader(TwoPlaces):
    """``StreamReader`` over a store's directory; a missing directory reads as an empty log.

    With ``to_damage``, each read ends before a damaged record, and ``damage`` says where. A caller that shows
    what it read must also show ``damage``. Without it, such a read raises ``CorruptLog``.

    Raises:
        ForeignStore: another program or a newer version wrote the store.
        MissingLog: a part of the store was deleted.
    """

    def __init__(self, store: Path, *, to_damage: bool = False) -> None:
        self.store, self._to_damage = store, to_damage
        self._damage: CorruptLog | None = None
        self._database = SqliteReader(store, to_damage=to_damage)
        self._files = self._journal = FileJournal(store)
        self._derived = DerivedReader(store / LOG_FILE)
        self._is_located = False

    @property
    def damage(self) -> CorruptLog | None:
        """Where the first read ended that met damage, or how the database is damaged."""
        return self._damage or self._database.damage

    @property
    def head(self) -> int:
        """See ``StreamReader.head``. Read from disk at each call."""
        # Check the files only until there is a log, because a check on every read is slow.
        if not self._is_located:
            self._is_located = located(self.store) is not None
        # Read the database first: a record may move in between, and then the head file names it.
        stored = self._database.head
        return max(self._files.head, stored)

    def read(self, stream_id: str, *, from_offset: int = 0) -> AsyncIterator[Record]:
        return self._to_the_end(super().read(stream_id, from_offset=from_offset))

    def read_all(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        return self._to_the_end(super().read_all(after=after))

    def query(self, wanted: Filter) -> AsyncIterator[Record]:
        return self._to_the_end(super().query(wanted))

    async def _to_the_end(self, records: AsyncIterator[Record]) -> AsyncIterator[Record]:
        """Yield the records; with ``to_damage``, end at damage."""
        try:
            async with aclosing(cast("AsyncGenerator[Record, None]", records)) as open_records:
                async for record in open_records:
                    yield record
        except CorruptLog as error:
            self.end_at(error)

    def end_at(self, error: Exception) -> None:
        """Note damage at which reading ends; raise the error if this reader does not read up to damage."""
        if not self._to_damage or not isinstance(error, CorruptLog):
            raise error from None
        self._damage = self._damage or error

    async def newest(
        self, wanted: Filter, count: int, *, after: int = NOTHING, fits: Callable[[Record], bool] = every_record
    ) -> list[Record] | None:
        """The last ``count`` records of ``query`` above position ``after`` that ``fits`` accepts, in the order of
        ``query``. Reads the log from its end, and no further than it must.

        ``fits`` sees the records newest first. The result is ``None`` if the end that was read is damaged: only a read
        from the beginning finds the first damaged record.
        """
        found: list[Record] = []
        try:
            async with aclosing(cast("AsyncGenerator[Record, None]", self.back(wanted, after))) as records:
                while len(found) < count and (record := await anext(records, None)) is not None:
                    if fits(record):
                        found.append(record)
        except CorruptLog:
            return None
        return found[::-1]

    async def find_event(self, event_id: str) -> Record | None:
        try:
            return await super().find_event(event_id)
        except CorruptLog as error:
            self.end_at(error)
            return None

    def cursor(self, name: str) -> int:
        """See ``StreamStore.cursor``. Blocks."""
        found = self._database.hint(CURSOR, name)
        return NOTHING if found is None else found.position

    async def snapshot(self, name: str, version: int) -> Snapshot | None:
        """See ``StreamStore.snapshot``. ``None`` also during a removal."""
        found = await asyncio.to_thread(self._database.hint, SNAPSHOT, name)
        if found is None or found.version != version:
            return None
        # The snapshot may include removed records, because a removal drops snapshots last.
        return None if await self.is_removing() else found

    def waiting(self) -> dict[str, object]:
        """What the journal holds, in the form of ``LogStore.waiting``. ``fault`` and ``derived`` are always ``None``,
        because only the writer knows them. Blocks briefly."""
        stored = self._database.head
        return {
            "records": max(self.head - stored, 0),
            **sizes_of(self.store / JOURNAL),
            "fault": None,
            "derived": None,
        }

    def derived(self, version: int) -> DerivedTables | None:
        """The derived tables as they are now, up to their ``position``; ``read_all`` has the records above it, up to
        their ``head``. ``None`` if there are no tables of this version: no log, or they are being made. The caller
        closes them soon. Blocks.

        Raises:
            ForeignStore, MissingLog: see ``LogReader``.
            StoreLocked, StoreUnavailable, OSError: the database is locked by another program or cannot be read.
        """
        self.head  # noqa: B018 - refuses a store that lost a part
        found = self._derived.open(version)
        if found is not None:
            try:
                found.head = self.head
            except BaseException:
                found.close()
                raise
        return found

    def copied(self) -> Copied | None:
        """The database as a second place copies it, without what the journal has above it; ``None`` if there is none.
        Blocks. Raises the errors of ``derived``."""
        path = self.store / LOG_FILE
        connection = connect_to_read(path, len(STEPS))
        return None if connection is None else Copied(connection, path)

    async def close(self) -> None:
        self._derived.close()
        await super().close()

    async def is_removing(self) -> bool:
        """True if a prune or forget is running or was cut off, so some of the records it removes may still exist."""
        return (await self.removal()).pending

    async def cut_off(self) -> str | None:
        """The message about a prune or forget that was cut off, for example by a kill; ``None`` if there was none."""
        if not await self.is_removing() or await asyncio.to_thread(is_being_written, self.store):
            return None
        return (
            "a prune or forget was interrupted, so some of the records to be removed may remain: the next start of the "
            "sidecar finishes it"
        )
