"""The database of a log: one file, one writing connection, and separate readers.

Records come from the journal, many in one transaction, with ``synchronous=FULL`` in WAL mode: once SQLite has committed
it, the journal may delete them. The writing connection alone checkpoints, between two transactions, once the WAL holds
``CHECKPOINT_PAGES``. Opening a database of any size reads a few rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

from streams.derived import Derived, Write
from streams.errors import BadStore, StoreUnavailable, StreamError
from streams.hashing import GENESIS, chain
from streams.retention import Entry, Removed
from streams.store import Record
from streams.stores.head import Head
from streams.stores.sqlite.cursors_and_snapshots import Due, Hints, NotSaved
from streams.stores.sqlite.deriving import Deriving, NotDerived
from streams.stores.sqlite.files import LOG_FILE, STEPS, connect_to_read, connect_to_write, translated
from streams.stores.sqlite.reader import SqliteReader
from streams.stores.sqlite.removal import SqliteRemover
from streams.stores.sqlite.removed import find, last_of, load, tail_in_spite_of_damage, tail_of
from streams.stores.sqlite.rows import SELECT, Row, insert, positions_of, record_of, row_of
from streams.stores.stored import Stored, as_record
from streams.system.threads import InTurn

CHECKPOINT_PAGES: Final = 8192
"""About how much the WAL holds when it is moved into the database file. A WAL holds many versions of an index page, and
a checkpoint moves each page once, so a larger WAL costs less. But closing takes longer, and so does opening after a
crash."""

PAGE_BYTES: Final = 4096

PAGES_OF_A_ROW: Final = 1
"""About how many pages a changed row changes, apart from those that a record fills."""

Result = TypeVar("Result")
Tail = tuple[int, bytes]
"""Where a stream continues: its next offset, and the hash before it."""


class Database(SqliteReader):
    """Writes ``store/log.db``. The caller holds the store's lock. Creating it blocks.

    ``changed`` is called after each step of a removal. ``derived`` are the tables that stand beside the records, in
    the same transactions. ``check`` raises ``StoreFenced`` if this process may no longer
    write.

    Raises:
        ForeignStore: the file is damaged, or another program or a newer version wrote it.
        StoreUnavailable: another program holds the file, or the file cannot be opened.
    """

    def __init__(self, store: Path, changed: Callable[[], None] = lambda: None, derived: Derived | None = None) -> None:
        super().__init__(store, exists=True)
        self.check: Callable[[], None] = lambda: None
        self.deriving: Deriving | None = None
        self.hints = Hints()
        self._changed = changed
        self._writing = connect_to_write(self._path, STEPS)
        self._lock_of_writer = Lock()
        self._stream_ids: dict[str, int] = {}
        self._wal_pages = 0
        """About how many WAL pages are not in the database file. The WAL's size does not show it: SQLite overwrites
        moved pages, and never shortens the file."""
        try:
            with translated(self._path, "opening"):
                position, hash_ = last_of(self._writing)
                self.has_removed = bool(load(self._writing).bases)
                if derived is not None:
                    self.deriving = Deriving(self._writing, self._path, derived)
        except BaseException:
            self._writing.close()
            raise
        self.last = Head(position, hash_.hex())
        """The last record, even if it was pruned."""
        self._turns = InTurn()
        self._remover = SqliteRemover(store, self._writing, self.hints, self._turns, self._removed_some)
        # Finish an interrupted removal. If a full disk or a reader prevents that, the next removal or opening finishes
        # it. Damage in the records to remove must not prevent writing either. `verify` reports both.
        with suppress(OSError, StoreUnavailable, BadStore):
            self._remover.resume(lambda work: work())

    @property
    def head(self) -> int:
        return self.last.position

    async def head_now(self) -> int:
        return self.head

    def _removed_some(self) -> None:
        self.has_removed = True
        if self.deriving is not None:
            self.deriving.dropped()
        self._changed()

    # --- moving records in ---

    def move(self, records: Sequence[Stored]) -> None:
        """Write whole batches that follow the last record, in one transaction, which proves that each record continues
        its stream's hash chain. Blocks.

        Raises:
            ValueError: a record does not follow, or does not continue its stream; nothing was written.
            OSError, StreamError: the file cannot be written; nothing was written.
        """
        with self._lock_of_writer, translated(self._path, "writing"):
            self._begin()
            deriving = self.deriving if self.deriving is not None and self.deriving.is_level(self.head) else None
            hints = self.hints.due(records[-1].position)
            while True:
                try:
                    return self._write(records, deriving, hints)
                except NotDerived as refusal:
                    cause = refusal.__cause__
                    self._undone(deriving, cause if isinstance(cause, Exception) else refusal)
                    deriving = None
                except NotSaved:
                    self._undone(deriving)
                    hints = []
                except BaseException:
                    self._undone(deriving)
                    raise

    def _undone(self, deriving: Deriving | None, fault: Exception | None = None) -> None:
        if deriving is not None:
            deriving.undone(fault)

    @property
    def has_hints(self) -> bool:
        """True if there are hints to write, whose records are here."""
        return bool(self.hints.due(self.head))

    def write_hints(self) -> None:
        """Write the hints that wait and whose records are here, in a transaction of their own. Blocks.

        Raises:
            OSError, StreamError: the file cannot be written.
        """
        with self._lock_of_writer, translated(self._path, "writing"):
            due = self.hints.due(self.head)
            if not due:
                return
            self._begin()
            changes = self._writing.total_changes
            try:
                with self._writing:
                    self._writing.execute("BEGIN IMMEDIATE")
                    self.hints.write(self._writing, due)
            except NotSaved as refusal:
                raise refusal.__cause__ or refusal from None
            self._hints_written(due, changes)

    def _hints_written(self, due: Due, changes: int) -> None:
        self.hints.written(due)
        self._wal_pages += sum([len(noted.hint.state) for _, noted in due]) // PAGE_BYTES
        self._wal_pages += (self._writing.total_changes - changes) * PAGES_OF_A_ROW

    @property
    def derives_in(self) -> float | None:
        """In how many seconds to call ``derive``; ``None`` if there is nothing to do."""
        return None if self.deriving is None else self.deriving.due_in(self.head)

    def derive(self) -> None:
        """Do one step towards derived tables that are level with the records, in one transaction. Blocks."""
        if self.deriving is None:
            return
        with self._lock_of_writer:
            changes = self._writing.total_changes
            self.deriving.catch_up(self.head, self._begin)
            self._wal_pages += (self._writing.total_changes - changes) * PAGES_OF_A_ROW

    def _begin(self) -> None:
        """Get ready for a transaction."""
        self.check()
        if self._wal_pages > CHECKPOINT_PAGES:
            # SQLite's automatic checkpoint hides a failed sync, and then trusts the next one, which may wrongly
            # succeed.
            self._writing.execute("PRAGMA wal_checkpoint(PASSIVE)")
            self._wal_pages = 0

    def _write(self, records: Sequence[Stored], deriving: Deriving | None, hints: Due) -> None:
        last, changes = records[-1], self._writing.total_changes
        self._writing.execute("BEGIN IMMEDIATE")
        try:
            rows, tails = self._rows_of(records)
            self._insert(rows, tails, last)
            if deriving is not None:
                deriving.apply([as_record(record) for record in records], last.position)
            self.hints.write(self._writing, hints)
            self._writing.execute("COMMIT")
        except BaseException:
            self._stream_ids.clear()
            with suppress(sqlite3.Error):
                self._writing.rollback()
            raise
        if deriving is not None:
            deriving.done(last.position)
        self._hints_written(hints, changes)
        self._wal_pages += sum([len(row[-1]) for row in rows]) // PAGE_BYTES
        self.last = Head(last.position, last.hash.hex())

    def _rows_of(self, records: Sequence[Stored]) -> tuple[list[Row], dict[str, Tail]]:
        rows: list[Row] = []
        tails: dict[str, Tail] = {}
        following = self.last.position + 1
        for record in records:
            if record.position != following:
                raise ValueError(f"record {record.position} does not follow record {following - 1}")
            following += 1
            name = record.keys.stream_id
            offset, previous = tails.get(name) or tail_of(self._writing, name)
            if record.offset != offset or chain(previous, record.digest_form()) != record.hash:
                raise ValueError(f"record {record.position} does not continue its stream")
            tails[name] = (offset + 1, record.hash)
            rows.append(row_of(record, self._stream_id(name)))
        return rows, tails

    def _insert(self, rows: Sequence[Row], tails: Mapping[str, Tail], last: Stored) -> None:
        insert(self._writing, rows)
        self._writing.executemany(
            "UPDATE streams SET next_offset = ?, hash = ? WHERE id = ?",
            [(*tail, self._stream_id(name)) for name, tail in tails.items()],
        )
        self._writing.execute("UPDATE head SET position = ?, hash = ?", [last.position, last.hash])

    def _stream_id(self, name: str) -> int:
        found = self._stream_ids.get(name)
        if found is None:
            row = self._writing.execute("SELECT id FROM streams WHERE name = ?", [name]).fetchone()
            if row is None:
                row = self._writing.execute(
                    "INSERT INTO streams (name, next_offset, hash) VALUES (?, 0, ?) RETURNING id", [name, GENESIS]
                ).fetchone()
            found = self._stream_ids[name] = int(row[0])
        return found

    # --- removing ---

    async def prune(self, cuts: Mapping[str, int], *, at_ms: int, change: Write | None = None) -> Removed:
        """See ``Log.prune``; only what was moved here."""
        return await self._turns.run(lambda: self._remover.prune(cuts, at_ms, self._exclusively, change))

    async def forget(
        self,
        streams: Collection[str],
        *,
        at_ms: int,
        positions: Collection[int] = (),
        change: Write | None = None,
    ) -> Removed:
        """See ``Log.forget``; only what was moved here."""
        return await self._turns.run(lambda: self._remover.forget(streams, positions, at_ms, self._exclusively, change))

    def _exclusively(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` while nothing is moved. First the reader closes the search index, which ``work`` may delete."""
        self.let_go_of_search()
        with self._lock_of_writer:
            self.check()
            return work()

    # --- closing ---

    async def end_removals(self) -> None:
        """Stop a running removal at its next step. The next opening finishes it."""
        await self._turns.close()

    async def close(self) -> None:
        await self.end_removals()
        await super().close()
        with translated(self._path, "closing"):
            self._writing.close()

    def close_at_once(self) -> None:
        """Release the files of a database that nobody has read."""
        self._writing.close()


class Known:
    """What planning an append asks the database: where a stream continues, and what is stored under a key.

    It has a connection of its own, because a transaction that moves records may be running on another thread. The
    methods block, briefly; use them from one thread at a time. Damage stops recording only if neither an index nor its
    table can be read. Until then, ``fault`` says that it is slow.
    """

    def __init__(self, store: Path) -> None:
        self._path = store / LOG_FILE
        connection = connect_to_read(self._path, len(STEPS))
        if connection is None:
            raise StoreUnavailable(f"{self._path} was moved away while it was being opened", "open the log again")
        self._connection = connection
        self.fault: str | None = None

    def tail(self, stream_id: str) -> Tail:
        """(next offset, last hash) of a stream; (0, GENESIS) for a new one.

        Raises:
            StoreUnavailable: the database cannot be read.
        """
        try:
            with translated(self._path, "reading"):
                try:
                    return tail_of(self._connection, stream_id)
                except sqlite3.DatabaseError:
                    return tail_in_spite_of_damage(self._connection, stream_id)
        except (StreamError, OSError) as error:
            raise StoreUnavailable(
                f"where the stream {stream_id} continues cannot be read: {error}", "run `durable-stream verify`"
            ) from error

    def positions(self, digests: Sequence[bytes]) -> dict[bytes, int]:
        """Where the records with these keys are. Keys that are not stored are left out.

        Raises:
            StoreUnavailable: neither the index of keys nor the whole table can be read.
        """
        fault = None
        for scan in (False, True):
            try:
                with translated(self._path, "reading"):
                    found = positions_of(self._connection, digests, scan=scan)
            except (StreamError, OSError) as error:
                fault = str(error)
            else:
                self.fault = fault
                return found
        raise StoreUnavailable(f"keys cannot be looked up: {fault}", "run `durable-stream verify`")

    def at(self, position: int) -> Record | None:
        """The record at a position, or ``None`` if it was pruned. Raises ``StoreUnavailable``."""
        return self._one(
            lambda: self._connection.execute(f"{SELECT} WHERE position = ?", [position]).fetchone(),
            lambda row: record_of(row, str(self._path)),
        )

    def hash_at(self, position: int) -> str | None:
        """The hash of the record at a position; ``None`` if it was pruned or cannot be read."""
        with suppress(StreamError, OSError), translated(self._path, "reading"):
            row = self._connection.execute("SELECT hash FROM records WHERE position = ?", [position]).fetchone()
            if row is not None and isinstance(row[0], bytes):
                return row[0].hex()
        return None

    def removed(self, digest: bytes) -> Entry | None:
        """What is left of a pruned record with this key. Raises ``StoreUnavailable``."""
        return self._one(lambda: find(self._connection, digest), lambda entry: entry)

    def _one(self, ask: Callable[[], Result | None], made: Callable[[Result], Answer]) -> Answer | None:
        try:
            with translated(self._path, "reading"):
                found = ask()
            return None if found is None else made(found)
        except (StreamError, OSError) as error:
            raise StoreUnavailable(f"a stored record cannot be read: {error}", "run `durable-stream verify`") from error

    def close(self) -> None:
        self._connection.close()


Answer = TypeVar("Answer")
