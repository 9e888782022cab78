"""The sqlite backend: one file, one writing connection, and separate readers.

A commit is one transaction with ``synchronous=FULL`` in WAL mode, so it is durable once SQLite has committed it. Then
the store writes the head file (see ``head.py``). Only the writing connection checkpoints, between two commits, once the
WAL holds ``CHECKPOINT_PAGES``. Opening a log of any size reads a few rows.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from streams.errors import BadStore, CorruptLog, StoreUnavailable, StreamError
from streams.hashing import GENESIS, chain
from streams.retention import Removal, Removed
from streams.store import Record
from streams.stores.commit import GroupCommit, GroupedStore, Pending, WouldStall
from streams.stores.head import Head
from streams.stores.keys import key_digest
from streams.stores.plan import (
    Known,
    Placed,
    Plan,
    as_record,
    plan,
)
from streams.stores.sqlite.files import BUSY_MS, STEPS, connect_to_write, translated
from streams.stores.sqlite.head import HeadFile, make_head_file
from streams.stores.sqlite.reader import SqliteReader
from streams.stores.sqlite.removal import SqliteRemover
from streams.stores.sqlite.removed import HEAD, find, head_of, load
from streams.stores.sqlite.rows import INSERT, SELECT, Row, positions_of, record_of, row_of, stored_row
from streams.stores.stored import Stored
from streams.system.threads import InTurn

CHECKPOINT_PAGES: Final = 8192
"""About how much the WAL holds when the writer moves it into the database file. A WAL holds many versions of an index
page, and a checkpoint moves each page once, so a larger WAL costs less. But closing takes longer, and so does opening
after a crash."""

PAGE_BYTES: Final = 4096

PAGES_OF_A_ROW: Final = 1
"""How many index pages a row changes, apart from its own page: slightly more than measured for a commit of 64
records."""

Result = TypeVar("Result")


class SqliteStore(GroupedStore, SqliteReader):
    """The writing backend over ``store/log.db``. Open it with ``open``; the caller holds the store's lock."""

    def __init__(self, store: Path) -> None:
        GroupedStore.__init__(self)
        SqliteReader.__init__(self, store, exists=True)
        self.head_lost = make_head_file(store)
        self._writing = connect_to_write(self._path, STEPS)
        self._head = self._stored_head()
        self._next = self._head + 1
        self._tails: dict[str, tuple[int, bytes]] = {}
        removal = self._load_removal()
        self._has_entries = bool(removal.bases)
        try:
            self._check_end(removal.ranges.end)
            self._head_file = HeadFile(store, self._writing)
        except BaseException:
            self._writing.close()
            raise
        self._last_hash = b""
        """The hash of the last record planned since opening."""
        self._turns = InTurn()
        self._remover = SqliteRemover(store, self._writing, self._turns, self._removed_some)
        # Finish an interrupted removal. If a full disk or a reader prevents that, the next removal or opening finishes
        # it. Damage in the records to remove must not prevent writing either. `verify` reports both.
        with suppress(OSError, StoreUnavailable, BadStore):
            self._remover.resume(lambda work: work())
        self._stream_ids: dict[str, int] = {}
        self._fresh: dict[bytes, Placed] = {}
        self._touched: set[str] = set()
        """The streams that the current commit writes to."""
        self._digests: dict[str, bytes] = {}
        self._stored: dict[bytes, int] = {}
        """For the current commit: ``_digests`` has the digests of its keys, and ``_stored`` maps the digests of keys
        that were stored before to the positions of their records."""
        self._busy_ms = BUSY_MS
        """How long the writing connection waits for another program that holds the file."""
        self._wal_pages = 0
        """About how many WAL pages are not in the database file. The WAL's size does not show it: SQLite overwrites
        moved pages, and never shortens the file."""
        self._commits = GroupCommit(self._commit, self._abandon, store.name, may_stall=self._is_tidying_due)

    @classmethod
    async def open(cls, store: Path) -> SqliteStore:
        """Open the log for writing, creating it if missing.

        Raises:
            CorruptLog: records are missing at the end, as the head file shows, or among pruned ones.
            ForeignStore: the file is damaged, or another program or a newer version wrote it.
            StoreUnavailable: another program holds the file, or the file cannot be opened.
        """
        return await asyncio.to_thread(cls, store)

    def _stored_head(self) -> int:
        with translated(self._path, "opening"):
            return head_of(self._writing)

    def last_record(self) -> Head:
        """The last record, also if it was pruned."""
        with translated(self._path, "reading"):
            position, hash_ = self._writing.execute(HEAD).fetchone()
        return Head(position, hash_.hex())

    @property
    def has_removed(self) -> bool:
        """True if records were pruned, so that a key may be known without its record."""
        return self._has_entries

    def abandon_opening(self) -> None:
        """Release the files of a store that nothing was appended to. Blocks."""
        self._commits.end()
        self._head_file.close()
        self._writing.close()

    def _load_removal(self) -> Removal:
        with translated(self._path, "opening"):
            return load(self._writing)

    def _removed_some(self) -> None:
        self._tails.clear()
        self.recent.clear()
        self._has_entries = True

    # --- reading ---

    @property
    def head(self) -> int:
        return self._head

    async def find_each(self, idempotency_keys: Sequence[str]) -> list[Record | None]:
        digests = [key_digest(key) for key in idempotency_keys]
        nothing: list[tuple[Any, ...] | None] = [None] * len(digests)
        rows = await asyncio.to_thread(
            self._with_log,
            lambda connection: [connection.execute(f"{SELECT} WHERE key = ?", [each]).fetchone() for each in digests],
            nothing,
        )
        return [record_of(row, str(self._path)) if row is not None else None for row in rows]

    # --- planning (see ``Tails``), called only by the writer thread ---

    def next_position(self) -> int:
        return self._next

    def tail(self, stream_id: str) -> tuple[int, bytes]:
        tail = self._tails.get(stream_id)
        if tail is None:
            query = "SELECT next_offset, hash FROM streams WHERE name = ?"
            tail = self._writing.execute(query, [stream_id]).fetchone() or (0, GENESIS)
            self._tails[stream_id] = tail
        return tail

    def known(self, key: str) -> Known | None:
        digest = self._digests[key]
        fresh = self._fresh.get(digest)
        if fresh is not None:
            return fresh
        if digest in self._stored:
            row = self._writing.execute(f"{SELECT} WHERE position = ?", [self._stored[digest]]).fetchone()
            return record_of(row, str(self._path))
        return find(self._writing, digest) if self._has_entries else None

    # --- writing ---

    def _commit(self, group: Sequence[Pending]) -> float:
        with translated(self._path, "writing"):
            if self._is_tidying_due():
                self._tidy()
            self._begin()
            decided, rows = self._decide(group)
            if rows:
                self._write(rows, {name: self._tails[name] for name in self._touched}, self._next - 1, self._last_hash)
            begun = time.perf_counter()
            self._writing.execute("COMMIT")
            seconds = time.perf_counter() - begun
            if rows:
                self._head_file.write(self._next - 1, self._last_hash)
            # Note the keys before the head moves, because whoever sees a record must also find that record by its key.
            self._note(rows)
            self._head = self._next - 1
        self.recent.add([placed for _, plan_ in decided for placed in plan_.new])
        for pending, plan_ in decided:
            pending.outcome = [as_record(answer) for answer in plan_.answers]
        return seconds

    def _begin(self) -> None:
        """Begin a transaction. Wait for another program that holds the file, but never on the event loop."""
        on_loop = self._commits.on_loop
        self._wait_at_most(0 if on_loop else BUSY_MS)
        try:
            self._writing.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if on_loop and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                raise WouldStall from None
            raise

    def _wait_at_most(self, milliseconds: int) -> None:
        if milliseconds != self._busy_ms:
            self._writing.execute(f"PRAGMA busy_timeout = {milliseconds}")
            self._busy_ms = milliseconds

    def _decide(self, group: Sequence[Pending]) -> tuple[list[tuple[Pending, Plan]], list[Row]]:
        decided: list[tuple[Pending, Plan]] = []
        rows: list[Row] = []
        keys = [each.event.idempotency_key for pending in group for each in pending.request.batch]
        self._digests = {key: key_digest(key) for key in keys}
        self._stored = positions_of(self._writing, list(self._digests.values()))
        self._touched.clear()
        for pending in group:
            try:
                plan_ = plan(pending.request, self)
            except StreamError as refusal:
                pending.outcome = refusal
                continue
            count = len(plan_.new)
            for index, placed in enumerate(plan_.new):
                event = placed.encoded.event
                digest = self._digests[event.idempotency_key]
                rows.append(row_of(placed, self._stream_id(event.stream_id), digest, index, count))
                self._tails[event.stream_id] = (placed.offset + 1, placed.hash)
                self._touched.add(event.stream_id)
                self._fresh[digest] = placed
            if plan_.new:
                self._last_hash = plan_.new[-1].hash
            self._next += count
            self.differences += plan_.differences
            decided.append((pending, plan_))
        return decided, rows

    # --- removing ---

    async def prune(self, cuts: Mapping[str, int], *, at_ms: int) -> Removed:
        return await self._turns.run(lambda: self._remover.prune(cuts, at_ms, self._between))

    async def forget(self, streams: Collection[str], *, at_ms: int, positions: Collection[int] = ()) -> Removed:
        return await self._turns.run(lambda: self._remover.forget(streams, positions, at_ms, self._between))

    def _check_end(self, pruned_end: int) -> None:
        """Raise ``CorruptLog`` if records were pruned beyond the log's end, because the records before the pruned ones
        are then missing.
        """
        if pruned_end > self._next:
            reason = f"records {self._next} to {pruned_end - 1} are missing, but not all of them were pruned"
            raise CorruptLog(str(self._path), self._next + 1, self._next, reason)

    def _between(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` between two commits. First the reader closes the search index, which ``work`` may delete."""
        self.let_go_of_search()

        def patiently() -> Result:
            self._wait_at_most(BUSY_MS)
            return work()

        return self._commits.exclusively(patiently)

    # --- migrating a log from or to another backend ---

    def _copy(self, records: Sequence[Stored]) -> None:
        self.move(records, prove=False)

    def move_between_commits(self, records: Sequence[Stored]) -> None:
        """``move``, while no removal is changing the file. Raises ``StoreClosed``, too."""
        self._commits.exclusively(lambda: self.move(records))

    def move(self, records: Sequence[Stored], *, prove: bool = True) -> None:
        """Write whole batches that follow the last record, in one transaction. Blocks; nobody may append meanwhile.

        ``prove``: first check that each record continues its stream's hash chain.

        Raises:
            ValueError: a record does not follow, or does not continue its stream; nothing was written.
            OSError, StreamError: the file cannot be written; nothing was written.
        """
        with translated(self._path, "writing"):
            if self._is_tidying_due():
                self._tidy()
            self._wait_at_most(BUSY_MS)
            self._writing.execute("BEGIN IMMEDIATE")
            try:
                rows: list[Row] = []
                tails: dict[str, tuple[int, bytes]] = {}
                following = self._next
                for record in records:
                    if record.position != following:
                        raise ValueError(f"record {record.position} does not follow record {following - 1}")
                    following += 1
                    event = record.parse()
                    name = event.stream_id
                    offset, previous = tails.get(name) or self.tail(name)
                    if prove and (record.offset != offset or chain(previous, record.digest_form()) != record.hash):
                        raise ValueError(f"record {record.position} does not continue its stream")
                    tails[name] = (offset + 1, record.hash)
                    rows.append(stored_row(record, event, self._stream_id(name)))
                if rows:
                    self._write(rows, tails, following - 1, records[-1].hash)
                self._writing.execute("COMMIT")
            except BaseException:
                self._stream_ids.clear()
                self._writing.rollback()
                raise
            if records:
                self._head_file.write(records[-1].position, records[-1].hash)
            self._next = following
            self._head = self._next - 1
            self._tails.update(tails)
            self._note(rows)

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

    def _write(self, rows: Sequence[Row], tails: Mapping[str, tuple[int, bytes]], position: int, hash_: bytes) -> None:
        """Within a transaction, insert the rows, and update where their streams and the log end."""
        self._writing.executemany(INSERT, rows)
        self._writing.executemany(
            "UPDATE streams SET next_offset = ?, hash = ? WHERE id = ?",
            [(*tail, self._stream_id(name)) for name, tail in tails.items()],
        )
        self._writing.execute("UPDATE head SET position = ?, hash = ?", [position, hash_])

    def _note(self, rows: Sequence[Row]) -> None:
        self._fresh.clear()
        self._wal_pages += sum([len(row[-1]) for row in rows]) // PAGE_BYTES + len(rows) * PAGES_OF_A_ROW

    def _is_tidying_due(self) -> bool:
        return self._wal_pages > CHECKPOINT_PAGES

    def _tidy(self) -> None:
        """Between two commits, move the WAL into the database file.

        SQLite's automatic checkpoint hides a failed sync, and then trusts the next one, which may wrongly succeed.
        """
        self._wait_at_most(BUSY_MS)
        self._writing.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self._wal_pages = 0

    def _abandon(self) -> None:
        """After a failed write, roll back what was not committed. If the rollback fails, too, SQLite drops the
        uncommitted data the next time the file is opened.
        """
        with suppress(sqlite3.Error):
            self._writing.rollback()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._turns.close()
        await self._commits.close()
        await super().close()
        self._head_file.close()
        with translated(self._path, "closing"):
            await asyncio.to_thread(self._writing.close)
