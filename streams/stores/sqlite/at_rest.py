"""Reading a database at rest, without leaving a file next to it.

To read a database in WAL mode SQLite makes ``-wal`` and ``-shm`` where they are not
there, also for a connection that cannot write. ``immutable`` keeps it from
that, and from all locking: right only while nobody writes. So a reader counts on it
where no process holds the store's lock and no WAL is there, which every writer
and every other program that has the database open would have made; and after
each reading it looks whether the file is still the one it was. If not, what was
read is thrown away and read again.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from streams.stores.directory import is_being_written

Seen = tuple[int, int, int, int]
"""Which file it is, how long, and when it was last written."""

_OF_A_WRITER: Final = ("-wal", "-journal")


class ReadConnection(sqlite3.Connection):
    """A connection that cannot write. ``seen``: it counts on the file's staying so; ``None``: SQLite's locks hold."""

    seen: Seen | None = None
    alone: bool = False
    """The caller holds the store's lock itself, or has made sure that no process does."""

    def is_right(self, path: Path) -> bool:
        """Whether what was read so far is what the file held."""
        return self.seen is None or seen(path) == self.seen

    def can_go_on(self, path: Path) -> bool:
        """Whether what is read next will be."""
        return self.seen is None or at_rest(path, self.alone) == self.seen


def at_rest(path: Path, alone: bool = False) -> Seen | None:
    """The state of the file if no process writes to it and everything written is in it; else ``None``.

    ``alone``: the caller holds the store's lock and does not write, so nobody writes.
    """
    found = seen(path)  # first: what a writer changes during the checks below shows afterwards
    try:
        if not alone and is_being_written(path.parent):
            return None
    except OSError:
        return None
    if any(path.with_name(path.name + suffix).exists() for suffix in _OF_A_WRITER):
        return None
    return found


def seen(path: Path) -> Seen | None:
    """What the file is now; ``None`` where none is."""
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
    return None
