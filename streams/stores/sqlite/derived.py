"""Write and read the tables that a caller derives from the records (see ``streams/derived.py``).

The row of the table ``derived`` says of which version they are, and up to which record they are right. Without that row
there are none: what is left of them is dropped and made again. Every table that is not one of the log's is derived.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from streams.derived import Derived
from streams.errors import StoreUnavailable, StreamError
from streams.store import NOTHING, Record
from streams.stores.sqlite.at_rest import ReadConnection
from streams.stores.sqlite.files import SCHEMA, STEPS, connect_to_read, translate, translated
from streams.stores.sqlite.removed import DamagedRow, head_of, pending
from streams.stores.sqlite.rows import SELECT, record_of

MOST: Final = 2000
"""How many records one transaction applies at most to tables that are behind."""

MOST_BYTES: Final = 4 * 1024 * 1024
"""About how many bytes of records it reads at most."""

FIRST_RETRY_SECONDS: Final = 0.5
LAST_RETRY_SECONDS: Final = 30.0

_OF_THE_LOG: Final = frozenset(re.findall(r"CREATE TABLE (\w+)", SCHEMA))


class NotDerived(Exception):
    """The caller's tables refused records, so these must move without them."""


class Deriving:
    """The tables' writing side, on the database's one writing connection. The caller lets nothing else use it
    meanwhile.

    A fault here never concerns the records: the tables stay behind, and ``fault`` says why until an attempt succeeds.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, derived: Derived) -> None:
        self._connection, self._path, self._derived = connection, path, derived
        self.fault: str | None = None
        self._retry_seconds, self._retry_at = FIRST_RETRY_SECONDS, 0.0
        self.position: int | None = None
        """The last record that the tables have; ``None`` if there are no tables of this version."""
        with suppress(sqlite3.DatabaseError):  # damaged tables must not keep a log from being opened
            found = row_of(connection)
            self.position = found[1] if found is not None and found[0] == derived.version else None
        derived.reset()

    def is_level(self, head: int) -> bool:
        """True if the tables take the records after ``head`` in the transaction that moves these."""
        return self.position == head and self.fault is None

    def lacking(self, head: int) -> int:
        """How many records up to ``head`` the tables lack; pruned ones count, too."""
        return head - (NOTHING if self.position is None else self.position)

    def due_in(self, head: int) -> float | None:
        """In how many seconds to call ``catch_up``; ``None`` if there is nothing to do."""
        return None if self.is_level(head) else max(self._retry_at - time.monotonic(), 0.0)

    def apply(self, records: Sequence[Record], last: int) -> None:
        """Apply the records up to position ``last``, in the caller's transaction; then call ``done`` or ``undone``.

        Raises ``NotDerived``; the transaction must be rolled back.
        """
        try:
            self._apply(records, last)
        except Exception as error:
            raise NotDerived from error

    def _apply(self, records: Sequence[Record], last: int) -> None:
        self._derived.apply(self._connection, records)
        self._connection.execute("UPDATE derived SET position = ?", [last])

    def done(self, last: int | None) -> None:
        self.position = last
        self.fault, self._retry_seconds, self._retry_at = None, FIRST_RETRY_SECONDS, 0.0

    def undone(self, fault: Exception | None = None) -> None:
        """A transaction was rolled back; ``fault`` if the tables are to blame, which then rest."""
        self._derived.reset()
        if fault is not None:
            if isinstance(fault, sqlite3.Error):
                fault = translate(fault, self._path, "deriving tables in")
            self.fault = str(fault) if isinstance(fault, StreamError | OSError) else repr(fault)
            self._retry_at = time.monotonic() + self._retry_seconds
            self._retry_seconds = min(2 * self._retry_seconds, LAST_RETRY_SECONDS)

    def dropped(self) -> None:
        """A removal has changed records, and deleted the row of ``derived``."""
        self._derived.reset()
        self.done(None)

    def catch_up(self, head: int, begin: Callable[[], None]) -> None:
        """Do the next step towards tables that are right up to ``head``, in one transaction, after ``begin``: drop an
        old table, create the new ones, or apply records. Never raises."""
        try:
            begin()
            self._connection.execute("BEGIN IMMEDIATE")
            position = self._step(head)
            self._connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - the caller's code may raise anything
            with suppress(sqlite3.Error):
                self._connection.rollback()
            self.undone(error)
        else:
            self.done(position)

    def _step(self, head: int) -> int | None:
        if next(pending(self._connection), None) is not None:
            # The tables would take up again what is to be removed.
            raise StoreUnavailable("they are made again when the prune or forget that is under way has ended")
        if self.position is None:
            if drop_one(self._connection):
                return None
            self._derived.reset()
            self._derived.create(self._connection)
            self._connection.execute("INSERT INTO derived VALUES (1, ?, ?)", [self._derived.version, NOTHING])
            return NOTHING
        records: list[Record] = []
        size, last = 0, head
        query = f"{SELECT} WHERE position > ? ORDER BY position LIMIT ?"
        for row in self._connection.execute(query, [self.position, MOST]):
            records.append(record_of(row, str(self._path)))
            size += len(row[-1])
            if len(records) == MOST or size > MOST_BYTES:
                last = records[-1].position
                break
        self._apply(records, last)
        return last


def row_of(connection: sqlite3.Connection) -> tuple[int, int] | None:
    """The version of the derived tables, and the last record that they have; ``None`` if there are no tables."""
    row = connection.execute("SELECT version, position FROM derived").fetchone()
    if row is None:
        return None
    if not (isinstance(row[0], int) and isinstance(row[1], int)):
        raise DamagedRow("derived", "its row has values of the wrong types")
    return row[0], row[1]


def derived_tables(connection: sqlite3.Connection) -> list[str]:
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return sorted({name for (name,) in names} - _OF_THE_LOG)


def drop_one(connection: sqlite3.Connection) -> bool:
    """Drop one derived table, in the caller's transaction, and say that there are none. False if none was left."""
    connection.execute("DELETE FROM derived")
    names = derived_tables(connection)
    for name in names[:1]:
        quoted = name.replace('"', '""')
        # Do not write zeros to all its pages: a removal gives every free page back to the file system.
        connection.execute("PRAGMA secure_delete = FAST").fetchall()
        try:
            connection.execute(f'DROP TABLE "{quoted}"')
        finally:
            connection.execute("PRAGMA secure_delete = ON").fetchall()
    return bool(names)


class DerivedTables:
    """The derived tables as they are at one moment, with the log's records of that moment: a connection in one read
    transaction. Any thread may use it, one at a time.

    It cannot write to the log, but may have tables of its own (``TEMP``), which are in memory. Close it soon: a prune
    or forget does not end while somebody reads what it removes. As a context manager it closes itself, and translates
    the errors of ``sqlite3``.
    """

    def __init__(self, connection: ReadConnection, path: Path, position: int) -> None:
        self.db: sqlite3.Connection = connection
        self._connection, self._path = connection, path
        self.position = position
        """The last record that the tables have."""
        self.stored = head_of(connection)
        """The last record of the database."""
        self.head = self.stored
        """The last record of the log when the moment began. Those above ``position`` are to be read from the log."""

    def record(self, position: int) -> Record | None:
        """A record of the database, as of the moment; ``None`` if it is not there. Raises ``CorruptLog``."""
        row = self.db.execute(f"{SELECT} WHERE position = ?", [position]).fetchone()
        return None if row is None else record_of(row, str(self._path))

    def is_right(self) -> bool:
        """False if everything that was read must be read anew, because a writer has begun where there was none."""
        return self._connection.is_right(self._path)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> DerivedTables:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self.close()
        if isinstance(error, sqlite3.Error):
            raise translate(error, self._path, "reading") from error


def open_derived(path: Path, version: int) -> DerivedTables | None:
    """Blocks. ``None`` if there are no tables of this version.

    Raises:
        ForeignStore: the file is damaged, or another program or a newer version wrote it.
        StoreLocked, StoreUnavailable, OSError: the file cannot be read.
    """
    while True:
        connection = connect_to_read(path, len(STEPS))
        if connection is None:
            return None
        found = None
        try:
            with translated(path, "reading"):
                for setting in ("temp_store = MEMORY", "query_only = OFF"):  # the file was opened to be read only
                    connection.execute(f"PRAGMA {setting}")
                connection.execute("BEGIN")
                row = row_of(connection)
                if row is not None and row[0] == version:
                    found = DerivedTables(connection, path, row[1])
            if connection.is_right(path):
                return found
        except (StreamError, OSError):
            if connection.is_right(path):
                raise
        finally:
            if found is None or not connection.is_right(path):
                connection.close()
