"""Read a sqlite log, in the sidecar and in other processes at the same time.

A reader cannot write and never repairs anything. A reader sees committed records, which with ``synchronous=FULL`` are
durable. Reading fetches a few rows at a time, and each fetch is a separate query that continues after the last
position. So no read transaction stays open between fetches, and the writer's checkpoints never wait for a reader.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from heapq import heappop, heappush, heapreplace
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar
from zlib import crc32

from streams.errors import CorruptLog, StoreUnavailable, StreamError
from streams.query import Filter, type_matches
from streams.retention import Removal, StreamRemoval, StreamSize
from streams.store import MAX_BATCH, NOTHING, Record
from streams.stores.keys import key_digest
from streams.stores.sqlite.at_rest import ReadConnection
from streams.stores.sqlite.files import LOG_FILE, SEARCH_FILE, SEARCH_STEPS, STEPS, connect_to_read, translated
from streams.stores.sqlite.keys import find_key, find_known
from streams.stores.sqlite.removed import head_of, load
from streams.stores.sqlite.rows import SELECT, bindable, conditions, record_of, trigrams
from streams.stores.stored import Stored

_FETCH = 256
_FETCH_IDS = 4096
_ENTRIES = 4096
_BELOW_ALL = -(2**63)
_LEAST_REACH = 1024

_TYPES = (
    "WITH RECURSIVE types (name) AS (SELECT min(type) FROM records UNION ALL"
    " SELECT (SELECT min(type) FROM records WHERE type > name) FROM types WHERE name IS NOT NULL)"
    " SELECT name FROM types WHERE name IS NOT NULL"
)
"""Selects the existing types, with one index step for each type."""

TAILS: Final = (
    # CROSS JOIN makes SQLite go stream by stream. The order that SQLite would choose visits every record.
    "SELECT name, offset, hash FROM streams CROSS JOIN records ON records.stream = streams.id AND offset ="
    " (SELECT max(offset) FROM records AS all_of_it WHERE all_of_it.stream = streams.id)"
)
"""The last record of every stream."""

_POSITIONS = "SELECT position FROM records"

Answer = TypeVar("Answer")


class SqliteReader:
    """``StreamReader`` over ``store/log.db``; a directory without this file reads as an empty log.

    Raises:
        ForeignStore: the file is damaged, or another program or a newer version wrote it.
        StoreUnavailable: the file cannot be opened.
    """

    def __init__(self, store: Path, *, exists: bool = False, alone: bool = False) -> None:
        """``exists``: the log once existed, so a missing file means that the log is gone, not empty. ``alone``: see
        ``connect_to_read``."""
        self._store, self._path, self._alone = store, store / LOG_FILE, alone
        self._exists = exists
        """True if the file exists or once existed. In this case, a missing file means that the log is gone, not
        empty."""
        self._connection: ReadConnection | None = None
        self._place: tuple[int, int] | None = None
        self._search: ReadConnection | None = None
        self._lock = Lock()

    @property
    def head(self) -> int:
        """See ``StreamReader.head``. Read from the file at each call."""
        return self._with_log(head_of, NOTHING)

    async def read(self, stream_id: str, *, from_offset: int = 0) -> AsyncIterator[Record]:
        """See ``StreamReader.read``."""
        async for record in self._stream(stream_id, from_offset, await self._head_now()):
            yield record

    async def read_all(self, *, after: int = NOTHING) -> AsyncIterator[Record]:
        """See ``StreamReader.read_all``."""
        async for record in self._matching("", [], after):
            yield record

    async def query(self, wanted: Filter) -> AsyncIterator[Record]:
        """See ``StreamReader.query``.

        Looks text up in the index, and reads the records that the index does not cover.
        """
        if wanted.streams:
            async for record in self._of_streams(wanted):
                yield record
            return
        where, values = conditions(await self._with_whole_types(wanted))
        if not all(bindable(value) for value in values if isinstance(value, str)):
            return
        if wanted.text is None:
            async for record in self._matching(where, values, await self._before(wanted)):
                if wanted.trace_id is None or wanted.matches(record.event):
                    yield record
            return
        indexed = NOTHING
        grams = trigrams(wanted.text) if bindable(wanted.text) else None
        if grams is not None:
            indexed = await asyncio.to_thread(self._indexed)
            if indexed > NOTHING:
                async for record in self._found(wanted, grams, indexed):
                    yield record
        async for record in self._matching(where, values, max(indexed, await self._before(wanted))):
            if wanted.matches(record.event):
                yield record

    async def newest(self, wanted: Filter, count: int) -> list[Record] | None:
        """The last ``count`` records of ``query``, in its order; ``None`` if only a full read can find them."""
        if wanted.streams or wanted.text is not None or wanted.trace_id is not None or count > _FETCH:
            return None
        where, values = conditions(await self._with_whole_types(wanted))
        if not all(bindable(value) for value in values if isinstance(value, str)):
            return []
        condition = f" WHERE {where}" if where else ""
        # Fetch the positions first: they are in the indexes, and SQLite sorts them without reading the events.
        found = await self._fetch(f"{_POSITIONS}{condition} ORDER BY position DESC LIMIT ?", [*values, count])
        marks = ", ".join("?" * len(found))
        rows = await self._fetch(
            f"{SELECT} WHERE position IN ({marks}) ORDER BY position", [position for (position,) in found]
        )
        return [record_of(row, str(self._path)) for row in rows]

    async def find(self, idempotency_key: str) -> Record | None:
        """See ``StreamReader.find``."""
        digest = key_digest(idempotency_key)
        row = await asyncio.to_thread(self._with_log, lambda connection: find_key(connection, SELECT, digest), None)
        return record_of(row, str(self._path)) if row is not None else None

    async def find_known(self, keys: Sequence[str], recent: Callable[[bytes], int | None]) -> list[Record | None]:
        """See ``StreamStore.find_each``. ``recent`` gives the places of keys that only the writer knows yet."""
        digests = [key_digest(key) for key in keys]
        places = [(digest, recent(digest)) for digest in digests]
        nothing: list[tuple[Any, ...] | None] = [None] * len(places)
        rows = await asyncio.to_thread(
            self._with_log,
            lambda connection: [find_known(connection, SELECT, *place) for place in places],
            nothing,
        )
        return [record_of(row, str(self._path)) if row is not None else None for row in rows]

    async def find_event(self, event_id: str) -> Record | None:
        """The record with the given event id, or ``None``."""
        rows = await self._fetch(f"{SELECT} WHERE event_id = ?", [event_id]) if bindable(event_id) else []
        return record_of(rows[0], str(self._path)) if rows else None

    async def event_ids(self) -> AsyncIterator[list[str]]:
        """Yield all event ids, many at a time, in no particular order. Reads only their index."""
        last = ""
        while True:
            rows = await self._fetch(
                "SELECT event_id FROM records WHERE event_id > ? ORDER BY event_id LIMIT ?", [last, _FETCH_IDS]
            )
            yield [identifier for (identifier,) in rows]
            if len(rows) < _FETCH_IDS:
                return
            last = rows[-1][0]

    async def copy_out(self, *, after: int, most: int) -> AsyncIterator[list[Stored]]:
        """See ``Copyable.copy_out``."""
        head = await self._head_now()
        records: list[Stored] = []
        while after < head:
            # A batch has at most ``MAX_BATCH`` records, so each fetch contains at least one whole batch.
            rows = await self._fetch(
                "SELECT crc, position, offset, hash, batch_index, batch_count, event FROM records"
                " WHERE position > ? AND position <= ? ORDER BY position LIMIT ?",
                [after, head, most + MAX_BATCH],
            )
            if not rows:
                if (await self.removal()).ranges.covers(after + 1, head + 1):
                    return
                raise CorruptLog(str(self._path), after + 2, after + 1, f"records {after + 1} to {head} are missing")
            records = []
            previous = after
            for crc, *fields in rows:
                record = Stored(*fields)
                previous = self._following(previous, record.position)
                if not isinstance(record.event, bytes) or crc32(record.event) != crc:
                    raise CorruptLog(str(self._path), record.position + 1, record.position, "wrong checksum")
                records.append(record)
            if len(rows) == most + MAX_BATCH:
                cut = records[-1].begun()
                while records[-1].begun() == cut:
                    records.pop()
            after = records[-1].position
            yield records

    async def tails(self, among: Collection[str] | None = None) -> dict[str, tuple[int, bytes]]:
        """See ``Copyable.tails``."""
        return await asyncio.to_thread(self._with_log, lambda connection: _tails(connection, among), {})

    async def removal(self) -> Removal:
        """See ``Copyable.removal``."""
        return await asyncio.to_thread(self._with_log, _removal, Removal())

    async def removed(self) -> dict[str, StreamRemoval]:
        """See ``StreamReader.removed``."""
        return (await self.removal()).gone()

    async def sizes(self) -> list[StreamSize]:
        """See ``StreamStore.sizes``. Reads the whole table, but not the events."""
        rows = await self._fetch(
            "SELECT name, min(offset), max(offset) + 1, count(*), sum(length(event)), min(ts), max(ts)"
            " FROM records JOIN streams ON streams.id = records.stream GROUP BY name ORDER BY name",
            [],
        )
        return [StreamSize(*row) for row in rows]

    def let_go_of_search(self) -> None:
        """Close the full-text index, which may be deleted; the next search reopens it if it exists."""
        with self._lock:
            search, self._search = self._search, None
            if search is not None:
                search.close()

    def let_go(self) -> None:
        """Close the files, unless one is being read now. The next read opens the files that exist at that time."""
        if self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()

    async def close(self) -> None:
        """See ``StreamReader.close``."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        for connection in (self._connection, self._search):
            if connection is not None:
                connection.close()
        self._connection = self._search = None

    # --- fetching ---

    async def _head_now(self) -> int:
        return await asyncio.to_thread(lambda: self.head)

    async def _stream(self, stream_id: str, from_offset: int, head: int) -> AsyncIterator[Record]:
        where = "stream = (SELECT id FROM streams WHERE name = ?) AND offset >= ? AND position <= ?"
        last = max(from_offset, 0)
        while bindable(stream_id):
            rows = await self._fetch(f"{SELECT} WHERE {where} ORDER BY offset LIMIT ?", [stream_id, last, head, _FETCH])
            for row in rows:
                record = record_of(row, str(self._path))
                last = record.offset + 1
                yield record
            if len(rows) < _FETCH:
                return

    async def _of_streams(self, wanted: Filter) -> AsyncIterator[Record]:
        """Yield matching records of ``wanted.streams``, merged by position, because the index orders them by offset."""
        head = await self._head_now()
        reads = [self._stream(stream, 0, head) for stream in dict.fromkeys(wanted.streams)]
        waiting: list[tuple[int, int, Record]] = []
        for number, read in enumerate(reads):
            record = await anext(read, None)
            if record is not None:
                heappush(waiting, (record.position, number, record))
        while waiting:
            _, number, first = waiting[0]
            if wanted.matches(first.event):
                yield first
            following = await anext(reads[number], None)
            if following is None:
                heappop(waiting)
            else:
                heapreplace(waiting, (following.position, number, following))

    async def _with_whole_types(self, wanted: Filter) -> Filter:
        """``wanted`` with each prefix such as ``agent.*`` replaced by the existing types, because the index of one type
        is in position order."""
        if not any(name.endswith(".*") for name in wanted.types):
            return wanted
        types = [row[0] for row in await self._fetch(_TYPES, [])]
        found = [name for name in types if any(type_matches(name, each) for each in wanted.types)]
        return replace(wanted, types=found or ["none"])

    async def _before(self, wanted: Filter) -> int:
        """A position below all records in ``wanted``'s range of times. Computed once, not for each fetch."""
        if wanted.since_ms is None:
            return NOTHING
        found = (await self._fetch("SELECT min(position) FROM records WHERE ts >= ?", [wanted.since_ms]))[0][0]
        return await self._head_now() if found is None else found - 1

    async def _matching(self, where: str, values: list[Any], after: int) -> AsyncIterator[Record]:
        """Yield the records that match a condition, from after position ``after`` up to the head at the first fetch.

        With a condition, this method reads one range of positions at a time, and the range grows while few records
        match: SQLite may have to sort the whole range, regardless of the limit.
        """
        head = await self._head_now()
        condition = f" AND {where}" if where else ""
        query = f"{SELECT} WHERE position > ? AND position <= ?{condition} ORDER BY position LIMIT ?"
        last, reach = max(after, _BELOW_ALL), _LEAST_REACH
        while last < head:
            until = min(last + reach, head) if where else head
            rows = await self._fetch(query, [last, until, *values, _FETCH])
            previous = last
            for row in rows:
                previous = self._following(previous, row[0])
                yield record_of(row, str(self._path))
            if len(rows) < _FETCH:
                last, reach = until, reach * 4
            else:
                reach = max(_LEAST_REACH, 2 * (rows[-1][0] - last))
                last = rows[-1][0]

    def _following(self, previous: int, position: int) -> int:
        """Return ``position`` after checking that it comes next, because the rows of a damaged page may come in any
        order and repeat.
        """
        if position <= previous:
            at = previous + 1
            raise CorruptLog(str(self._path), at + 1, at, f"record {position} is out of order")
        return position

    async def _found(self, wanted: Filter, grams: str, indexed: int) -> AsyncIterator[Record]:
        """Yield full-text matches up to ``indexed``, checked against the whole filter."""
        last = NOTHING
        while True:
            positions = await asyncio.to_thread(self._search_rows, grams, last, indexed)
            if positions is None:  # a removal deleted the index, so read the remaining records without an index
                async for record in self._matching("", [], last):
                    if record.position > indexed:
                        return
                    if wanted.matches(record.event):
                        yield record
                return
            if not positions:
                return
            marks = ", ".join("?" * len(positions))
            for row in await self._fetch(f"{SELECT} WHERE position IN ({marks}) ORDER BY position", positions):
                record = record_of(row, str(self._path))
                if wanted.matches(record.event):
                    yield record
            last = positions[-1]

    async def _fetch(self, query: str, values: list[Any]) -> list[Any]:
        return await asyncio.to_thread(self._rows, query, values)

    def _rows(self, query: str, values: list[Any]) -> list[Any]:
        return self._read(lambda connection: connection.execute(query, values).fetchall(), [])

    def _with_log(self, ask: Callable[[sqlite3.Connection], Answer], without: Answer) -> Answer:
        """What ``ask`` finds in one state of the log, or ``without`` if there is no log."""

        def in_one_state(connection: sqlite3.Connection) -> Answer:
            connection.execute("BEGIN")
            try:
                return ask(connection)
            finally:
                connection.execute("COMMIT")

        return self._read(in_one_state, without)

    def _read(self, ask: Callable[[sqlite3.Connection], Answer], without: Answer) -> Answer:
        """Return what ``ask`` finds, retried if a writer began in the meantime, or ``without`` if there is no log."""
        while True:
            with self._lock, translated(self._path, "reading"):
                connection = self._connected()
                if connection is None:
                    return without
                try:
                    answer = ask(connection)
                except sqlite3.Error:
                    if connection.is_right(self._path):
                        raise
                    continue
                if connection.is_right(self._path):
                    return answer

    def _connected(self) -> ReadConnection | None:
        """The log's connection; ``None`` if there is no log. Call it with the lock held."""
        place = _place(self._path)
        if self._connection is not None and (
            # The path names another file if the log was migrated away and back and the old store was discarded.
            place not in (None, self._place) or not self._connection.can_go_on(self._path)
        ):
            self._connection.close()
            self._connection = None
        if self._connection is None:
            self._connection, self._place = connect_to_read(self._path, len(STEPS), alone=self._alone), place
        if self._connection is None:
            if self._exists:
                raise StoreUnavailable(f"{self._path} was moved away while it was being read", "read the log again")
            return None
        self._exists = True
        return self._connection

    def _search_rows(self, grams: str, after: int, until: int) -> list[int] | None:
        """The index's next positions for ``grams``; ``None`` if the index was deleted in the meantime."""
        query = "SELECT rowid FROM payloads WHERE payloads MATCH ? AND rowid > ? AND rowid <= ? ORDER BY rowid LIMIT ?"
        with self._lock, translated(self._store / SEARCH_FILE, "searching"):
            if self._search is None or not self._search.can_go_on(self._store / SEARCH_FILE):
                return None
            if self._search.execute("SELECT position FROM progress").fetchone()[0] < until:
                return None
            found = [row[0] for row in self._search.execute(query, [grams, after, until, _FETCH])]
            return found if self._search.is_right(self._store / SEARCH_FILE) else None

    def _indexed(self) -> int:
        """The last position that the full-text index holds; ``NOTHING`` without an index."""
        path = self._store / SEARCH_FILE
        # Ignore errors, because the index is optional. Without an index, everything is read.
        with self._lock, suppress(StreamError, OSError), translated(path, "opening"):
            if self._search is not None and not self._search.can_go_on(path):
                self._search.close()
                self._search = None
            if self._search is None:
                self._search = connect_to_read(path, len(SEARCH_STEPS))
            if self._search is not None:
                found: int = self._search.execute("SELECT position FROM progress").fetchone()[0]
                return found
        return NOTHING


def _place(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file that ``path`` now names; ``None`` if there is none."""
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None


def _removal(connection: sqlite3.Connection) -> Removal:
    return load(connection)


def _tails(connection: sqlite3.Connection, among: Collection[str] | None) -> dict[str, tuple[int, bytes]]:
    if among is None:
        rows = connection.execute(TAILS).fetchall()
    else:
        rows = [row for name in among for row in connection.execute(f"{TAILS} WHERE name = ?", [name])]
    kept = {name: (offset + 1, hash_) for name, offset, hash_ in rows}
    pruned = {
        name: (base.offset, base.hash)
        for name, base in load(connection).bases.items()
        if among is None or name in among
    }
    return pruned | kept
