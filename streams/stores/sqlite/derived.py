"""The tables that a caller derives from the records (see ``streams/derived.py``), in the file; and reading them.

The row of the table ``derived`` says of which version they are, and up to which record they are right. Without that row
there are none: what is left of them is dropped and made again. Every table that is neither one of the log's nor a saved
one is derived.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import orjson

from streams.store import Record
from streams.stores.sqlite.files import SCHEMA, STEPS, connect_to_read, place_of, translate, translated
from streams.stores.sqlite.removed import NO_DERIVED, DamagedRow, head_of
from streams.stores.sqlite.rows import SELECT_EACH, record_of

OF_THE_LOG: Final = frozenset(re.findall(r"CREATE TABLE (\w+)", SCHEMA))

LEFT_BEHIND: Final = -1
"""In place of a version: damaged tables are out of the schema, and the file is to be written anew without them."""


def row_of(connection: sqlite3.Connection) -> tuple[int, int] | None:
    """The version of the derived tables, and the last record that they have; ``None`` if there are no tables."""
    row = connection.execute("SELECT version, position FROM derived").fetchone()
    if row is None:
        return None
    if not (isinstance(row[0], int) and isinstance(row[1], int)):
        raise DamagedRow("derived", "its row has values of the wrong types")
    return row[0], row[1]


SAVED: Final = "saved_"
"""What the names of tables begin with in which a caller keeps a state of its own (see ``cursors_and_snapshots.py``)."""


def tables_beside(connection: sqlite3.Connection) -> list[str]:
    """The names of all tables that are not the log's: derived ones, and saved ones."""
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return sorted({name for (name,) in names} - OF_THE_LOG)


def derived_tables(connection: sqlite3.Connection) -> list[str]:
    return [name for name in tables_beside(connection) if not name.startswith(SAVED)]


def drop_saved(connection: sqlite3.Connection) -> None:
    """Drop the tables in which a caller keeps a state, in the caller's transaction."""
    for name in tables_beside(connection):
        if name.startswith(SAVED):
            connection.execute(f"DROP TABLE {quoted(name)}")


def quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def drop_one(connection: sqlite3.Connection) -> bool:
    """Drop one derived table, in the caller's transaction, and say that there are none. False if none was left."""
    connection.execute(NO_DERIVED)
    names = derived_tables(connection)
    for name in names[:1]:
        try:
            connection.execute(f"DROP TABLE {quoted(name)}")
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            leave_behind(connection)
    return bool(names)


def is_damage(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT


def leave_behind(connection: sqlite3.Connection) -> None:
    """Take all tables but the log's out of the schema, in the caller's transaction, because one is damaged. Dropping it
    would free whatever pages it names, even those of records. Their pages are lost until ``write_anew``."""
    connection.execute("PRAGMA writable_schema = ON")
    try:
        names = [(name,) for name in tables_beside(connection)]
        connection.executemany("DELETE FROM sqlite_schema WHERE tbl_name = ?", names)
    finally:
        connection.execute("PRAGMA writable_schema = RESET")
    connection.execute("DELETE FROM hints WHERE kind = 'rows'")
    connection.execute("INSERT OR REPLACE INTO derived VALUES (1, ?, 0)", [LEFT_BEHIND])


def write_anew(connection: sqlite3.Connection) -> bool:
    """Write the file without tables that were left behind. False if there were none. Needs room for a second file."""
    found = connection.execute("SELECT 1 FROM derived WHERE version = ?", [LEFT_BEHIND]).fetchone()
    if found is not None:
        connection.execute("VACUUM")
        connection.execute("DELETE FROM derived")
    return found is not None


class _Reading:
    """A connection, in no transaction while nobody uses it."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.version = 0
        """SQLite's number of the file's state."""
        self.beside: dict[str, Any] = {}


Free = list[_Reading]


class DerivedTables:
    """The derived tables as they are at one moment, with the log's records of that moment: a connection in one read
    transaction. Any thread may use it, one at a time.

    It cannot write to the log, but may have tables of its own (``TEMP``), which are in memory. Close it soon: a prune
    or forget does not end while somebody reads what it removes. As a context manager it closes itself, and translates
    the errors of ``sqlite3``.
    """

    def __init__(self, reading: _Reading, path: Path, position: int, free: Free) -> None:
        self._reading, self.db, self._path, self._free = reading, reading.db, path, free
        self.beside = reading.beside
        """What the caller keeps with its own tables. Both are there again at the next moment, unless the file was
        written in between, or there was an error."""
        self.position = self.top = position
        """The last record that the tables have. ``top``: the last one of which they have rows, perhaps not all."""
        self.head = head_of(self.db)
        """The last record of the log when the moment began. Those above ``position`` are to be read from the log."""

    def records(self, positions: Iterable[int]) -> dict[int, Record]:
        """The records of the database at some positions, as of the moment, by these; without those that are not there.
        Raises ``CorruptLog``."""
        rows = self.db.execute(SELECT_EACH, [orjson.dumps([*positions]).decode()])
        return {row[0]: record_of(row, str(self._path)) for row in rows}

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Translate the errors of a query."""
        with translated(self._path, "reading"):
            yield

    def close(self) -> None:
        """End the transaction; the connection is kept for the next one."""
        if self.db.in_transaction:  # damage ends one, too
            self.db.execute("COMMIT")  # its own tables stay
        self._free.append(self._reading)

    def clear(self) -> None:
        """Drop the caller's own tables."""
        for kind, name in self.db.execute("SELECT type, name FROM temp.sqlite_schema ORDER BY type DESC").fetchall():
            self.db.execute(f"DROP {kind} temp.{quoted(name)}")
        self.beside.clear()

    def __enter__(self) -> DerivedTables:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        self.db.close()
        if isinstance(error, sqlite3.Error):
            raise translate(error, self._path, "reading") from error


class DerivedReader:
    """Opens the derived tables of a file. A connection costs more than a question, so those that nobody uses are kept;
    none of them is in a transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place: tuple[int, int] | None = None
        self._free: Free = []

    def open(self, version: int) -> DerivedTables | None:
        """Blocks. ``None`` if there are no tables of this version.

        Raises:
            ForeignStore: the file is damaged, or another program or a newer version wrote it.
            StoreLocked, StoreUnavailable, OSError: the file cannot be read.
        """
        if (place := place_of(self._path)) != self._place:
            self.close()  # somebody replaced the file, as with a backup
            self._place, self._free = place, []
        free = self._free
        reading = free.pop() if free else self._connected()
        if reading is None:
            return None
        found = None
        try:
            with translated(self._path, "reading"):
                reading.db.execute("BEGIN")
                row = row_of(reading.db)
                if row is not None and row[0] == version:
                    found = DerivedTables(reading, self._path, row[1], free)
                    [state] = reading.db.execute("PRAGMA data_version").fetchone()
                    if state != reading.version:
                        found.clear()
                    reading.version = state
            return found
        finally:
            if found is None:
                reading.db.close()

    def _connected(self) -> _Reading | None:
        connection = connect_to_read(self._path, len(STEPS))
        if connection is None:
            return None
        for setting in ("temp_store = MEMORY", "query_only = OFF"):  # the file was opened to be read only
            connection.execute(f"PRAGMA {setting}")
        return _Reading(connection)

    def close(self) -> None:
        while self._free:
            self._free.pop().db.close()
