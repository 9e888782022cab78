"""What ``repair`` looks at and does in a sqlite store's own files."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from streams.errors import StoreUnavailable, StreamError
from streams.stores.sqlite_files import (
    LOG_FILE,
    SEARCH_FILE,
    SEARCH_STEPS,
    STEPS,
    connect_to_read,
    connect_to_write,
    translated,
)


def rebuild_indexes(store: Path) -> None:
    """Build every index of the log anew from its rows. All or nothing: SQLite checks the file before it is committed.

    Raises:
        StoreUnavailable: the file is still damaged then, or cannot be written; it is as it was.
        ForeignStore: it cannot be opened at all.
        OSError: the disk is full or failing.
    """
    path = store / LOG_FILE
    connection = connect_to_write(path, STEPS)
    try:
        with translated(path, "rebuilding the indexes of"):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("REINDEX")
            said = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if said != "ok":
                connection.rollback()
                raise StoreUnavailable(
                    f"{path} is damaged beyond its indexes: {' '.join(str(said).split())}",
                    "every record can be read: `durable-stream migrate --to jsonl` copies them into sound files",
                )
            connection.execute("COMMIT")
    finally:
        connection.close()


def is_search_damaged(store: Path, head: int) -> bool:
    """Whether there is a search index that SQLite finds fault with, or that has indexed more than the log holds."""
    path = store / SEARCH_FILE
    if not path.exists():
        return False
    try:
        connection = connect_to_read(path, len(SEARCH_STEPS))
    except (StreamError, OSError):
        return True
    if connection is None:
        return False  # begun and empty
    try:
        position = connection.execute("SELECT position FROM progress").fetchone()[0]
        said = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except (sqlite3.Error, TypeError):
        return True
    finally:
        connection.close()
    return said != "ok" or not isinstance(position, int) or position > head
