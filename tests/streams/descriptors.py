"""Files that this process holds open after they were deleted, so that their space is not freed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

_OPEN: Final = Path("/proc/self/fd")
_DELETED: Final = " (deleted)"

needs_descriptors = pytest.mark.skipif(not _OPEN.is_dir(), reason="only Linux shows which files a process has open")


def held_open(store: Path) -> set[str]:
    """The open files below ``store``, relative to it; a deleted file's name ends in `` (deleted)``."""
    found = set()
    for descriptor in _OPEN.iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found.add(str(descriptor.readlink()))
    return {name.removeprefix(f"{store}/") for name in found if name.startswith(f"{store}/")}


def deleted_and_open(store: Path) -> set[str]:
    """The names of the deleted files."""
    return {name.removesuffix(_DELETED) for name in held_open(store) if name.endswith(_DELETED)}
