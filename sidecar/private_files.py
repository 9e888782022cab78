"""Files and directories that only the user can read: made, checked and opened without following symbolic links.

Directories have mode 0700 and files 0600, whatever the umask.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import ClassVar


class HomeError(Exception):
    """The home cannot be used in its present state: ``path``, ``problem``, and ``hint`` (what to do)."""

    code: ClassVar[str] = "bad-home"

    def __init__(self, path: Path, problem: str, hint: str) -> None:
        super().__init__(f"{path}: {problem}; {hint}")
        self.path, self.problem, self.hint = path, problem, hint


def open_unfollowed(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """``os.open`` that follows no link, and hangs on no named pipe; a new file has mode 0600. Serves as ``opener``."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)


def why_not_private(found: os.stat_result) -> str:
    """What a file is that another user may have read or written, such as ``not a regular file``; empty if none may."""
    if not stat.S_ISREG(found.st_mode):
        return "not a regular file"
    if found.st_uid != os.geteuid():
        return f"owned by user {found.st_uid}, not by you"
    return f"accessible to other users (mode {stat.S_IMODE(found.st_mode):o})" if found.st_mode & 0o077 else ""


def read_private(path: Path) -> tuple[bytes, str]:
    """The first 64 KiB of a file, and what ``why_not_private`` says of it, with which the content must not be used.

    Raises:
        OSError: the file is missing, is a symbolic link, or cannot be read.
    """
    with os.fdopen(open_unfollowed(path), "rb") as file:
        why = why_not_private(os.fstat(file.fileno()))
        return b"" if why else file.read(65536), why


def write_new(path: Path, text: str) -> None:
    """Write and sync a file with mode 0600. The file must not exist yet."""
    descriptor = open_unfollowed(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)  # the umask may have removed the owner's permissions too
        file.write(text)
        file.flush()
        os.fsync(descriptor)


def private_directory(path: Path) -> None:
    """Create a directory of the home with mode 0700, whatever the umask; set that mode on an existing directory.
    Idempotent.

    Missing parents get the same mode.

    Raises:
        HomeError: the path is a link, is not a directory, belongs to another user, or cannot be created.
    """
    try:
        make_directories(path, 0o700)
        found = path.lstat()
        _refuse_foreign(path, found)
        if not stat.S_ISDIR(found.st_mode):
            raise HomeError(path, "it is not a directory", "move it away, or choose another home with `--home`")
        if stat.S_IMODE(found.st_mode) != 0o700:
            path.chmod(0o700)
    except OSError as error:
        raise cannot_use("make", path, error) from None


def make_directories(path: Path, mode: int) -> None:
    """Create a directory and its missing parents; existing directories keep their mode.

    New directories get ``mode``, minus the umask; the owner always has full access.
    """
    if path.is_dir():
        return
    make_directories(path.parent, mode)
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        return  # another process created the directory, or the path is a file and using it will fail
    path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o700)


def check_file(path: Path) -> None:
    """Check a file of the home that another program is about to open; a missing file is accepted.

    Raises:
        HomeError: the path is a link, is not a regular file, or belongs to somebody else.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_use("read", path, error) from None
    _refuse_foreign(path, found)
    if not stat.S_ISREG(found.st_mode):
        raise HomeError(path, "it is not a regular file", "remove it, then try again")


def check_tree(path: Path) -> None:
    """Refuse a directory of the home that contains a symbolic link at any depth.

    Raises:
        HomeError: the directory contains a link, or a directory in it cannot be read.
    """
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_symlink():
                    _refuse_foreign(Path(entry.path), entry.stat(follow_symlinks=False))
                if entry.is_dir(follow_symlinks=False):
                    check_tree(Path(entry.path))
    except OSError as error:
        raise cannot_use("read", path, error) from None


def open_file(path: Path) -> int:
    """Open a regular file of the home for reading, without following links; return the descriptor.

    Raises:
        OSError: the path is missing, is a link, is not a regular file, or belongs to somebody else.
    """
    descriptor = open_unfollowed(path)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        return descriptor
    os.close(descriptor)
    raise PermissionError(errno.EPERM, "it is not a regular file that you own", str(path))


def others_may_write(path: Path, home: Path) -> str:
    """Why somebody else could change a file that runs code or decides what runs; empty if nobody could.

    The file is where links lead to. Outside of ``home``, which is private, its directory counts, too. A missing file
    and a group of the user's own (with the user's number) are accepted.
    """
    real = path.resolve()
    places = [real] if real.is_relative_to(home.resolve()) else [real, real.parent]
    for place in places:
        try:
            found = place.stat()
        except OSError:
            continue  # whoever opens the file says what is wrong
        if found.st_uid not in (os.geteuid(), 0):
            return f"{place} is owned by user {found.st_uid}, not by you; change its owner"
        is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        group = 0 if found.st_gid == found.st_uid else 0o020
        if found.st_mode & (0o002 | group) and not is_sticky:
            return f"other users can write {place}; run `chmod go-w {place}`"
    return ""


def _refuse_foreign(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        hint = "replace the link with its target, or choose another home with `--home`"
        raise HomeError(path, "it is a symbolic link, and links are not followed", hint)
    if found.st_uid != os.geteuid():
        raise HomeError(path, f"it is owned by user {found.st_uid}, not by you", "choose another home with `--home`")


def cannot_use(verb: str, path: Path, error: OSError) -> HomeError:
    """The error to raise for an ``OSError`` of a path of the home; ``verb`` says what could not be done to it."""
    if error.errno == errno.EROFS:
        hint = "it is mounted read-only: mount it writable, or choose another `--home`; read-only commands still work"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free some space on that disk, then try again"
    else:
        hint = "check the owner and permissions of its directory, and the free space on the disk"
    return HomeError(path, f"cannot {verb} it ({error.strerror})", hint)
