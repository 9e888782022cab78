"""Cursors and snapshots: hints in a table of the log's database.

A hint is noted in memory first. The mover writes it in the transaction that moves the record it speaks of, or in a
later one. So a hint in the database never speaks of a record that is not there, whatever is lost. A hint may lag
behind: a reader without its cursor starts at the beginning, and a projection without a snapshot is folded from the
first record.

A projection may also be saved in tables of its own (``SAVED``), of which a snapshot writes what changed, in the
transaction that writes the snapshot. A removal drops the other snapshots; it is the projection's owner that says which
rows go with the records.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal, NamedTuple

from streams.derived import Write
from streams.errors import StoreUnavailable
from streams.store import Snapshot
from streams.stores.sqlite.derived import drop_saved
from streams.stores.sqlite.files import STEPS, connect_to_read, translated

Kind = Literal["cursor", "snapshot", "rows"]

CURSOR: Final[Kind] = "cursor"
SNAPSHOT: Final[Kind] = "snapshot"
ROWS: Final[Kind] = "rows"
"""A snapshot with tables."""

NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")


class Noted(NamedTuple):
    """A value that is not in the database yet. ``write`` changes the tables that belong to it, ``is_new`` says that
    they are to be made, and ``written`` is called once all is there, on any thread."""

    hint: Snapshot
    write: Write | None = None
    is_new: bool = False
    written: Callable[[], None] | None = None


Due = list[tuple[tuple[Kind, str], Noted]]


class NotSaved(Exception):
    """The tables of hints refused hints, so records must move without them."""


class Hints:
    """The hints that are not in the database yet. Any thread may call the methods."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._noted: dict[tuple[Kind, str], list[Noted]] = {}
        """For each hint the oldest value that waits for its record, and the newest. With the newest alone, an endless
        burst of appends could keep every value from being written."""

    def note(self, kind: Kind, name: str, noted: Noted) -> None:
        """Note a new value. Raises ``ValueError`` for a bad name."""
        key = kind, checked_name(name)
        with self._lock:
            self._noted.setdefault(key, [])[1:] = [noted]

    def newest(self, kind: Kind, name: str) -> Snapshot | None:
        """The newest value that was noted and is not in the database yet. Raises ``ValueError`` for a bad name."""
        with self._lock:
            noted = self._noted.get((kind, checked_name(name)))
            return noted[-1].hint if noted else None

    def due(self, head: int) -> Due:
        """The values to write into a database whose last record is ``head``."""
        with self._lock:
            fitting = [
                (key, [each for each in noted if each.hint.position <= head]) for key, noted in self._noted.items()
            ]
            return [(key, found[-1]) for key, found in fitting if found]

    def write(self, connection: sqlite3.Connection, due: Due) -> None:
        """Write values, in the caller's transaction; then call ``written``. Raises ``NotSaved``."""
        rows = [(*key, each.hint.version, each.hint.position, each.hint.state) for key, each in due]
        try:
            connection.executemany("INSERT OR REPLACE INTO hints VALUES (?, ?, ?, ?, ?)", rows)
            for _, each in due:
                if each.is_new:
                    drop_saved(connection)
                if each.write is not None:
                    each.write(connection)
        except Exception as error:
            raise NotSaved from error

    def written(self, due: Due) -> None:
        """Note that values are in the database."""
        with self._lock:
            for key, noted in due:
                waiting = self._noted.get(key, [])
                at = next((number for number, each in enumerate(waiting) if each is noted), None)
                if at is not None:
                    self._noted[key] = waiting[at + 1 :]
        for _, noted in due:
            if noted.written is not None:
                noted.written()

    def forget_snapshots(self, connection: sqlite3.Connection) -> None:
        """Drop every snapshot without tables, in the caller's transaction: the records from which it was folded have
        changed."""
        with self._lock:
            self._noted = {key: noted for key, noted in self._noted.items() if key[0] != SNAPSHOT}
        connection.execute("DELETE FROM hints WHERE kind = ?", [SNAPSHOT])


class SavedTables:
    """Reads the tables of projections from the database, for one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def fetch(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Blocks, but no query leaves a transaction open.

        Raises:
            ForeignStore: the tables are damaged.
            StreamError, OSError: they cannot be read.
        """
        if self._connection is None:
            self._connection = connect_to_read(self._path, len(STEPS))
        if self._connection is None:
            raise StoreUnavailable(f"{self._path} was moved away while it was being read", "read the log again")
        with translated(self._path, "reading"):
            return self._connection.execute(query, values).fetchall()

    def close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()


def stored_hint(connection: sqlite3.Connection, kind: Kind, name: str) -> Snapshot | None:
    """The value in the database. Raises ``ValueError`` for a bad name."""
    query = "SELECT version, position, state FROM hints WHERE kind = ? AND name = ?"
    row = connection.execute(query, [kind, checked_name(name)]).fetchone()
    return None if row is None else Snapshot(*row)


def checked_name(name: str) -> str:
    """Return ``name`` if it is a valid name for a hint; otherwise raise ``ValueError``."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid cursor or snapshot name: use up to 63 lower-case letters, digits and '-'"
        )
    return name
