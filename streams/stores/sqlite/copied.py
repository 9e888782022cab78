"""A log's database as a second place copies it: rows as they are stored, by position.

All of one copy is read in one read transaction, so it is one state of the log. Positions that are missing were pruned.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import orjson

from streams.stores.sqlite.derived import row_of
from streams.stores.sqlite.files import translate
from streams.stores.sqlite.removed import last_of, pending, version_of

Row = tuple[Any, ...]

RECORD: Final = (
    *("position", "stream", "offset", "ts", "type", "actor", "correlation_id", "causation_id", "event_id", "key"),
    *("hash", "crc", "batch_index", "batch_count", "event"),
)
"""The columns of ``records``, in the order of ``Copied.records``."""

_EVENT: Final = "SELECT position, event, crc, offset FROM records"


class Copied:
    """One state of the database. A context manager, which closes it and translates the errors of ``sqlite3``. The
    methods block; use them from one thread at a time. Close it soon: see ``DerivedTables``."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.db, self._path = connection, path

    def __enter__(self) -> Copied:
        self.db.execute("BEGIN")
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self.db.close()
        if isinstance(error, sqlite3.Error):
            raise translate(error, self._path, "reading") from error

    @property
    def head(self) -> tuple[int, bytes]:
        """The last record's position and hash; it may have been pruned. (-1, b"") for an empty database."""
        return last_of(self.db)

    @property
    def removals(self) -> int | None:
        """A number that changes with every removal; ``None`` while one is under way."""
        return None if next(pending(self.db), None) is not None else version_of(self.db)

    def derived(self, version: int) -> int | None:
        """The last record that the derived tables of this version have; ``None`` without such tables."""
        found = row_of(self.db)
        return found[1] if found is not None and found[0] == version else None

    def hash_at(self, position: int) -> bytes | None:
        """The hash of the record at a position, also of a pruned one; ``None`` if there never was one."""
        for query in ("SELECT hash FROM records WHERE position = ?", "SELECT hash FROM removed WHERE position = ?"):
            if (row := self.db.execute(query, [position]).fetchone()) is not None:
                return bytes(row[0])
        return None

    def records(self, after: int, most: int, most_bytes: int) -> list[Row]:
        """The next records above a position: at most ``most``, of about ``most_bytes``, and at least one."""
        rows: list[Row] = []
        size = 0
        for row in self.db.execute("SELECT * FROM records WHERE position > ? ORDER BY position LIMIT ?", [after, most]):
            rows.append(row)
            size += len(row[-1])
            if size >= most_bytes:
                break
        return rows

    def names(self, streams: Iterable[int]) -> dict[int, str]:
        """The names of streams, by their numbers."""
        wanted = orjson.dumps([*streams]).decode()
        return dict(
            self.db.execute("SELECT id, name FROM streams WHERE id IN (SELECT value FROM json_each(?))", [wanted])
        )

    def bases(self) -> set[Row]:
        """(stream, first kept offset, hash before it, time in ms) of each pruned stream."""
        return set(self.db.execute("SELECT stream, offset, hash, at_ms FROM bases"))

    def marks(self) -> set[Row]:
        """(stream, offset, time in ms) of each stream that was forgotten below that offset."""
        return set(self.db.execute("SELECT stream, offset, at_ms FROM marks"))

    def singles(self) -> set[Row]:
        """(position, stream, offset, time in ms) of each record that was forgotten alone."""
        return set(self.db.execute("SELECT position, stream, offset, at_ms FROM singles"))

    def forgotten(self, stream: str, below: int, until: int, many: int) -> Iterator[list[Row]]:
        """(position, event, crc, offset) of a stream's records below an offset and up to position ``until``, many at a
        time."""
        where = "stream = (SELECT id FROM streams WHERE name = ?) AND offset >= ? AND offset < ? AND position <= ?"
        query, low = f"{_EVENT} WHERE {where} ORDER BY offset LIMIT ?", 0
        while rows := self.db.execute(query, [stream, low, below, until, many]).fetchall():
            yield rows
            low = rows[-1][3] + 1

    def events(self, positions: Iterable[int]) -> list[Row]:
        """(position, event, crc, offset) of the records at some positions."""
        wanted = orjson.dumps([*positions]).decode()
        return self.db.execute(f"{_EVENT} WHERE position IN (SELECT value FROM json_each(?))", [wanted]).fetchall()  # noqa: S608 - constants
