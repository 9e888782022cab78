"""Counts what is waiting in the spool directory. Loads nothing else, because ``status`` uses it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def backlog(directory: Path) -> dict[str, int]:
    """``{files, bytes}`` of the spool files, and the number of ``marks``."""
    sizes = []
    for path in spools(directory):
        with suppress(OSError):  # the file was recorded and deleted after the directory was listed
            sizes.append(path.lstat().st_size)
    return {"files": len(sizes), "bytes": sum(sizes), "marks": len(marks(directory))}


def spools(directory: Path) -> list[Path]:
    """The spool files in the directory, by name; empty if the directory does not exist."""
    return sorted(path for path in _files(directory) if path.suffix == ".jsonl")


def marks(directory: Path) -> list[Path]:
    """The marks of plugins that hold hooks in memory alone, or have lost them; they are in the directory or beside the
    home."""
    home = directory.parent
    beside = [path for path in _files(home.parent) if path.name.startswith(f"{home.name}.")]
    return [path for path in [*_files(directory), *beside] if path.suffix.startswith(".lost")]


def _files(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:  # it does not exist, or is none of ours
        return []
