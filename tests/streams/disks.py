"""Disks that fail, wait or count, for ``JsonlStore.open(disk=…)``."""

from __future__ import annotations

import errno
import os
from collections import Counter
from dataclasses import dataclass, field
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


@dataclass
class FaultyDisk(Disk):
    """Counts its calls, and fails the ``n``-th call of a method with an errno: ``faults[method, n]``, from 1.

    ``short`` is the number of bytes that a failing write still writes.
    """

    faults: dict[tuple[str, int], int] = field(default_factory=dict)
    short: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def _call(self, method: str) -> None:
        self.calls[method] += 1
        fault = self.faults.get((method, self.calls[method]))
        if fault is not None:
            self.failed.append(method)
            raise OSError(fault, os.strerror(fault))

    def write(self, fd: int, data: bytes) -> None:
        try:
            self._call("write")
        except OSError:
            super().write(fd, data[: self.short])
            raise
        super().write(fd, data)

    def sync(self, fd: int) -> None:
        self._call("sync")
        super().sync(fd)

    def rewrite(self, fd: int, data: bytes) -> None:
        self._call("rewrite")
        super().rewrite(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        self._call("truncate")
        super().truncate(fd, size)

    def create(self, path: Path) -> int:
        self._call("create")
        return super().create(path)

    def unlink(self, path: Path) -> None:
        self._call("unlink")
        super().unlink(path)


class GatedDisk(FastDisk):
    """A slow disk: each sync waits until ``gate`` is set. ``entered`` is set when one waits; ``writes`` are kept."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.gate, self.entered = Event(), Event()
        self.writes: list[bytes] = []
        self.syncs = 0
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
