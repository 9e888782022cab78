"""A file that only takes space: given up for a removal on a full disk, which needs some to make room.

What is removed is noted before anything is deleted, a segment is rewritten beside itself, and SQLite writes what it
deletes into its write-ahead file first. So on a disk without any space left nothing could be removed, unless some was
set aside before. It grows with the log, as what a removal needs does.

A hint: it may be deleted, and where it cannot be made nothing is wrong.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from streams.errors import StoreUnavailable

RESERVE_FILE: Final = "reserve"

MIB: Final = 1024 * 1024
LEAST_BYTES: Final = 2 * MIB
MOST_BYTES: Final = 16 * MIB
"""The digests of a whole segment's records, or what SQLite's write-ahead file adds to its database between two
checkpoints, for events of ordinary size."""

SHARE: Final = 2
"""One part in so many of what the store takes; but never more than half of what is free."""

TIGHT_BYTES: Final = 128 * MIB
"""With more free space than that, no removal needs the reserve."""


OPENING_BYTES: Final = MIB
"""For small files that are made or rewritten at an opening, and the first step of a removal."""


class Reserve:
    """The reserve of one store. Blocking; only the holder of the store's lock uses it."""

    def __init__(self, store: Path) -> None:
        self._store, self._path = store, store / RESERVE_FILE

    def keep(self) -> None:
        """Make it, or make it larger where the log has grown; left as it is where that would leave little space."""
        with suppress(OSError):
            held = self._size()
            room = free_bytes(self._store) + held
            wanted = min(max(store_bytes(self._store) // SHARE, LEAST_BYTES), room // 2, MOST_BYTES)
            wanted -= wanted % MIB
            # Not for every little that the log grows.
            if wanted >= LEAST_BYTES and (held < LEAST_BYTES or held * 2 <= wanted):
                self._make(wanted)

    def give_up(self) -> int:
        """Delete it if the disk is nearly full; returns how many bytes that gave."""
        with suppress(OSError):
            held = self._size()
            if held and free_bytes(self._store) < TIGHT_BYTES:
                self._path.unlink()
                return held
        return 0

    def take_back(self, size: int) -> None:
        """After a removal for which ``size`` bytes were given up: what it gave back is the reserve's first."""
        if not size:
            return
        with suppress(OSError):
            self._make(min(size, free_bytes(self._store) // 2))
        self.keep()

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _make(self, size: int) -> None:
        """Blocks that are really taken; nothing is left of what cannot be made whole."""
        self._path.unlink(missing_ok=True)
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, size)
            else:
                for _ in range(0, size, MIB):
                    os.write(fd, bytes(MIB))
        except OSError:
            self._path.unlink()
            raise
        finally:
            os.close(fd)


def no_room(store: Path, missing: int) -> StoreUnavailable:
    """The refusal of a removal for which so many bytes are missing."""
    return StoreUnavailable(
        f"the disk of {store} has too little free space to remove records, which needs some before it gives any back; "
        "the records that are left were not touched",
        f"free {_mib(missing)} MiB on that disk, then run the same command again",
    )


def mib_to_open(store: Path) -> int:
    """How many MiB to free on a disk on which the log could not be opened, for it to be opened and records removed."""
    wal = store / "log.db-wal"
    with suppress(OSError):
        # What SQLite has written beside its database may have to find room in it.
        kept = wal.stat().st_size if wal.exists() else 0
        return _mib(OPENING_BYTES + kept - free_bytes(store))
    return _mib(OPENING_BYTES)


def _mib(missing: int) -> int:
    return max(1, -(-missing // MIB))


def free_bytes(place: Path) -> int:
    """What this user may still write where ``place`` lies. Raises ``OSError``."""
    return shutil.disk_usage(place).free


def store_bytes(store: Path) -> int:
    """What the store takes on the disk, indexes and all, without the reserve."""
    total = 0
    for path in store.rglob("*"):
        with suppress(FileNotFoundError):  # a file that its owner removed meanwhile
            total += path.stat().st_size if path.is_file() and path.name != RESERVE_FILE else 0
    return total
