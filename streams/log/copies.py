"""Measures and deletes the files of a store that does not hold the log, but that a migration began or left behind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Final

from streams.stores.directory import Backend, Manifest, read_manifest
from streams.stores.jsonl.segments import sizes_of
from streams.stores.space import MIB, free_bytes
from streams.stores.sqlite.files import LOG_FILE, SEARCH_FILE
from streams.stores.sqlite.head import HEAD_FILE

ROWS_TO_LINES: Final = 2
"""For events of ordinary size, a sqlite log is at most this many times as large as a jsonl log of the same events."""

WAL_BYTES: Final = 16 * MIB
"""The approximate maximum size of SQLite's write-ahead file while records are copied."""


def missing_for_copy(store: Path, to: Backend) -> int:
    """Estimate how many bytes to free for a migration to ``to``. The estimate is rather too high than too low, and at
    least one MiB.

    The migration continues an earlier copy, so the copy's bytes do not count again.
    """
    database = _size(store / LOG_FILE) + _size(store / (LOG_FILE + "-wal"))
    lines = sizes_of(store / "log")["bytes"]
    if to == "jsonl":
        # Count the write-ahead file twice, because its pages may have to be moved into the database before the copy.
        whole, there = database + _size(store / (LOG_FILE + "-wal")), lines
    else:
        whole, there = ROWS_TO_LINES * lines + min(lines, WAL_BYTES), database
    return max(whole - there + 2 * MIB - free_bytes(store), MIB)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def holds_payloads(store: Path, backend: Backend) -> bool:
    """True if any file of a backend may hold payloads; an unreadable file counts."""
    places = [store / "log"] if backend == "jsonl" else _database_files(store)
    try:
        return any(any(place.iterdir()) if _is_directory(place) else os.path.lexists(place) for place in places)
    except OSError:
        return True


def kept_facts(store: Path, manifest: Manifest) -> dict[str, Any] | None:
    """``{backend, head, there}`` of the old store that the last migration left behind; ``None`` if there is none.

    ``there`` is true if some file of the old store may still hold payloads, and false if, for example, somebody deleted
    the store by hand.
    """
    kept = manifest.kept
    if kept is None:
        return None
    return {"backend": kept.backend, "head": kept.head, "there": holds_payloads(store, kept.backend)}


def _database_files(store: Path) -> list[Path]:
    return [store / (name + suffix) for name in (LOG_FILE, SEARCH_FILE) for suffix in ("", "-wal", "-shm")]


def _is_directory(place: Path) -> bool:
    return place.is_dir() and not place.is_symlink()


def discard(store: Path, backend: Backend) -> int:
    """Delete a backend's files and return the bytes freed. The caller must know that these files are not the log."""
    manifest = read_manifest(store)
    if manifest is not None and manifest.backend == backend:
        raise ValueError(f"the log is in {backend}, so this store cannot be deleted")
    # Delete sqlite's head file before the database, because a head file without a database looks like a lost log.
    database = [store / HEAD_FILE, *_database_files(store)]
    places = [store / "log", store / "head"] if backend == "jsonl" else database
    freed = 0
    for place in places:
        if _is_directory(place):
            freed += sum(path.stat().st_size for path in place.iterdir())
            shutil.rmtree(place)
        elif place.exists():
            freed += place.stat().st_size
            place.unlink()
    return freed


def discard_copy(store: Path, backend: Backend) -> int:
    """Delete the files of the backend other than ``backend``, which holds the log; return the bytes freed."""
    return discard(store, "jsonl" if backend == "sqlite" else "sqlite")
