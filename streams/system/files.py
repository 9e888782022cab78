"""Files of a store and of the home: opened without following links, and kept intact across a power loss.

No file of a store is ever reached through a symbolic link. A program that can put a link there must not be able to
choose which file is read or written.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from streams.errors import ForeignStore


def open_to_read(path: str | Path, flags: int = 0) -> int:
    """Open an existing file for reading only. Because of the parameter ``flags``, this function can serve as the
    ``opener`` of ``open``.

    Raises:
        ForeignStore: the file is a symbolic link, or ``check_file`` refuses the file.
        OSError: the file cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ForeignStore(
                str(path), "it is a symbolic link, and links are not followed: replace it with the file itself"
            ) from None
        raise
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        # A directory can be opened, and only the first read would fail, with an error that does not name it.
        os.close(fd)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return checked(path, fd)


def check_file(path: str | Path, found: os.stat_result) -> None:
    """Refuse a store file that another user could have changed.

    Raises:
        ForeignStore: another user owns it, or other users may write to it.
    """
    if found.st_uid != os.geteuid():
        raise ForeignStore(
            str(path), f"it is owned by user {found.st_uid}, not by you: change its owner to your user (chown)"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        raise ForeignStore(
            str(path), f"other users may write to it (mode {mode:o}): if you trust it, run `chmod 600` on it"
        )


def checked(path: str | Path, fd: int) -> int:
    """Return ``fd`` if ``check_file`` accepts its file; otherwise close ``fd`` and raise ``ForeignStore``."""
    try:
        check_file(path, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_file(path: Path) -> bytes:
    """Read a file. Raises the same errors as ``open_to_read``."""
    with open(path, "rb", opener=open_to_read) as file:
        return file.read()


def write_durably(path: Path, data: bytes, *, mode: int = 0o600, draft: Path | None = None) -> None:
    """Create or replace a small file: a reader sees the old or the new content, even after a power loss.

    The data is written to ``draft``, which is then renamed. The default draft is ``PATH.new``, which may be
    overwritten.

    Raises:
        OSError: the old file is unchanged. ``FileExistsError`` means that the given ``draft`` already exists.
    """
    temporary = path.with_name(path.name + ".new") if draft is None else draft
    new = os.O_TRUNC if draft is None else os.O_EXCL
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | new | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.fchmod(fd, mode)
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def open_or_create(path: Path) -> int:
    """Open a small store file to read and rewrite, creating it if missing. Mode 0600.

    Raises:
        ForeignStore: see ``check_file``.
    """
    fd = checked(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    os.fchmod(fd, 0o600)
    return fd


def make_directory(path: Path) -> None:
    """Create a store's directory durably, with mode 0700 regardless of the umask. An existing directory stays
    unchanged.

    Raises:
        ForeignStore: the path is a symbolic link.
        OSError: the directory cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        refuse_link(path)
        return
    path.chmod(0o700)
    sync_directory(path.parent)


def refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise ForeignStore(str(path), "it is a symbolic link, and links are not followed: replace it with its target")


def sync_directory(path: Path) -> None:
    """Make the names of the files in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data`` at the position of ``fd``, and continue after short writes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
