"""Which stores are in a directory, and whether the store that ``store.json`` names is among them.

A backend's files are created before ``store.json`` first names the backend. So a store that is named but missing was
deleted, and so was a store of which only the head file is left. In both cases writers and readers stop, because a
writer would begin a second log in place of the first, and a reader would show an empty log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from streams.errors import MissingLog, StreamError
from streams.store import NOTHING
from streams.stores.directory import MANIFEST, Backend, KeptStore, Manifest, read_manifest
from streams.stores.head import read_head
from streams.stores.jsonl.segments import list_segments
from streams.stores.sqlite.files import LOG_FILE, holds_log
from streams.stores.sqlite.head import HEAD_FILE, holds_known_log

HEAD_FILES: Final = ("head", HEAD_FILE)


def located(store: Path, *, alone: bool = False) -> Manifest | None:
    """Return the manifest after checking that the store it names exists; ``None`` if no log was begun.

    ``alone``: the caller holds the store's lock and has none of the store's files open.

    Raises:
        ForeignStore: see ``read_manifest``.
        MissingLog: records exist without a ``store.json``, or ``store.json`` names a missing store.
        CorruptLog: a sqlite log has fewer records than its head file says. A jsonl log is checked when it is read.
        StoreLocked: another program holds the database.
    """
    manifest = read_manifest(store)
    while True:
        try:
            _refuse_missing(store, manifest, alone)
        except MissingLog:
            # Another process may have begun, migrated or deleted the log since its manifest was read.
            if (now := read_manifest(store)) == manifest:
                raise
            manifest = now
        else:
            return manifest


def _refuse_missing(store: Path, manifest: Manifest | None, alone: bool) -> None:
    if manifest is None:
        if with_records(store, alone=alone):
            hint = (
                f"`durable-stream repair` rewrites {MANIFEST} if every record passes verification; otherwise restore "
                "it from a backup"
            )
            found = f"it holds a log, but {MANIFEST}, which says which store is the log, is missing"
            raise MissingLog(str(store), found, hint)
        lost = left_alone(store)
        if lost is not None:
            raise MissingLog(str(store), lost.reason, lost.hint)
    elif manifest.backend == "journal":
        if not holds_log(store / LOG_FILE, alone=alone):
            raise _gone(store, manifest, alone, f"{LOG_FILE} is missing or empty")
    elif manifest.backend == "jsonl":
        # If the head file or a segment is left, the log was here, and reading the log reports what is missing.
        if not (store / "head").exists() and not list_segments(store / "log"):
            raise _gone(store, manifest, alone, "log/ and head are missing")
    elif not holds_known_log(store, alone=alone):
        raise _gone(store, manifest, alone, f"{LOG_FILE} is missing or empty")


class LeftAlone(NamedTuple):
    """A head file whose log and ``store.json`` are gone; ``position`` is the position in the head file."""

    file: Path
    position: int

    @property
    def reason(self) -> str:
        return (
            f"{self.file.name} says that records up to position {self.position} were written, but both the log and "
            f"{MANIFEST} are missing"
        )

    @property
    def hint(self) -> str:
        return f"restore the store from a backup; without one, move {self.file.name} away to start a new log"


def left_alone(store: Path) -> LeftAlone | None:
    """The head file of a deleted log. Call this only without ``store.json`` and without records."""
    found = [LeftAlone(store / name, head.position) for name in HEAD_FILES if (head := read_head(store / name))]
    return max((each for each in found if each.position > NOTHING), key=lambda each: each.position, default=None)


def with_records(store: Path, *, alone: bool = False) -> list[Backend]:
    """The backends that have records, or an unreadable file, in the directory, whatever ``store.json`` says.

    Raises:
        ForeignStore: a file is a symbolic link.
    """
    found: list[Backend] = []
    if any(segment.path.stat().st_size for segment in list_segments(store / "log")):
        found.append("jsonl")
    if holds_log(store / LOG_FILE, records=True, alone=alone):
        found.append("sqlite")
    return found


def holds_files(store: Path, backend: Backend) -> bool:
    """True if any part of a backend's log exists, readable or not.

    Raises:
        ForeignStore: a file is a symbolic link.
    """
    if backend != "jsonl":
        return (store / LOG_FILE).exists() and (store / LOG_FILE).stat().st_size > 0
    return read_head(store / "head") is not None or bool(list_segments(store / "log"))


def _gone(store: Path, manifest: Manifest, alone: bool, what: str) -> MissingLog:
    others = [backend for backend in with_records(store, alone=alone) if backend != manifest.backend]
    kept = "".join(f"; {backend} also holds records, which may be older" for backend in others)
    if manifest.kept is not None and manifest.kept.backend in others:
        kept = f"; {_kept_words(manifest.kept)}"
    return MissingLog(
        str(store),
        f"{MANIFEST} says that the log is in {manifest.backend}, but {what}{kept}",
        "restore the store from a backup; `durable-stream repair --dry-run` shows what else can be done",
    )


def kept_hint(store: Path) -> str | None:
    """The hint, for a damaged log, about the old store that a migration kept; ``None`` if there is no old store."""
    try:
        manifest = read_manifest(store)
        if manifest is None or manifest.kept is None or manifest.kept.backend not in with_records(store):
            return None
    except (StreamError, OSError):
        return None  # the code that needs the manifest reports the error
    command = "`durable-stream repair --dry-run`"
    return f"{_kept_words(manifest.kept)}: {command} shows whether that store is intact and how to use it"


def _kept_words(kept: KeptStore) -> str:
    return f"the old store in {kept.backend}, from which the log migrated, still exists, up to position {kept.head}"
