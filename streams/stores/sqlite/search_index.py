"""The full-text index of a log's database: every payload's text, in trigrams, in a separate file.

The index is derived from the log, so it may lag or be deleted at any time. A search asks the index for matching indexed
records, and reads all other records itself, so results never depend on the index. Trigrams without positions
(``detail=none``) find candidates for any part of a text of three characters or more; ``Filter`` checks them.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from streams.errors import ForeignStore
from streams.query import payload_text
from streams.store import NOTHING
from streams.stores.sqlite.files import (
    LOG_FILE,
    SEARCH_FILE,
    SEARCH_STEPS,
    STEPS,
    connect_to_read,
    connect_to_write,
    translated,
)
from streams.stores.sqlite.removed import head_of
from streams.stores.sqlite.rows import SELECT, record_of

_SIZES: Final = ("", "-wal", "-shm")
_CHECKPOINT_PAGES: Final = 1000


class SearchIndex:
    """The one writer of ``search.db``. The methods block; use them from one thread at a time. An index that is damaged,
    or that knows more records than the log, is deleted and begun anew.

    Raises:
        StreamError, OSError: a file cannot be opened, read or written.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._path, self._log_path = store / SEARCH_FILE, store / LOG_FILE
        self._log: sqlite3.Connection | None = None
        try:
            self._connection = _connect(self._path)
        except ForeignStore:
            remove_search(store)
            self._connection = _connect(self._path)
        self._file = self._path.stat().st_ino
        try:
            if self.position > self._head():
                self._begin_anew()
        except BaseException:
            self._connection.close()
            raise

    @property
    def position(self) -> int:
        """The last indexed position; -1 for none."""
        with translated(self._path, "reading"):
            found: int = self._connection.execute("SELECT position FROM progress").fetchone()[0]
        return found

    def _head(self) -> int:
        """The last record of the database."""
        with translated(self._log_path, "reading"):
            log = connect_to_read(self._log_path, len(STEPS))
            if log is None:
                return NOTHING
            with closing(log):
                return head_of(log)

    def advance(self, most: int) -> int:
        """Index at most ``most`` next records. Return how many there were."""
        self._follow_file()
        try:
            return self._advance(most)
        except ForeignStore as error:
            if error.path != str(self._path):
                raise
            self._begin_anew()
            return self._advance(most)

    def _advance(self, most: int) -> int:
        position = self.position
        with translated(self._log_path, "reading"):
            if self._log is None:
                self._log = connect_to_read(self._log_path, len(STEPS))
            if self._log is None:
                return 0
            rows = self._log.execute(
                f"{SELECT} WHERE position > ? ORDER BY position LIMIT ?", [position, most]
            ).fetchall()
        if not rows:
            # An open reader would keep the writer from tidying the log's files up when the log leaves them.
            self._log.close()
            self._log = None
            return 0
        records = [record_of(row, str(self._log_path)) for row in rows]
        texts = [(record.position, payload_text(record.event).casefold()) for record in records]
        with translated(self._path, "writing"), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT INTO payloads (rowid, text) VALUES (?, ?)", texts)
            self._connection.execute("UPDATE progress SET position = ?", [records[-1].position])
        return len(rows)

    def _follow_file(self) -> None:
        """Begin a new index if this one was deleted by a prune or forget."""
        if not self._path.exists() or self._path.stat().st_ino != self._file:
            self._open_again()

    def _begin_anew(self) -> None:
        self._connection.close()
        remove_search(self._store)
        self._open_again()

    def _open_again(self) -> None:
        self._connection.close()
        self._connection = _connect(self._path)
        self._file = self._path.stat().st_ino

    def close(self) -> None:
        for connection in (self._connection, self._log):
            if connection is not None:
                connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    connection = connect_to_write(path, SEARCH_STEPS)
    # A power loss may take the newest part of the index, which is then made again; so no commit waits for the disk, and
    # none makes the log's own syncs slower.
    try:
        with translated(path, "opening"):
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
            connection.execute("SELECT position FROM progress").fetchone()
            connection.execute("SELECT rowid FROM payloads WHERE payloads MATCH 'abc' LIMIT 1").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def remove_search(store: Path) -> None:
    """Delete the index, which will be rebuilt, so that a search cannot find forgotten text."""
    for suffix in _SIZES:
        with suppress(FileNotFoundError):
            (store / (SEARCH_FILE + suffix)).unlink()
