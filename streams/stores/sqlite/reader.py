"""Read a log's database, in the sidecar and in other processes at the same time.

A reader cannot write and never repairs anything. A reader sees committed records, which with ``synchronous=FULL`` are
durable. Reading fetches a few rows at a time, and each fetch is a separate query that continues after the last
position. So no read transaction stays open between fetches, and the writer's checkpoints never wait for a reader.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from heapq import heappop, heappush, heapreplace
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

from streams.errors import CorruptLog, ForeignStore, StoreUnavailable, StreamError
from streams.hashing import encode
from streams.query import Filter, type_matches
from streams.retention import Removal, StreamRemoval, StreamSize, Tally
from streams.store import NOTHING, Record, Snapshot
from streams.stores.key_digest import key_digest
from streams.stores.sqlite.cursors_and_snapshots import Kind, stored_hint
from streams.stores.sqlite.files import (
    LOG_FILE,
    SEARCH_FILE,
    SEARCH_STEPS,
    STEPS,
    connect_to_read,
    place_of,
    shown,
    translate,
    translated,
)
from streams.stores.sqlite.removed import head_of, load
from streams.stores.sqlite.rows import SELECT, bindable, conditions, record_of, rows_to_damage, trigrams

_FETCH = 256
_FETCH_IDS = 4096
_BELOW_ALL = -(2**63)
_ABOVE_ALL = 2**63 - 1
_FIRST_FETCH = 8
_LEAST_REACH = 1024

_IDS = (
    "SELECT event_id FROM records WHERE event_id > ? AND position <= ? AND instr(event_id, ?) ORDER BY event_id LIMIT ?"
)
_TYPES: Final = (
    "WITH RECURSIVE types (name) AS (SELECT min(type) FROM records UNION ALL"
    " SELECT (SELECT min(type) FROM records WHERE type > name) FROM types WHERE name IS NOT NULL)"
    " SELECT name FROM types WHERE name IS NOT NULL"
)
"""Selects the existing types, with one index step for each type."""

Answer = TypeVar("Answer")


class SqliteReader:
    """``StreamReader`` over ``store/log.db``; a directory without this file reads as an empty log.

    Raises:
        ForeignStore: the file is damaged, or another program or a newer version wrote it.
        StoreUnavailable: the file cannot be opened.
    """

    _types: str = _TYPES
    _conditions = staticmethod(conditions)

    def __init__(self, store: Path, *, exists: bool = False, to_damage: bool = False) -> None:
        """``to_damage``: read a damaged file, too, as far as that works. ``damage`` then says what is wrong with it,
        apart from its records; at a damaged record, reading ends with ``CorruptLog`` as ever."""
        self._store, self._path, self._to_damage = store, store / LOG_FILE, to_damage
        self.damage: CorruptLog | None = None
        self._exists = exists
        """True if the file exists or once existed. In this case, a missing file means that the log is gone, not
        empty."""
        self._connection: sqlite3.Connection | None = None
        self._place: tuple[int, int] | None = None
        self._search: sqlite3.Connection | None = None
        self._lock = Lock()

    @property
    def head(self) -> int:
        """See ``StreamReader.head``. Read from the file at each call."""
        return self._with_log(self._last, NOTHING)

    def _last(self, connection: sqlite3.Connection) -> int:
        try:
            return head_of(connection)
        except sqlite3.DatabaseError as error:
            if not isinstance(translate(error, self._path, "reading"), ForeignStore):
                raise
            self._note(error)
            return int(connection.execute("SELECT coalesce(max(position), -1) FROM records").fetchone()[0])

    async def read(self, stream_id: str, *, from_offset: int = 0) -> AsyncIterator[Record]:
        async for record in self._stream(stream_id, from_offset, await self.head_now()):
            yield record

    async def read_all(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        async for record in self._matching("", [], after):
            yield record

    async def query(self, wanted: Filter) -> AsyncIterator[Record]:
        """See ``StreamReader.query``.

        Looks text up in the index, and reads the records that the index does not cover.
        """
        async for record in self._query(wanted, NOTHING, back=False):
            yield record

    async def back(self, wanted: Filter, after: int = NOTHING) -> AsyncIterator[Record]:
        """Yield the records of ``query`` with a position above ``after``, newest first. Reads little more than what the
        caller takes."""
        async for record in self._query(wanted, after, back=True):
            yield record

    async def part_of(self, stream_id: str, from_offset: int, until: int) -> AsyncIterator[Record]:
        """Yield the records of ``read`` up to position ``until``."""
        async for record in self._stream(stream_id, from_offset, until):
            yield record

    async def between(self, wanted: Filter, after: int, until: int, *, back: bool = False) -> AsyncIterator[Record]:
        """Yield the records of ``query`` above position ``after``, up to ``until``; ``back``: the newest first."""
        async for record in self._query(wanted, after, back=back, until=until):
            yield record

    async def find(self, idempotency_key: str) -> Record | None:
        digest = key_digest(idempotency_key)
        row = await self._row("key", digest)
        return record_of(row, str(self._path)) if row is not None else None

    async def find_each(self, idempotency_keys: Sequence[str]) -> list[Record | None]:
        """What ``find`` returns for each key, in the order of the keys."""
        digests = [key_digest(key) for key in idempotency_keys]

        def rows(connection: sqlite3.Connection) -> list[tuple[Any, ...] | None]:
            return [connection.execute(f"{SELECT} WHERE key = ?", [each]).fetchone() for each in digests]

        nothing: list[tuple[Any, ...] | None] = [None] * len(digests)
        found = await self._ask(rows, nothing)
        return [record_of(row, str(self._path)) if row is not None else None for row in found]

    async def find_event(self, event_id: str) -> Record | None:
        if not bindable(event_id):
            return None
        row = await self._row("event_id", event_id)
        return record_of(row, str(self._path)) if row is not None else None

    async def event_ids(self, part: str = "") -> AsyncIterator[list[str]]:
        if not bindable(part):
            return
        last, head = "", await self.head_now()
        while rows := await self._fetch(_IDS, [last, head, part, _FETCH_IDS]):
            yield [identifier for (identifier,) in rows]
            last = rows[-1][0]

    def hint(self, kind: Kind, name: str) -> Snapshot | None:
        """A cursor or snapshot; ``None`` also if it cannot be read. Blocks. Raises ``ValueError`` for a bad name."""
        nothing: Snapshot | None = None
        with suppress(ForeignStore):
            return self._with_log(lambda connection: stored_hint(connection, kind, name), nothing)
        return nothing

    async def removal(self) -> Removal:
        try:
            return await self._ask(load, Removal())
        except ForeignStore as fault:
            self._note(fault)
            return Removal()

    async def removed(self) -> dict[str, StreamRemoval]:
        return (await self.removal()).gone()

    async def sizes(self, *, until: int = _ABOVE_ALL) -> list[StreamSize]:
        """See ``StreamStore.sizes``; up to position ``until``. Reads the whole table, but not the events."""
        rows, fault = await self._fetch_to_damage(
            "SELECT name, min(offset), max(offset) + 1, count(*), sum(length(event)), min(ts), max(ts)"
            " FROM records JOIN streams ON streams.id = records.stream WHERE position <= ?"
            " GROUP BY name ORDER BY name LIMIT ?",
            [until, -1],
        )
        if fault is None:
            return [StreamSize(*row) for row in rows]
        tally = Tally()
        try:
            async for record in self._scan(until, fault):
                event = record.event
                tally.add(event.stream_id, record.offset, event.ts, len(encode(event).canonical))
        except CorruptLog:
            if not self._to_damage:
                raise
        return tally.sizes()

    def let_go_of_search(self) -> None:
        """Close the full-text index, which may be deleted; the next search reopens it if it exists."""
        with self._lock:
            search, self._search = self._search, None
            if search is not None:
                search.close()

    async def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        for connection in (self._connection, self._search):
            if connection is not None:
                connection.close()
        self._connection = self._search = None

    # --- queries, from either end ---

    async def _query(
        self, wanted: Filter, after: int, *, back: bool, until: int | None = None
    ) -> AsyncIterator[Record]:
        head = await self.head_now() if until is None else until
        if wanted.streams:
            async for record in self._of_streams(wanted, head, back=back):
                if record.position > after:
                    yield record
                elif back:
                    return
            return
        where, values = self._conditions(await self._with_whole_types(wanted))
        if not all(bindable(value) for value in values if isinstance(value, str)):
            return
        indexed, begin = NOTHING, max(after, await self._before(wanted))
        is_checked = bool(wanted.times) or wanted.text is not None or wanted.trace_id is not None
        grams = trigrams(wanted.text) if wanted.text is not None and bindable(wanted.text) else None
        if grams is not None:
            indexed = min(await asyncio.to_thread(self._indexed), head)
        parts = [self._matching(where, values, max(begin, indexed), back=back, until=head)]
        if grams is not None and indexed > begin:
            parts.insert(1 if back else 0, self._found(grams, begin, indexed, back=back))
        for part in parts:
            async for record in part:
                if not is_checked or wanted.matches(record.event):
                    yield record

    # --- fetching ---

    async def head_now(self) -> int:
        """``head``, read on a thread."""
        return await asyncio.to_thread(lambda: self.head)

    async def _stream(
        self, stream_id: str, from_offset: int, head: int, *, back: bool = False
    ) -> AsyncIterator[Record]:
        where = "stream = (SELECT id FROM streams WHERE name = ?) AND offset >= ? AND offset < ? AND position <= ?"
        query = f"{SELECT} WHERE {where} ORDER BY offset{' DESC' if back else ''} LIMIT ?"
        # Few callers need many of the newest records, and they may ask many streams for them.
        low, high, most = max(from_offset, 0), _ABOVE_ALL, _FIRST_FETCH if back else _FETCH
        while bindable(stream_id):
            rows, fault = await self._fetch_to_damage(query, [stream_id, low, high, head, most])
            for row in rows:
                record = record_of(row, str(self._path))
                low, high = (low, record.offset) if back else (record.offset + 1, high)
                yield record
            if fault is not None and back:
                raise self._damaged(None, fault)
            if fault is not None:
                async for record in self._scan(head, fault):
                    if record.event.stream_id == stream_id and record.offset >= low:
                        yield record
                return
            if len(rows) < most:
                return
            most = min(most * 4, _FETCH)

    async def _scan(self, until: int, fault: sqlite3.Error) -> AsyncIterator[Record]:
        """Yield all records up to position ``until`` or to damage, without an index or another table, because of the
        ``fault`` of one. Raises the fault unless the caller reads to damage."""
        if not self._to_damage:
            raise self._damaged(None, fault)
        self._note(fault)
        async for record in self._matching("", [], NOTHING, until=until):
            yield record

    async def _of_streams(self, wanted: Filter, head: int, *, back: bool) -> AsyncIterator[Record]:
        """Yield matching records of ``wanted.streams``, merged by position, because the index orders them by offset."""
        names = dict.fromkeys(wanted.streams)
        reads = [self._stream(name, 0, head, back=back) for name in names]
        sign = -1 if back else 1
        waiting: list[tuple[int, int, Record]] = []
        for number, read in enumerate(reads):
            record = await anext(read, None)
            if record is not None:
                heappush(waiting, (sign * record.position, number, record))
        while waiting:
            _, number, first = waiting[0]
            if wanted.matches(first.event):
                yield first
            following = await anext(reads[number], None)
            if following is None:
                heappop(waiting)
            else:
                heapreplace(waiting, (sign * following.position, number, following))

    async def _with_whole_types(self, wanted: Filter) -> Filter:
        """``wanted`` with each prefix such as ``agent.*`` replaced by the existing types, because the index of one type
        is in position order."""
        if not any(name.endswith(".*") for name in wanted.types):
            return wanted
        nothing: list[str] = []
        types = await self._ask(lambda connection: [name for (name,) in connection.execute(self._types)], nothing)
        found = [name for name in types if any(type_matches(name, each) for each in wanted.types)]
        return replace(wanted, types=found or ["none"])

    async def _before(self, wanted: Filter) -> int:
        if wanted.since_ms is None or wanted.times:
            return NOTHING
        since_ms = wanted.since_ms
        return await self._ask(lambda connection: _before(connection, since_ms), NOTHING)

    async def _matching(
        self, where: str, values: list[Any], after: int, *, back: bool = False, until: int | None = None
    ) -> AsyncIterator[Record]:
        """Yield the records that match a condition, from after position ``after`` up to ``until``, or up to the head at
        the first fetch; ``back`` yields the newest first.

        With a condition, this method reads one range of positions at a time, and the range grows while few records
        match: SQLite may have to sort the whole range, regardless of the limit.
        """
        low, high = max(after, _BELOW_ALL), await self.head_now() if until is None else until
        reach, order = _LEAST_REACH, " DESC" if back else ""
        condition = f" AND {where}" if where else ""
        query = f"{SELECT} WHERE position > ? AND position <= ?{condition} ORDER BY position{order} LIMIT ?"
        while low < high:
            begin = max(high - reach, low) if back and where else low
            end = min(low + reach, high) if where and not back else high
            rows, fault = await self._fetch_to_damage(query, [begin, end, *values, _FETCH])
            previous = end + 1 if back else begin
            for row in rows:
                previous = self._following(previous, row[0], back=back)
                yield record_of(row, str(self._path))
            if fault is not None:
                raise self._damaged(None if where else previous + (-1 if back else 1), fault)
            if len(rows) < _FETCH:
                low, high, reach = (low, begin, reach * 4) if back else (end, high, reach * 4)
            else:
                reach = max(_LEAST_REACH, 2 * ((end - previous) if back else (previous - begin)))
                low, high = (low, previous - 1) if back else (previous, high)

    def _following(self, previous: int, position: int, *, back: bool = False) -> int:
        """Return ``position`` after checking that it comes next, because the rows of a damaged page may come in any
        order and repeat.
        """
        if position >= previous if back else position <= previous:
            at = previous + 1
            raise CorruptLog(str(self._path), at + 1, at, f"record {position} is out of order")
        return position

    async def _found(self, grams: str, after: int, indexed: int, *, back: bool) -> AsyncIterator[Record]:
        low, high, order = after, indexed, " DESC" if back else ""
        while low < high:
            positions = await asyncio.to_thread(self._search_rows, grams, low, high, indexed, order)
            if positions is None:  # read the remaining records without an index
                async for record in self._matching("", [], low, back=back, until=high):
                    yield record
                return
            if not positions:
                return
            marks = ", ".join("?" * len(positions))
            query = f"{SELECT} WHERE position IN ({marks}) ORDER BY position{order}"
            for row in await self._fetch(query, positions):
                yield record_of(row, str(self._path))
            low, high = (low, positions[-1] - 1) if back else (positions[-1], high)

    async def _row(self, column: str, value: str | bytes) -> tuple[Any, ...] | None:
        rows = await self._fetch(f"{SELECT} WHERE {column} = ? ORDER BY position LIMIT 1", [value])
        return rows[0] if rows else None

    async def _ask(self, ask: Callable[[sqlite3.Connection], Answer], without: Answer) -> Answer:
        return await asyncio.to_thread(self._with_log, ask, without)

    async def _fetch(self, query: str, values: list[Any]) -> list[Any]:
        rows, fault = await self._fetch_to_damage(query, values)
        if fault is not None:
            with translated(self._path, "reading"):
                raise fault
        return rows

    async def _fetch_to_damage(self, query: str, values: list[Any]) -> tuple[list[Any], sqlite3.Error | None]:
        """The rows of a query that ends with a limit, the last of ``values``; or those before a damaged page, and the
        damage.
        """
        return await asyncio.to_thread(self._rows, query, values)

    def _damaged(self, position: int | None, fault: sqlite3.Error) -> CorruptLog:
        line = None if position is None else position + 1
        return CorruptLog(
            str(self._path), line, position, f"the page that holds it cannot be read: {shown(str(fault))}"
        )

    def _rows(self, query: str, values: list[Any]) -> tuple[list[Any], sqlite3.Error | None]:
        nothing: tuple[list[Any], sqlite3.Error | None] = ([], None)
        return self._read(lambda connection: rows_to_damage(connection, query, values), nothing)

    def _with_log(self, ask: Callable[[sqlite3.Connection], Answer], without: Answer) -> Answer:
        def in_one_state(connection: sqlite3.Connection) -> Answer:
            connection.execute("BEGIN")
            try:
                return ask(connection)
            finally:
                connection.execute("ROLLBACK")  # SQLite commits nothing after it met damage

        return self._read(in_one_state, without)

    def _read(self, ask: Callable[[sqlite3.Connection], Answer], without: Answer) -> Answer:
        with self._lock, translated(self._path, "reading"):
            connection = self._connected()
            return without if connection is None else ask(connection)

    def _connected(self) -> sqlite3.Connection | None:
        place = place_of(self._path)
        if self._connection is not None and place not in (None, self._place):
            self._connection.close()  # somebody replaced the file, as with a backup
            self._connection = None
        if self._connection is None:
            self._connection, self._place = self._opened(), place
        if self._connection is None:
            if self._exists:
                raise StoreUnavailable(f"{self._path} was moved away while it was being read", "read the log again")
            return None
        self._exists = True
        return self._connection

    def _opened(self) -> sqlite3.Connection | None:
        self.damage = None
        try:
            return connect_to_read(self._path, len(STEPS))
        except ForeignStore as fault:
            if not self._to_damage:
                raise
            connection = connect_to_read(self._path, len(STEPS), damaged=True)
            self._note(fault)
            return connection

    def _note(self, fault: Exception) -> None:
        """Note that the file is damaged. Raises the fault unless the caller reads to damage."""
        if not self._to_damage:
            raise fault
        how = shown(str(fault.__cause__ or fault))
        self.damage = self.damage or CorruptLog(str(self._path), None, None, f"it is damaged ({how})")

    def _search_rows(self, grams: str, after: int, until: int, indexed: int, order: str) -> list[int] | None:
        """``None`` if the index is damaged, was deleted, or lacks some of these records."""
        query = "SELECT rowid FROM payloads WHERE payloads MATCH ? AND rowid > ? AND rowid <= ? ORDER BY rowid"
        with self._lock, suppress(ForeignStore), translated(self._store / SEARCH_FILE, "searching"):
            if self._search is None or self._search.execute("SELECT position FROM progress").fetchone()[0] < indexed:
                return None
            return [row[0] for row in self._search.execute(f"{query}{order} LIMIT ?", [grams, after, until, _FETCH])]
        return None

    def _indexed(self) -> int:
        path = self._store / SEARCH_FILE
        # Ignore errors, because the index is optional. Without an index, everything is read.
        with self._lock, suppress(StreamError, OSError), translated(path, "opening"):
            if self._search is None:
                self._search = connect_to_read(path, len(SEARCH_STEPS))
            if self._search is not None:
                found: int = self._search.execute("SELECT position FROM progress").fetchone()[0]
                return found
        return NOTHING


def _before(connection: sqlite3.Connection, since_ms: int) -> int:
    """A position with no record from ``since_ms`` on at or below it."""
    query = "SELECT position FROM records WHERE ts >= ? ORDER BY ts LIMIT 1"
    first = connection.execute(query, [since_ms]).fetchone()
    last = head_of(connection)
    if first is None:
        return last
    # The first record of that time may not be the first in the log. SQLite by itself goes through the log from its
    # beginning, also if only a few records are of that time.
    query = "SELECT min(position) FROM records WHERE ts >= ?"
    if last - first[0] < first[0]:
        query = "SELECT min(position) FROM records INDEXED BY records_by_ts WHERE ts >= ?"
    return int(connection.execute(query, [since_ms]).fetchone()[0]) - 1
