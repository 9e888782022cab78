"""Small separate disks, where this user may mount."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path


def _mount(place: Path, size: str) -> bool:
    how = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(place)]
    return os.geteuid() == 0 and subprocess.run(how, capture_output=True, check=False).returncode == 0


@cache
def can_mount() -> bool:
    """True if this user may mount: as root, where the machine allows it."""
    with tempfile.TemporaryDirectory() as directory:
        if not _mount(Path(directory), "64k"):
            return False
        subprocess.run(["umount", directory], check=True, capture_output=True)
        return True


@contextmanager
def mounted(place: Path, size: str) -> Iterator[None]:
    """A disk of ``size`` (such as ``2m``) at ``place``, mode 0700."""
    assert _mount(place, size), f"nothing can be mounted at {place}"
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, capture_output=True)


def remount(place: Path, how: str) -> None:
    """Make a mounted disk read-only (``ro``) or writable again (``rw``)."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True, capture_output=True)
