"""Deleting the files of a backend that is not the truth: a copy that a move left or began."""

from __future__ import annotations

import shutil
from pathlib import Path

from streams.stores.directory import Backend, read_manifest
from streams.stores.sqlite_files import LOG_FILE, SEARCH_FILE
from streams.stores.sqlite_head import HEAD_FILE


def discard(store: Path, backend: Backend) -> int:
    """Delete a backend's files; returns the bytes freed. The caller knows that they are not the truth."""
    manifest = read_manifest(store)
    if manifest is not None and manifest.backend == backend:
        raise ValueError(f"{backend} holds the log")
    if backend == "jsonl":
        places = [store / "log", store / "head"]
    else:
        # The head file first: one that is left alone would say that a log was lost.
        places = [store / HEAD_FILE]
        places += [store / (name + suffix) for name in (LOG_FILE, SEARCH_FILE) for suffix in ("", "-wal", "-shm")]
    freed = 0
    for place in places:
        if place.is_dir() and not place.is_symlink():
            freed += sum(path.stat().st_size for path in place.iterdir())
            shutil.rmtree(place)
        elif place.exists():
            freed += place.stat().st_size
            place.unlink()
    return freed


def discard_copy(store: Path, backend: Backend) -> int:
    """Delete what there is of the other backend than ``backend``, which holds the log; returns the bytes freed."""
    return discard(store, "jsonl" if backend == "sqlite" else "sqlite")
