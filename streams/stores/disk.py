"""The system calls that change the journal, its head file and files that were set aside, in ``Disk``, so that tests can
make them fail. SQLite itself writes the database.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

from streams.system.files import checked, sync_directory, write_all


class Disk:
    """The real disk. Every method raises the system's ``OSError``."""

    def write(self, fd: int, data: bytes) -> None:
        """Write all of ``data`` at the end of ``fd``, and continue after short writes."""
        write_all(fd, data)

    def sync(self, fd: int) -> None:
        """Return when the file's data is on the disk, not just in its cache."""
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(fd)

    def rewrite(self, fd: int, data: bytes) -> None:
        """Replace the beginning of ``fd`` in place, without a sync."""
        os.pwrite(fd, data, 0)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def create(self, path: Path) -> int:
        """Open a new append-only file, mode 0600, and make its name durable."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)  # the umask may have removed the owner's permissions too
            sync_directory(path.parent)
        except OSError:
            os.close(fd)
            raise
        return fd

    def open(self, path: Path) -> int:
        """Open an existing file for appending. Raises ``ForeignStore`` as ``check_file`` does."""
        return checked(path, os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC))

    def unlink(self, path: Path) -> None:
        path.unlink()
        sync_directory(path.parent)
