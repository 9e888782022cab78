"""A snapshot in rows: one file for each projection, next to the log's hints, in which a save writes only what changed.

The rows and the position at which they are right change in one transaction, so a replay from that position is right
after any crash. The file is derived from the log: if it is missing, damaged or of another version, it is made again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from streams.errors import ForeignStore
from streams.rows import Changes, Row
from streams.store import Snapshot
from streams.stores.sqlite.files import connect_to_read, connect_to_write, translated
from streams.stores.sqlite.hints import checked_name
from streams.system.files import make_directory

STEPS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE rows (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, crc INTEGER NOT NULL, body BLOB NOT NULL)
        STRICT;
    CREATE TABLE marks (mark BLOB NOT NULL, row INTEGER NOT NULL, PRIMARY KEY (mark, row)) STRICT, WITHOUT ROWID;
    CREATE INDEX marks_of_row ON marks (row);
    CREATE TABLE snapshot (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        crc INTEGER NOT NULL, version INTEGER NOT NULL, position INTEGER NOT NULL, state BLOB NOT NULL
    ) STRICT;
    """,
)

_FILES: Final = ("", "-wal", "-shm")
_CHECKPOINT_PAGES: Final = 1000
_DAMAGED: Final = (
    "it is damaged. It was derived from the log: stop the sidecar, delete this file, and start the sidecar again"
)


class KeptRows:
    """``Rows`` in a file, and the snapshot that they belong to; ``snapshot`` is ``None`` before the first ``put``.

    The process that writes the log is the only one to open it. The methods block; ``put`` may run in another thread.

    Raises:
        ForeignStore: the file is damaged. It is deleted, so that the next opening begins a new one.
        StreamError, OSError: the file cannot be read or written.
    """

    def __init__(self, store: Path, name: str, version: int, head: int) -> None:
        self._path = _path(store, name)
        make_directory(self._path.parent)
        self._version = version
        self.snapshot: Snapshot | None = None
        try:
            self._open()
            self.snapshot = _snapshot(self._writing, self._path)
        except ForeignStore:
            self._begin_anew()
        found = self.snapshot
        if found is not None and (found.version != version or found.position > head):
            self._begin_anew()

    def _open(self) -> None:
        self._writing = connect_to_write(self._path, STEPS)
        with translated(self._path, "opening"):
            # A power loss may take the newest saves, which are then made again, so no save waits for the disk.
            self._writing.execute("PRAGMA synchronous = NORMAL")
            self._writing.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        reading = connect_to_read(self._path, len(STEPS))
        if reading is None:
            raise ForeignStore(str(self._path), "it has no tables")
        self._reading = reading

    def _begin_anew(self) -> None:
        self.remove()
        self.snapshot = None
        self._open()

    def _fetch(self, query: str, *values: object) -> list[Any]:
        with self._sound():
            return self._reading.execute(query, values).fetchall()

    def get(self, key: str) -> bytes | None:
        found = self._checked(self._fetch("SELECT key, crc, body FROM rows WHERE key = ?", _raw(key)))
        return found[0][1] if found else None

    def having(self, mark: str) -> list[str]:
        return self.between(mark, f"{mark}\0")

    def between(self, first: str, end: str) -> list[str]:
        query = "SELECT DISTINCT key FROM marks JOIN rows ON id = row WHERE mark >= ? AND mark < ?"
        return [_text(key) for (key,) in self._fetch(query, _raw(first), _raw(end))]

    def bodies(self) -> dict[str, bytes]:
        return dict(self._checked(self._fetch("SELECT key, crc, body FROM rows ORDER BY id")))

    def keys(self) -> list[str]:
        return [_text(key) for (key,) in self._fetch("SELECT key FROM rows ORDER BY id")]

    def _checked(self, rows: Iterable[tuple[bytes, int, bytes]]) -> list[tuple[str, bytes]]:
        found = []
        with self._sound():
            for key, crc, body in rows:
                if crc != crc32(key + b" " + body):
                    raise ForeignStore(str(self._path), _DAMAGED)
                found.append((_text(key), body))
        return found

    def all(self) -> dict[str, Row]:
        """Every row, with its marks."""
        marks: dict[str, list[str]] = {}
        for key, mark in self._fetch("SELECT key, mark FROM marks JOIN rows ON id = row"):
            marks.setdefault(_text(key), []).append(_text(mark))
        return {key: Row(body, tuple(marks.get(key, ()))) for key, body in self.bodies().items()}

    def put(self, position: int, state: bytes, changes: Changes) -> None:
        """Save: ``changes``, and the rest of the projection's state at ``position``."""
        crc = _crc(b"%d %d" % (self._version, position), state)
        with translated(self._path, "writing"), self._writing:
            self._writing.execute("BEGIN IMMEDIATE")
            for key, row in changes.items():
                self._put(_raw(key), row)
            found = [crc, self._version, position, state]
            self._writing.execute("INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?, ?, ?)", found)
        self.snapshot = Snapshot(self._version, position, state)

    def _put(self, key: bytes, row: Row | None) -> None:
        found = self._writing.execute("SELECT id FROM rows WHERE key = ?", [key]).fetchone()
        known = {mark for (mark,) in self._writing.execute("SELECT mark FROM marks WHERE row = ?", found or [-1])}
        wanted = {_raw(mark) for mark in row.marks} if row is not None else set()
        if row is not None:
            (number,) = self._writing.execute(
                "INSERT INTO rows (key, crc, body) VALUES (?, ?, ?)"
                " ON CONFLICT (key) DO UPDATE SET crc = excluded.crc, body = excluded.body RETURNING id",
                [key, _crc(key, row.body), row.body],
            ).fetchone()
        elif found is not None:
            (number,) = found
            self._writing.execute("DELETE FROM rows WHERE id = ?", [number])
        else:
            return
        gone, added = known - wanted, wanted - known
        self._writing.executemany("DELETE FROM marks WHERE mark = ? AND row = ?", [(mark, number) for mark in gone])
        self._writing.executemany("INSERT INTO marks VALUES (?, ?)", [(mark, number) for mark in added])

    @contextmanager
    def _sound(self) -> Iterator[None]:
        try:
            with translated(self._path, "reading"):
                yield
        except ForeignStore:
            remove_rows(self._path)
            raise

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        remove_rows(self._path)

    def close(self) -> None:
        for name in ("_reading", "_writing"):  # the last connection to close tidies the files up
            with suppress(AttributeError):
                getattr(self, name).close()


def remove_rows(path: Path) -> None:
    for suffix in _FILES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def remove_all_rows(store: Path) -> None:
    """Delete every snapshot in rows, because the records from which they were folded have changed."""
    for path in (store / "hints").glob("*.db*"):
        path.unlink(missing_ok=True)


def _snapshot(connection: sqlite3.Connection, path: Path) -> Snapshot | None:
    with translated(path, "reading"):
        row = connection.execute("SELECT crc, version, position, state FROM snapshot").fetchone()
    if row is None:
        return None
    crc, version, position, state = row
    if crc != _crc(b"%d %d" % (version, position), state):
        raise ForeignStore(str(path), _DAMAGED)
    return Snapshot(version, position, state)


def _crc(key: bytes, body: bytes) -> int:
    return crc32(key + b" " + body)


def _path(store: Path, name: str) -> Path:
    return store / "hints" / f"{checked_name(name)}.db"


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")
