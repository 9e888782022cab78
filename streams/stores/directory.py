"""The store's directory: its manifest, which names the log, and the writer's lock."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from streams.errors import NOT_OURS, ForeignStore, StoreFenced, StoreLocked
from streams.identity import Identity
from streams.stores.disk import Disk
from streams.system import locks
from streams.system.files import make_directory, open_or_create, read_file, refuse_link, sync_directory, write_durably

FORMAT: Final = 3
"""The format of the store. Logs of other formats are not read."""

MANIFEST: Final = "store.json"
LOCK: Final = "lock"

TORN: Final = "torn"
"""The directory for the torn tails that are cut off when a log is opened."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of ``store.json``: the log's id."""

    log_id: str

    def as_bytes(self) -> bytes:
        return orjson.dumps({"format": FORMAT, "log_id": self.log_id})


def read_manifest(store: Path) -> Manifest | None:
    """Read ``store.json``; ``None`` if there is none.

    Raises:
        ForeignStore: the file is damaged, or another program or a newer version wrote it; the directory or its lock is
            a symbolic link.
    """
    refuse_links(store)
    path = store / MANIFEST
    try:
        fields = orjson.loads(read_file(path))
    except FileNotFoundError:
        return None
    except orjson.JSONDecodeError:
        raise ForeignStore(str(path), "it is damaged: restore it from a backup") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("format"), int):
        raise ForeignStore(str(path), NOT_OURS)
    if fields["format"] > FORMAT:
        raise ForeignStore(
            str(path),
            f"it has format {fields['format']}, but this version reads format {FORMAT}: upgrade durable-stream",
        )
    if fields["format"] < FORMAT:
        raise ForeignStore(
            str(path),
            f"it has format {fields['format']}, but this version reads format {FORMAT}: export the log with the "
            "version that wrote it, and import it into a new home",
        )
    return Manifest(str(fields.get("log_id", "")))


def refuse_links(store: Path) -> None:
    """Raise ``ForeignStore`` if the store's directory or its lock is a symbolic link, because no writer follows links.

    ``ForeignStore`` is also raised if a file is in the place of the directory or of its home.
    """
    with suppress(OSError):  # if a permission is missing, reading the store reports that
        file = next((path for path in (store, store.parent) if path.exists() and not path.is_dir()), None)
        if file is not None:
            hint = "choose another home with --home, or move this file away"
            raise ForeignStore(str(file), f"it is not a directory, so it cannot hold a log: {hint}")
    for path in (store, store / LOCK):
        refuse_link(path)


def write_manifest(store: Path, manifest: Manifest) -> None:
    write_durably(store / MANIFEST, manifest.as_bytes())


def name_log(store: Path, manifest: Manifest | None, identity: Identity) -> Manifest:
    """The manifest of a newly opened store: ``manifest``, or, for a new log, a manifest that this function writes.

    The manifest is written last, so any store named in a manifest once existed; see ``streams/log/completeness.py``.
    """
    if manifest is None:
        manifest = Manifest(identity.ulid())
        write_manifest(store, manifest)
    return manifest


def create(store: Path, *inside: Path) -> None:
    """Make missing directories durably, mode 0700. Raises the same errors as ``make_directory``."""
    for directory in (store, *inside):
        make_directory(directory)
    if not (store / MANIFEST).exists():
        # Sync every parent, because the store's home may be as new as the store, and a power loss must lose neither.
        for directory in store.absolute().parents:
            with suppress(PermissionError):  # we did not make a directory that we may not list
                sync_directory(directory)


def remove_torn(store: Path, disk: Disk) -> None:
    """Delete the tails that were cut off, because they may contain payloads to forget."""
    directory = store / TORN
    if directory.is_dir() and not directory.is_symlink():
        for path in [path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir()]:
            disk.unlink(path)


class StoreLock:
    """The writer's lock, while it is held. ``take_lock`` takes the lock; ``release``, or the end of the process,
    releases it.

    There are two locks, because a lock file can be deleted while it is held: one on the file, which also names the
    holder, and one on the directory itself. Some file systems (NFS) cannot lock directories. On such file systems, only
    ``check`` stops a writer whose lock file was deleted.
    """

    def __init__(self, store: Path, directory: int, file: int) -> None:
        self._store, self._path = store, store / LOCK
        self._directory, self._file = directory, file
        found = os.fstat(file)
        self._identity = (found.st_dev, found.st_ino)

    def check(self) -> None:
        """Check that this process is still the writer; takes about a microsecond.

        Raises:
            StoreFenced: the lock file was deleted or replaced.
        """
        try:
            found = os.stat(self._path, follow_symlinks=False)  # noqa: PTH116 - runs before every commit
        except (FileNotFoundError, NotADirectoryError):
            pass
        else:
            # The inode number identifies the lock file, because our open descriptor keeps it from being reused.
            if (found.st_dev, found.st_ino) == self._identity:
                return
        raise StoreFenced(
            f"the lock file of the log in {self._store} was deleted or replaced, so another process may write to the "
            "log",
            "no acknowledged record is lost; if no sidecar is running now, start one",
        )

    def release(self) -> None:
        """Release the lock. Only the first call does anything, because the system reuses the numbers of closed
        descriptors."""
        os.close(self._file)
        os.close(self._directory)


def take_lock(store: Path) -> StoreLock:
    """Become the store's one writer.

    Raises:
        StoreLocked: another process, or another store object in this process, is writing to the store.
        ForeignStore: the lock is a symbolic link.
    """
    path = store / LOCK
    refuse_link(path)
    directory = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with _locks_no_directory():
            _lock(directory)
        file = open_or_create(path)
        try:
            _lock(file)
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
            lock = StoreLock(store, directory, file)
            lock.check()  # check again, because the file may have been deleted before it was locked
        except BaseException:
            os.close(file)
            raise
    except (BlockingIOError, StoreFenced):
        refusal = _locked(store)
        os.close(directory)
        raise refusal from None
    except BaseException:
        os.close(directory)
        raise
    return lock


def _locked(store: Path) -> StoreLocked:
    holder = ""
    with suppress(OSError, ForeignStore):
        holder = read_file(store / LOCK)[:32].decode("ascii", "replace").strip()
    return StoreLocked(
        f"the log in {store} is being written by {f'process {holder}' if holder else 'another process'}",
        "quit OpenCode, because it would start another sidecar, and run `durable-stream stop`, or wait until that "
        "process exits",
    )


def refuse_writer(store: Path) -> None:
    """Raise ``StoreLocked``, as ``take_lock`` does, if a writer holds the lock now. Takes no lock and creates no file.

    Raises:
        ForeignStore: the lock is a symbolic link.
    """
    if is_being_written(store):
        raise _locked(store)


def _lock(descriptor: int) -> None:
    if not locks.take(descriptor):
        raise BlockingIOError


@contextmanager
def _locks_no_directory() -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise


def is_being_written(store: Path) -> bool:
    """True if a writer holds the store's lock now. Raises ``ForeignStore`` if the lock is a symbolic link."""
    refuse_link(store / LOCK)
    return any(_is_locked(path) for path in (store / LOCK, store))


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        with _locks_no_directory():
            return locks.is_held(fd)
    finally:
        os.close(fd)
    return False
