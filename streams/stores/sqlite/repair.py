"""What ``repair`` checks and does in a sqlite store's own files."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final, Literal

from streams.errors import StoreLocked, StreamError
from streams.stores.sqlite.files import (
    LOG_FILE,
    SEARCH_FILE,
    SEARCH_STEPS,
    STEPS,
    connect_to_read,
    connect_to_write,
    translated,
)

_TABLES: Final = "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"

_EMPTY: Final = 'DELETE FROM main."{}"'
_COPY: Final = 'INSERT INTO main."{}" SELECT * FROM damaged."{}" NOT INDEXED ORDER BY 1'
"""Reads rows in the table's own order, without an index. A plain copy would include the damaged indexes' pages."""


SearchFault = Literal["damaged", "ahead"]


def copy_rows(store: Path, target: Path) -> None:
    """First move the log's WAL into its database, then copy every row to a new database ``target``, with new indexes.

    Raises:
        ForeignStore: a row cannot be read.
        StoreLocked: another program has the log open.
        OSError: the disk is full or failing.
    """
    path = store / LOG_FILE
    _take_in_wal(path)
    connection = connect_to_write(target, STEPS)
    try:
        with translated(path, "copying"):
            connection.execute("ATTACH ? AS damaged", [f"{path.absolute().as_uri()}?mode=ro"])
            connection.execute("BEGIN IMMEDIATE")
            for (name,) in connection.execute(_TABLES).fetchall():
                connection.execute(_EMPTY.format(name))  # delete the schema's initial rows
                connection.execute(_COPY.format(name, name))
            connection.execute("COMMIT")
            connection.execute("DETACH damaged")
    finally:
        connection.close()


def _take_in_wal(path: Path) -> None:
    """Move the write-ahead file (WAL) into the database, because the WAL must not stay next to the database's
    replacement.
    """
    connection = connect_to_write(path, STEPS)
    try:
        with translated(path, "copying"):
            if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise StoreLocked(f"{path} is held by another program", "close that program, then try again")
    finally:
        connection.close()


def search_fault(store: Path, head: int) -> SearchFault | None:
    """The search index's fault: SQLite finds damage, or the index covers more records than the log holds."""
    path = store / SEARCH_FILE
    if not path.exists():
        return None
    try:
        connection = connect_to_read(path, len(SEARCH_STEPS), alone=True)
    except (StreamError, OSError):
        return "damaged"
    if connection is None:
        return None  # the search index is new and empty
    try:
        position = connection.execute("SELECT position FROM progress").fetchone()[0]
        said = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except (sqlite3.Error, TypeError):
        return "damaged"
    finally:
        connection.close()
    if said != "ok" or not isinstance(position, int):
        return "damaged"
    return "ahead" if position > head else None
