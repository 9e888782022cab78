"""The head file of a sqlite log: its last record, kept next to the database to detect lost records.

SQLite treats a deleted, cut or damaged WAL like a WAL that ends earlier, so the log reads as an earlier, intact log. To
detect that, ``sqlite-head`` also holds the last record's position and hash, in the same format as the jsonl head file.
``sqlite-head`` is written after a commit is durable and before the commit is acknowledged, in place and without a sync:

- *below the log's end*: a kill or a power loss left the head file there, and it is moved forward the next time the log
  is opened for writing. Neither of these can leave the head file *beyond the end*: the system keeps a killed process's
  writes in order, and the records that the file names were synced before a power loss. So a head file beyond the end
  means that records are lost, and the log is refused.
- *missing* next to a log that holds records: it was lost, and ``verify`` says so, because the head file is created
  durably before the log.

The name ``sqlite-head`` does not begin like the names of SQLite's files, so deleting ``log.db-*`` does not delete the
head file.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from streams.errors import CorruptLog, StoreLocked, StreamError
from streams.findings import Finding
from streams.store import NOTHING
from streams.stores.disk import Disk
from streams.stores.head import Head, format_head, read_head
from streams.stores.sqlite.files import LOG_FILE, STEPS, connect_to_read, translated
from streams.stores.sqlite.removed import head_of
from streams.system.files import open_or_create, write_durably

HEAD_FILE: Final = "sqlite-head"

_AT: Final = "SELECT hash FROM records WHERE position = ?"
_LAST: Final = "SELECT position, hash FROM records ORDER BY position DESC LIMIT 1"


class HeadFile:
    """The head file of a log that is open for writing. The methods block, and only one writer may use them."""

    def __init__(self, store: Path, connection: sqlite3.Connection) -> None:
        """Open the head file and move it forward to the log's last record.

        Raises:
            OSError: the head file cannot be written.
            ForeignStore: the log is damaged where its last record should be.
        """
        known = read_head(store / HEAD_FILE)
        with translated(store / LOG_FILE, "opening"):
            found = connection.execute(_LAST).fetchone()
        self._fd = open_or_create(store / HEAD_FILE)
        # Never move the head file back: if the last records were pruned, the head is beyond the last record.
        if found is not None and (known is None or found[0] > known.position):
            try:
                self.write(*found)
            except BaseException:
                self.close()
                raise

    def write(self, position: int, hash_: bytes) -> None:
        """Write the position and hash of the last record, which is already durable. Raises ``OSError``."""
        Disk().rewrite(self._fd, format_head(Head(position, hash_.hex())))

    def close(self) -> None:
        os.close(self._fd)


def make_head_file(store: Path) -> bool:
    """Create a missing head file before a log is opened for writing. Return true if a log exists and its head file was
    lost.

    Raises:
        CorruptLog: the log has fewer records than its head file says. Nothing was changed.
        StreamError: the log cannot be read.
        OSError: the file cannot be created.
    """
    path = store / LOG_FILE
    known = read_head(store / HEAD_FILE)
    connection = connect_to_read(path, len(STEPS), alone=True)
    try:
        with translated(path, "opening"):
            _refuse(None if known is None else _fault(path, connection, known))
            was_made = connection is not None and head_of(connection) > NOTHING
    finally:
        if connection is not None:
            connection.close()
    if known is None:
        # Sync the new file. Later rewrites are not synced: a power loss may leave an older file, but never no file.
        write_durably(store / HEAD_FILE, format_head(Head(NOTHING, "")))
    return known is None and was_made


def holds_known_log(store: Path, *, alone: bool = False) -> bool:
    """True if ``log.db`` holds a log. An unreadable file counts as a log, and the next read reports the damage.

    ``alone``: see ``connect_to_read``.

    Raises:
        CorruptLog: the log has fewer records than its head file says.
        ForeignStore: a file is a symbolic link.
        StoreLocked: another program holds the file. Another attempt would wait just as long.
    """
    path = store / LOG_FILE
    while True:
        # Read the head file before the log: a running writer commits first and then updates the head file.
        known = read_head(store / HEAD_FILE)
        try:
            connection = connect_to_read(path, len(STEPS), alone=alone)
        except StoreLocked:
            raise
        except StreamError:
            return True
        if connection is None:
            return False
        try:
            fault = None if known is None else _fault(path, connection, known)
        except sqlite3.Error:
            return True
        finally:
            connection.close()
        if fault is None or read_head(store / HEAD_FILE) == known:
            _refuse(fault)
            return True
        # The head file now belongs to another log, so look again: the log that we opened was migrated, its store was
        # discarded, and a new log began here.


def head_fault(path: Path, known: Head, last: int, hash_: bytes | None) -> Finding | None:
    """How a log that ends at ``last`` contradicts its head file, if it does. Pure.

    ``hash_`` is the hash of the log's record at the head file's position; ``None`` if that record was pruned.
    """
    first, end = last + 1, known.position
    if end >= first:
        lost = f"record {end} was written and is" if end == first else f"records {first} to {end} were written and are"
        reason = f"{lost} missing: {LOG_FILE}-wal was deleted, cut or damaged, or {LOG_FILE} is an older copy"
        return Finding("missing", str(path), first + 1, first, None, reason)
    if known.hash and hash_ is not None and hash_.hex() != known.hash:
        reason = f"it is not the record named in {HEAD_FILE}: {LOG_FILE} is another log or was changed"
        return Finding("tampered", str(path), known.position + 1, known.position, None, reason)
    return None


def _fault(path: Path, connection: sqlite3.Connection | None, known: Head) -> Finding | None:
    if connection is None:
        return head_fault(path, known, NOTHING, None)
    connection.execute("BEGIN")
    try:
        last = head_of(connection)
        row = connection.execute(_AT, [known.position]).fetchone()
    finally:
        connection.execute("COMMIT")
    return head_fault(path, known, last, None if row is None else row[0])


def _refuse(fault: Finding | None) -> None:
    if fault is not None:
        raise CorruptLog(fault.file, fault.line, fault.position, fault.reason)
