"""The disk space that a store uses, and the space that must be freed before it can be opened."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

MIB: Final = 1024 * 1024


def free_bytes(place: Path) -> int:
    """The bytes that this user may still write on the disk of ``place``. Raises ``OSError``."""
    return shutil.disk_usage(place).free


def store_bytes(store: Path) -> int:
    """The bytes that the store takes on the disk, indexes included."""
    total = 0
    for path in store.rglob("*"):
        with suppress(FileNotFoundError):  # the file was removed in the meantime
            total += path.stat().st_size if path.is_file() else 0
    return total


def mib_to_open(store: Path) -> int:
    """How many MiB to free on a full disk before the log can be opened: space for small files and for the content of
    SQLite's WAL."""
    wal = store / "log.db-wal"
    with suppress(OSError):
        wal_bytes = wal.stat().st_size if wal.exists() else 0
        return max(1, -(-(MIB + wal_bytes - free_bytes(store)) // MIB))
    return 1
