"""Cursors and snapshots: hints in a table of the log's database.

A hint is noted in memory first. The mover writes it in the transaction that moves the record it speaks of, or in a
later one. So a hint in the database never speaks of a record that is not there, whatever is lost. A hint may lag
behind: a reader without its cursor starts at the beginning, and a projection without a snapshot is folded from the
first record.
"""

from __future__ import annotations

import re
import sqlite3
from threading import Lock
from typing import Final, Literal

from streams.store import Snapshot

Kind = Literal["cursor", "snapshot"]

CURSOR: Final[Kind] = "cursor"
SNAPSHOT: Final[Kind] = "snapshot"

NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")

Due = list[tuple[tuple[Kind, str], Snapshot]]


class NotKept(Exception):
    """The table of hints refused hints, so records must move without them."""


class Hints:
    """The hints that are not in the database yet. Any thread may call the methods."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._noted: dict[tuple[Kind, str], list[Snapshot]] = {}
        """For each hint the oldest value that waits for its record, and the newest. With the newest alone, an endless
        burst of appends could keep every value from being written."""

    def note(self, kind: Kind, name: str, hint: Snapshot) -> None:
        """Note a new value. Raises ``ValueError`` for a bad name."""
        key = kind, checked_name(name)
        with self._lock:
            self._noted.setdefault(key, [])[1:] = [hint]

    def newest(self, kind: Kind, name: str) -> Snapshot | None:
        """The newest value that was noted and is not in the database yet. Raises ``ValueError`` for a bad name."""
        with self._lock:
            noted = self._noted.get((kind, checked_name(name)))
            return noted[-1] if noted else None

    def due(self, head: int) -> Due:
        """The values to write into a database whose last record is ``head``."""
        with self._lock:
            fitting = [(key, [hint for hint in noted if hint.position <= head]) for key, noted in self._noted.items()]
            return [(key, hints[-1]) for key, hints in fitting if hints]

    def write(self, connection: sqlite3.Connection, due: Due) -> None:
        """Write values, in the caller's transaction; then call ``written``. Raises ``NotKept``."""
        rows = [(*key, hint.version, hint.position, hint.state) for key, hint in due]
        try:
            connection.executemany("INSERT OR REPLACE INTO hints VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise NotKept from error

    def written(self, due: Due) -> None:
        """Note that values are in the database."""
        with self._lock:
            for key, hint in due:
                noted = self._noted.get(key, [])
                at = next((number for number, each in enumerate(noted) if each is hint), None)
                if at is not None:
                    self._noted[key] = noted[at + 1 :]

    def forget_snapshots(self, connection: sqlite3.Connection) -> None:
        """Drop every snapshot, in the caller's transaction: the records from which they were folded have changed."""
        with self._lock:
            self._noted = {key: noted for key, noted in self._noted.items() if key[0] != SNAPSHOT}
        connection.execute("DELETE FROM hints WHERE kind = ?", [SNAPSHOT])


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
