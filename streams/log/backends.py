"""Open the backends of a store's directory, and explain the operating system's errors."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

from streams.errors import StoreUnavailable
from streams.stores.directory import Backend, create
from streams.stores.disk import Disk
from streams.stores.journal.store import SEGMENT_BYTES as JOURNAL_SEGMENT_BYTES
from streams.stores.journal.store import JournalStore
from streams.stores.jsonl.store import SEGMENT_BYTES, JsonlStore
from streams.stores.space import mib_to_open
from streams.stores.sqlite.search import SearchIndex
from streams.stores.sqlite.store import SqliteStore

__all__ = ["DiskStore", "MigratingStore", "SearchIndex", "open_backend", "unavailable"]

MigratingStore = JsonlStore | SqliteStore
DiskStore = MigratingStore | JournalStore


async def open_backend(
    store: Path, backend: Backend, *, disk: Disk | None = None, segment_bytes: int = SEGMENT_BYTES
) -> DiskStore:
    """Open a backend in a directory whose lock the caller holds. Raises the errors of the backend's ``open``."""

    def jsonl() -> JsonlStore:
        create(store)
        return JsonlStore(store, disk or Disk(), segment_bytes)

    def journal() -> JournalStore:
        create(store)
        return JournalStore(store, disk or Disk(), min(segment_bytes, JOURNAL_SEGMENT_BYTES))

    try:
        if backend == "sqlite":
            return await SqliteStore.open(store)
        return await asyncio.to_thread(journal if backend == "journal" else jsonl)
    except OSError as error:
        raise unavailable(store, error) from error


def unavailable(store: Path, error: OSError) -> StoreUnavailable:
    """Explain an error of the operating system that occurred while a store was being opened."""
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = (
            "another user owns this file, or you lack permission: choose another home, or ask the file's owner to "
            "transfer it to you"
        )
        return StoreUnavailable(f"cannot open the log in {store}: {error.filename or store}: {error.strerror}", hint)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = f"free {mib_to_open(store)} MiB on that disk, then run the same command again"
    elif error.errno == errno.EROFS:
        hint = "mount the file system writable, or copy the home elsewhere"
    else:
        hint = "check that you own the directory and that the disk has free space"
    return StoreUnavailable(f"cannot open the log in {store}: {error.strerror or error}", hint)
