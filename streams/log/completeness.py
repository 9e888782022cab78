"""Whether a log is in a directory, and whether all of it is there.

The database is created before ``store.json`` first names the log. So a named log without its database was deleted, and
so was one of which only the journal or its head file is left. In both cases writers and readers stop, because a writer
would begin a second log in place of the first, and a reader would show an empty log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from streams.errors import MissingLog
from streams.store import NOTHING
from streams.stores.directory import MANIFEST, Manifest, read_manifest
from streams.stores.head import read_head
from streams.stores.journal.segments import HEAD, JOURNAL, list_segments
from streams.stores.sqlite.files import LOG_FILE, holds_log

HEAD_FILE: Final = HEAD
RESTORE: Final = "restore the store from a backup"


def located(store: Path) -> Manifest | None:
    """Return the manifest after checking that its log exists; ``None`` if no log was begun.

    Raises:
        ForeignStore: see ``read_manifest``.
        MissingLog: records exist without a ``store.json``, or ``store.json`` names a log whose database is missing.
        StoreLocked: another program holds the database.
    """
    manifest = read_manifest(store)
    while True:
        found = _missing(store, manifest)
        if found is None:
            return manifest
        # Another process may have begun or deleted the log since its manifest was read.
        if (now := read_manifest(store)) == manifest:
            raise MissingLog(str(store), found, RESTORE)
        manifest = now


def _missing(store: Path, manifest: Manifest | None) -> str | None:
    if manifest is not None:
        if holds_log(store / LOG_FILE):
            return None
        return f"{MANIFEST} names a log, but {LOG_FILE} is missing or empty"
    if left := left_files(store):
        return f"{', '.join(left)} is left of a log, but {MANIFEST}, which names it, is missing"
    return None


def left_files(store: Path) -> list[str]:
    """The names of the files that hold records, or say that there were some, whatever ``store.json`` says.

    Raises:
        ForeignStore: a file is a symbolic link.
    """
    found: list[str] = []
    if holds_log(store / LOG_FILE, records=True):
        found.append(LOG_FILE)
    if any(segment.path.stat().st_size for segment in list_segments(store / JOURNAL)):
        found.append(JOURNAL)
    head = read_head(store / HEAD)
    if head is not None and head.position > NOTHING:
        found.append(HEAD)
    return found


def holds_files(store: Path) -> bool:
    """True if the log's database exists, readable or not.

    Raises:
        ForeignStore: a file is a symbolic link.
    """
    return (store / LOG_FILE).exists() and (store / LOG_FILE).stat().st_size > 0
