"""Read a log that is in two places: in the database up to the database's head, and above it in the journal.

A record leaves the journal only after the database has it. So a line that is missing in the journal is in the database
by now, and reading goes on there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, TypeVar

from streams.errors import CorruptLog
from streams.query import Filter
from streams.retention import Removal, StreamRemoval, StreamSize, Tally
from streams.store import NOTHING, Record
from streams.stores.head import BadLine
from streams.stores.journal.lines import LineKeys, event_of, parse_keys, parse_record
from streams.stores.sqlite.reader import SqliteReader

Parsed = TypeVar("Parsed", Record, LineKeys)


class Moved(Exception):
    """The journal no longer has the lines that were asked for. ``why`` is what it would mean if they had not moved."""

    def __init__(self, why: Exception) -> None:
        super().__init__()
        self.why = why


class JournalLine(NamedTuple):
    """A line, without its newline, and where it is: its file, its number there if that is known, and its position."""

    text: bytes
    file: str
    number: int | None
    position: int

    def record(self) -> Record:
        """Verifies the checksum. Raises ``CorruptLog``."""
        return self.parsed(parse_record)

    def parsed(self, parse: Callable[[bytes], Parsed]) -> Parsed:
        """What ``parse`` makes of the line, checked for its position. Raises ``CorruptLog``."""
        try:
            found = parse(self.text)
            if found.position != self.position:
                raise BadLine(f"its position is {found.position}; expected {self.position}")
        except BadLine as fault:
            raise CorruptLog(self.file, self.number, self.position, str(fault)) from None
        return found


class Journal:
    """The lines of the journal, from the first one above the database's head."""

    def lines(self, wanted: Filter, after: int, head: int) -> AsyncIterator[JournalLine]:
        """Yield the lines above position ``after`` up to ``head``, in order. Lines that certainly do not match
        ``wanted`` may be left out. Raises ``Moved``."""
        raise NotImplementedError

    def lines_back(self, wanted: Filter, after: int, head: int) -> AsyncIterator[JournalLine]:
        """Yield the same lines, the last one first. Raises ``Moved``."""
        raise NotImplementedError


class TwoPlaces:
    """``StreamReader`` over a database and a journal."""

    _database: SqliteReader
    _journal: Journal

    @property
    def head(self) -> int:
        raise NotImplementedError

    async def read(self, stream_id: str, *, from_offset: int = 0) -> AsyncIterator[Record]:
        def stored(_: int, until: int) -> AsyncIterator[Record]:
            return self._database.part_of(stream_id, from_offset, until)

        async for record in self._forward(Filter(streams=(stream_id,)), NOTHING, stored):
            if record.offset >= from_offset:
                yield record

    async def read_all(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        async for record in self._query(Filter(), after):
            yield record

    async def query(self, wanted: Filter) -> AsyncIterator[Record]:
        async for record in self._query(wanted, NOTHING):
            yield record

    async def back(self, wanted: Filter, after: int = NOTHING) -> AsyncIterator[Record]:
        """Yield the records of ``query`` with a position above ``after``, newest first. Reads little more than what the
        caller takes.
        """
        upper, moved = await self._head_now(), NOTHING
        while (moved := await self._database.head_now()) < upper:
            begun = upper
            try:
                async for line in self._journal.lines_back(wanted, max(moved, after), upper):
                    record = line.record()
                    upper = record.position - 1
                    if wanted.matches(record.event):
                        yield record
                break
            except Moved as error:
                if upper == begun and await self._database.head_now() == moved:
                    raise error.why from None
        async for record in self._database.between(wanted, after, min(upper, moved), back=True):
            yield record

    async def find(self, idempotency_key: str) -> Record | None:
        moved = await self._database.head_now()
        found = await self._database.find(idempotency_key)
        return found or await self._first(moved, lambda record: record.event.idempotency_key == idempotency_key)

    async def find_event(self, event_id: str) -> Record | None:
        """The record with the given event id, or ``None``."""
        moved = await self._database.head_now()
        found = await self._database.find_event(event_id)
        return found or await self._first(moved, lambda record: record.event.id == event_id)

    async def event_ids(self, part: str = "") -> AsyncIterator[list[str]]:
        """Yield the ids that contain ``part``, many at a time. Some may come twice."""
        moved = await self._database.head_now()
        async for some in self._database.event_ids(part):
            yield some
        async for record in self._query(Filter(), moved):
            if part in record.event.id:
                yield [record.event.id]

    async def removal(self) -> Removal:
        return await self._database.removal()

    async def removed(self) -> dict[str, StreamRemoval]:
        return await self._database.removed()

    async def sizes(self) -> list[StreamSize]:
        """See ``StreamStore.sizes``. Reads the whole table, but not the events."""
        head = await self._head_now()
        while True:
            moved = min(await self._database.head_now(), head)
            tally = Tally(await self._database.sizes(until=moved))
            try:
                async for line in self._journal.lines(Filter(), moved, head):
                    keys = line.parsed(parse_keys)
                    tally.add(keys.event.stream_id, keys.offset, keys.event.ts, len(event_of(line.text)))
                return tally.sizes()
            except CorruptLog as error:
                self.end_at(error)
                return tally.sizes()
            except Moved as error:
                if await self._database.head_now() == moved:
                    self.end_at(error.why)
                    return tally.sizes()

    async def close(self) -> None:
        await self._database.close()

    def end_at(self, error: Exception) -> None:
        """Raise what ended a read, unless a reader takes what came before it."""
        raise error from None

    async def _head_now(self) -> int:
        return await asyncio.to_thread(lambda: self.head)

    async def _query(self, wanted: Filter, after: int) -> AsyncIterator[Record]:
        def stored(begin: int, until: int) -> AsyncIterator[Record]:
            return self._database.between(wanted, begin, until)

        async for record in self._forward(wanted, after, stored):
            yield record

    async def _forward(
        self, wanted: Filter, after: int, stored: Callable[[int, int], AsyncIterator[Record]]
    ) -> AsyncIterator[Record]:
        """Yield the matching records above ``after``. ``stored`` yields those of the database."""
        head = await self._head_now()
        while after < head:
            moved = min(await self._database.head_now(), head)
            if after < moved:
                async for record in stored(after, moved):
                    if record.position > after:
                        yield record
                after = moved
                continue
            begun = after
            try:
                async for line in self._journal.lines(wanted, after, head):
                    record = line.record()
                    after = record.position
                    if wanted.matches(record.event):
                        yield record
                return
            except Moved as error:
                if after == begun and await self._database.head_now() <= after:
                    raise error.why from None

    async def _first(self, after: int, is_wanted: Callable[[Record], bool]) -> Record | None:
        async for record in self._query(Filter(), after):
            if is_wanted(record):
                return record
        return None
