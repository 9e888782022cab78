"""The files of a backend that is not the truth, a copy that a move left or began: deleting them, and what they take."""

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
"""So many times what a log takes as lines it takes at most as rows with their keys, for events of
ordinary size."""

WAL_BYTES: Final = 16 * MIB
"""About the most that SQLite's write-ahead file takes while records are copied."""


def missing_for_copy(store: Path, to: Backend) -> int:
    """About how many bytes must be freed for a move to ``to``, rather too many than too few; never below one MiB.

    An earlier copy is continued, so its bytes are not counted again.
    """
    database = _size(store / LOG_FILE) + _size(store / (LOG_FILE + "-wal"))
    lines = sizes_of(store / "log")
    if to == "jsonl":
        # The write-ahead file may have to find room in the database first.
        whole, there = database + _size(store / (LOG_FILE + "-wal")), lines.bytes
    else:
        whole, there = ROWS_TO_LINES * lines.bytes + min(lines.bytes, WAL_BYTES), database
    return max(whole - there + 2 * MIB - free_bytes(store), MIB)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def holds_payloads(store: Path, backend: Backend) -> bool:
    """Whether any file of a backend may hold payloads; a file that cannot be read counts."""
    places = [store / "log"] if backend == "jsonl" else _database_files(store)
    try:
        return any(any(place.iterdir()) if _is_directory(place) else os.path.lexists(place) for place in places)
    except OSError:
        return True


def kept_facts(store: Path, manifest: Manifest) -> dict[str, Any] | None:
    """``{backend, head, there}`` of the store that the last move left; ``None`` where none is kept.

    ``there``: something is left of it that may hold payloads. Somebody may have deleted it by hand.
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
    """Delete a backend's files; returns the bytes freed. The caller knows that they are not the truth."""
    manifest = read_manifest(store)
    if manifest is not None and manifest.backend == backend:
        raise ValueError(f"{backend} holds the log")
    # sqlite's head file first: one that is left alone would say that a log was lost.
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
    """Delete what there is of the other backend than ``backend``, which holds the log; returns the bytes freed."""
    return discard(store, "jsonl" if backend == "sqlite" else "sqlite")
