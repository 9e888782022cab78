"""Counts what is waiting in the spool directory. Loads nothing else, because ``status`` uses it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Backlog:
    """The number and size of the spool files."""

    files: int
    bytes: int


def backlog(directory: Path) -> Backlog:
    """Count the spool files and their bytes; zero if the spool directory does not exist."""
    sizes = []
    for path in spools(directory):
        with suppress(FileNotFoundError):  # the file was recorded and deleted after the directory was listed
            sizes.append(path.lstat().st_size)
    return Backlog(len(sizes), sum(sizes))


def spools(directory: Path) -> list[Path]:
    """The spool files in the directory, by name; empty if the directory does not exist."""
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == ".jsonl")
    except FileNotFoundError:
        return []
