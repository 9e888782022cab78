"""The full-text index of a sqlite log: every payload's text, in trigrams, in a separate file.

The index is derived from the log, so it may lag or be deleted at any time. A search asks the index for matching indexed
records, and reads all other records itself, so results never depend on the index. Trigrams without positions
(``detail=none``) find candidates for any part of a text of three characters or more; ``Filter`` checks them.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from streams.query import payload_text
from streams.stores.sqlite.files import (
    LOG_FILE,
    SEARCH_FILE,
    SEARCH_STEPS,
    STEPS,
    connect_to_read,
    connect_to_write,
    translated,
)
from streams.stores.sqlite.rows import SELECT, record_of

_SIZES: Final = ("", "-wal", "-shm")
_CHECKPOINT_PAGES: Final = 1000


class SearchIndex:
    """The one writer of ``search.db``. The methods block; use them from one thread at a time.

    Raises:
        StreamError, OSError: a file cannot be opened, read or written.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._path, self._log_path = store / SEARCH_FILE, store / LOG_FILE
        self._connection = _connect(self._path)
        self._file = self._path.stat().st_ino
        self._log: sqlite3.Connection | None = None

    @property
    def position(self) -> int:
        """The last indexed position; -1 for none."""
        with translated(self._path, "reading"):
            found: int = self._connection.execute("SELECT position FROM progress").fetchone()[0]
        return found

    def advance(self, most: int) -> int:
        """Index at most ``most`` next records. Return how many there were."""
        self._follow_file()
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
        if self._path.exists() and self._path.stat().st_ino == self._file:
            return
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
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    return connection


def remove_search(store: Path) -> None:
    """Delete the index, which will be rebuilt, so that a search cannot find forgotten text."""
    for suffix in _SIZES:
        with suppress(FileNotFoundError):
            (store / (SEARCH_FILE + suffix)).unlink()
