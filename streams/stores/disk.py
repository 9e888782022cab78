"""The few system calls the writer makes, in one place so that tests can make them fail."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path


class Disk:
    """The real disk. Every method raises ``OSError`` as the system gives it."""

    def write(self, fd: int, data: bytes) -> None:
        """Write all of ``data`` at the end of ``fd``, across short writes."""
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def sync(self, fd: int) -> None:
        """Return when the file's data is on the disk, not merely in its cache."""
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(fd)

    def rewrite(self, fd: int, data: bytes) -> None:
        """Replace the beginning of ``fd`` in place; not synced."""
        os.pwrite(fd, data, 0)

    def create(self, path: Path) -> int:
        """Open a new append-only file, mode 0600, and make its name durable."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return fd

    def open(self, path: Path) -> int:
        """Open an existing file for appending."""
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
