"""The store's directory: its manifest, which names the backend, and the writer's lock.

``store.json`` is the one pointer to the log. A rename replaces it, so a
reader or the next writer sees the old backend or the new one, never half of either.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

import orjson

from streams.errors import NOT_OURS, ForeignStore, StoreLocked
from streams.files import make_directory, open_or_create, read_file, refuse_link, sync_directory, write_durably
from streams.identity import Identity

Backend = Literal["jsonl", "sqlite"]

FORMATS: Final[dict[Backend, int]] = {"jsonl": 1, "sqlite": 2}
"""Each backend's manifest format: a version that knows only jsonl must not open a sqlite store."""

NEWEST: Final = max(FORMATS.values())

MANIFEST: Final = "store.json"
LOCK: Final = "lock"


@dataclass(frozen=True, slots=True)
class Kept:
    """A store that the log moved from, still in the directory as it was at ``head``."""

    backend: Backend
    head: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of ``store.json``: where the log is, whose it is, and what an earlier migration left."""

    backend: Backend
    log_id: str
    kept: Kept | None = None

    def as_bytes(self) -> bytes:
        """The file's bytes."""
        fields: dict[str, object] = {
            "backend": self.backend,
            "format": FORMATS[self.backend],
            "log_id": self.log_id,
        }
        if self.kept is not None:
            fields["kept"] = {"backend": self.kept.backend, "head": self.kept.head}
        return orjson.dumps(fields)


def read_manifest(store: Path) -> Manifest | None:
    """Read ``store.json``; ``None`` if there is none.

    Raises:
        ForeignStore: it is not ours, damaged, or of a newer format; the directory or its lock is a symbolic link.
    """
    refuse_links(store)
    path = store / MANIFEST
    try:
        fields = orjson.loads(read_file(path))
    except FileNotFoundError:
        return None
    except orjson.JSONDecodeError:
        hint = "`durable-stream repair` rewrites it if every record verifies; else restore it from a backup"
        raise ForeignStore(str(path), f"it is damaged: {hint}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("format"), int):
        raise ForeignStore(str(path), NOT_OURS)
    if fields["format"] > NEWEST:
        raise ForeignStore(
            str(path), f"it has format {fields['format']}, this version reads up to {NEWEST}: upgrade durable-stream"
        )
    backend = fields.get("backend")
    if backend not in FORMATS:
        raise ForeignStore(str(path), "it names no backend that this version knows: upgrade durable-stream")
    return Manifest(cast(Backend, backend), str(fields.get("log_id", "")), _kept(fields.get("kept")))


def refuse_links(store: Path) -> None:
    """Raise ``ForeignStore`` if the store's directory or its lock is a symbolic link: no writer follows one.

    Also if a file is in the place of the directory or of its home.
    """
    with suppress(OSError):  # no permission: reading it says so
        file = next((path for path in (store, store.parent) if path.exists() and not path.is_dir()), None)
        if file is not None:
            hint = "choose another home with --home, or move it away"
            raise ForeignStore(str(file), f"it is not a directory, so it cannot hold a log: {hint}")
    for path in (store, store / LOCK):
        refuse_link(path)


def _kept(fields: object) -> Kept | None:
    if not isinstance(fields, dict) or fields.get("backend") not in FORMATS or not isinstance(fields.get("head"), int):
        return None
    return Kept(fields["backend"], fields["head"])


def write_manifest(store: Path, manifest: Manifest) -> None:
    """Replace ``store.json``, durably."""
    write_durably(store / MANIFEST, manifest.as_bytes())


def name_log(store: Path, manifest: Manifest | None, identity: Identity, backend: Backend) -> Manifest:
    """The manifest of a store just opened: ``manifest``, or for a new log one that this writes.

    It is written last, so that the store it names existed: see ``streams/log/presence.py``.
    """
    if manifest is None:
        manifest = Manifest(backend, identity.ulid())
        write_manifest(store, manifest)
    return manifest


def create(store: Path, *inside: Path) -> None:
    """Make missing directories durably, mode 0700. Raises as ``make_directory``."""
    for directory in (store, *inside):
        make_directory(directory)
    if not (store / MANIFEST).exists():
        # A new store, perhaps in a new home: a power loss must not lose the directories above it.
        for directory in store.absolute().parents:
            with suppress(PermissionError):  # one we may not list is not one we made
                sync_directory(directory)


def take_lock(store: Path) -> int:
    """Become the store's one writer. Closing the descriptor, or ending the process, releases the lock.

    Raises:
        StoreLocked: another process, or another store of this one, writes here.
        ForeignStore: the lock is a symbolic link.
    """
    path = store / LOCK
    refuse_link(path)
    fd = open_or_create(path)
    try:
        _lock_soon(fd)
    except BlockingIOError:
        refusal = _locked(store, fd)
        os.close(fd)
        raise refusal from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _locked(store: Path, fd: int) -> StoreLocked:
    holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "another process"
    return StoreLocked(
        f"the log in {store} is being written by process {holder}",
        "stop the sidecar with `durable-stream stop`, or wait until that process ends",
    )


def refuse_writer(store: Path) -> None:
    """Raise ``StoreLocked``, as ``take_lock`` does, if a writer holds the lock now; take and make nothing.

    Raises:
        ForeignStore: the lock is a symbolic link.
    """
    if is_being_written(store):
        fd = os.open(store / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            raise _locked(store, fd)
        finally:
            os.close(fd)


def _lock_soon(fd: int) -> None:
    """Lock, retrying briefly: a verifying reader takes a shared lock for an instant to detect a writer."""
    for _ in range(5):
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.01)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_being_written(store: Path) -> bool:
    """True if a writer holds the store's lock now. Raises ``ForeignStore`` if that is a symbolic link."""
    refuse_link(store / LOCK)
    try:
        fd = os.open(store / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
