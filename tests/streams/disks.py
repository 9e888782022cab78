"""Disks that wait or count, for ``Log.open(disk=…)``."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from threading import Event

from streams.stores.disk import Disk


class FastDisk(Disk):
    """A disk without syncs, for tests that open thousands of stores. Nothing survives a power loss."""

    def sync(self, fd: int) -> None:
        pass

    def create(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def unlink(self, path: Path) -> None:
        path.unlink()


class GatedDisk(FastDisk):
    """A slow disk: each sync waits until ``gate`` is set. ``entered`` is set when one waits; ``writes`` are kept."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.gate, self.entered = Event(), Event()
        self.writes: list[bytes] = []
        self.syncs, self.fails = 0, False
        if is_open:
            self.gate.set()

    def write(self, fd: int, data: bytes) -> None:
        self.writes.append(data)
        super().write(fd, data)

    def sync(self, fd: int) -> None:
        self.syncs += 1
        self.entered.set()
        if not self.gate.wait(timeout=30):
            raise OSError(errno.ETIMEDOUT, "the test never opened the gate")
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
