"""Reads a database at rest, without leaving a file next to the database.

To read a database in WAL mode, SQLite creates missing ``-wal`` and ``-shm`` files, even for a connection that cannot
write. The option ``immutable`` prevents that, but also all locking, so it is safe only while nobody is writing. So a
reader uses ``immutable`` if no process holds the store's lock and there is no WAL, which every writer and every other
program with the database open would have created. After each read, the reader checks that the file is unchanged;
otherwise it discards what it read and reads again.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from streams.stores.directory import is_being_written

Seen = tuple[int, int, int, int]
"""What identifies a file's state: which file it is, its size, and when it was last written."""

_OF_A_WRITER: Final = ("-wal", "-journal")


class ReadConnection(sqlite3.Connection):
    """A connection that cannot write. ``seen`` is the state that the file must keep; ``None`` if SQLite's locks protect
    the file.
    """

    seen: Seen | None = None
    alone: bool = False
    """True if the caller holds the store's lock, or has made sure that no process holds it."""

    def is_right(self, path: Path) -> bool:
        """True if everything read so far is valid."""
        return self.seen is None or seen(path) == self.seen

    def can_go_on(self, path: Path) -> bool:
        """True if the next read will be valid."""
        return self.seen is None or at_rest(path, self.alone) == self.seen


def at_rest(path: Path, alone: bool = False) -> Seen | None:
    """The file's state if no process is writing to the file and it contains everything written; otherwise ``None``.

    ``alone``: the caller holds the store's lock and does not write, so nobody writes.
    """
    found = seen(path)  # read the state first, so that a change during the checks below is noticed
    try:
        if not alone and is_being_written(path.parent):
            return None
    except OSError:
        return None
    if any(path.with_name(path.name + suffix).exists() for suffix in _OF_A_WRITER):
        return None
    return found


def seen(path: Path) -> Seen | None:
    """The file's state now; ``None`` if the file is missing."""
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
    return None
