"""Counts what is waiting in the spool directory. Loads nothing else, because ``status`` uses it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def backlog(directory: Path) -> dict[str, int]:
    """``{files, bytes}`` of the spool files; zero if the spool directory does not exist."""
    sizes = []
    for path in spools(directory):
        with suppress(FileNotFoundError):  # the file was recorded and deleted after the directory was listed
            sizes.append(path.lstat().st_size)
    return {"files": len(sizes), "bytes": sum(sizes)}


def spools(directory: Path) -> list[Path]:
    """The spool files in the directory, by name; empty if the directory does not exist."""
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == ".jsonl")
    except FileNotFoundError:
        return []
