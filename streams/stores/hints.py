"""Cursors and snapshots: hints in small files next to a log.

Hints may lag behind or be lost, and correctness never depends on them: a reader without its cursor starts at the
beginning, and a projection without a snapshot is folded from the first record. So hints are written without a separate
sync (the rename keeps each file complete), and a damaged hint counts as missing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple
from zlib import crc32

import orjson

from streams.store import NOTHING, Snapshot
from streams.stores.disk import Disk
from streams.system.files import make_directory, open_to_read

TORN: Final = "torn"
"""The directory for the torn tails that are cut off when a log is opened."""

REPAIRED: Final = "repaired"
"""The directory for everything that repairs remove: ``repaired/1/``, ``repaired/2/``, …"""

_LOST: Final = ".lost-after-"

_CHANGES: Final = Lock()
"""Held while hints change. Cursors are written from worker threads, also while a removal drops snapshots and drafts in
another thread. One lock for all stores is enough, because a change takes well under a millisecond."""

NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")


class HintAhead(NamedTuple):
    """A hint that shows that the log once reached position ``until``. The log has lost the records after ``after``."""

    name: str
    after: int
    until: int


class Hints:
    """The hints of the log in ``store``. The methods block. Only the process that writes the log may change hints; any
    thread of it may call the methods."""

    def __init__(self, store: Path) -> None:
        self._directory = store / "hints"

    def cursor(self, name: str) -> int:
        found = self._read(f"cursor-{checked_name(name)}")
        return NOTHING if found is None else found.position

    def advance(self, name: str, position: int) -> None:
        self._write(f"cursor-{checked_name(name)}", Snapshot(1, position, b""))

    def snapshot(self, name: str, version: int) -> Snapshot | None:
        found = self._read(f"snapshot-{checked_name(name)}")
        return found if found is not None and found.version == version else None

    def put_snapshot(self, name: str, snapshot: Snapshot) -> None:
        self._write(f"snapshot-{checked_name(name)}", snapshot)

    def forget_snapshots(self) -> None:
        """Drop every snapshot, because the records from which they were folded have changed; and damaged hints."""
        if not self._directory.is_dir():
            return
        with _CHANGES:
            for path in self._directory.iterdir():
                found = self._read(path.name) if not path.suffix.startswith(".db") else None
                if found is None or found.state:
                    path.unlink()

    def known(self) -> dict[str, int]:
        """The positions of all undamaged hints, by their names in order."""
        found = [(path.name, self._read(path.name)) for path in self.files()]
        return {name: hint.position for name, hint in found if hint is not None}

    def files(self) -> list[Path]:
        if not self._directory.is_dir():
            return []
        return sorted(path for path in self._directory.iterdir() if "." not in path.name and path.is_file())

    def set_aside_after(self, position: int) -> list[HintAhead]:
        """Set aside the hints that are beyond the log's end at ``position``, because their records are lost.

        Once the log has grown that far again, such a hint would refer to different records. A hint set aside stays next
        to the valid hints, so that ``verify`` can report the loss.
        """
        for name, known in self.known().items():
            if known > position:
                (self._directory / name).replace(self._directory / f"{name}{_LOST}{position}")
        return self.lost()

    def lost(self) -> list[HintAhead]:
        found = sorted(self._directory.glob(f"*{_LOST}*")) if self._directory.is_dir() else []
        read = [(path.name, self._read(path.name)) for path in found if path.name.rpartition(_LOST)[2].isdigit()]
        return [
            HintAhead(name, int(name.rpartition(_LOST)[2]), hint.position) for name, hint in read if hint is not None
        ]

    def _read(self, name: str) -> Snapshot | None:
        try:
            with open(self._directory / name, "rb", opener=open_to_read) as file:
                header, newline, state = file.read().partition(b"\n")
        except FileNotFoundError:
            return None
        try:
            fields = orjson.loads(header)
            version, position = fields["version"], fields["position"]
            # The checksum also covers the version and the position, so a change in either counts as damage.
            if newline and fields["crc"] == _crc(version, position, state):
                return Snapshot(version, position, state)
        except (orjson.JSONDecodeError, TypeError, KeyError):
            return None
        return None

    def _write(self, name: str, snapshot: Snapshot) -> None:
        make_directory(self._directory)
        version, position, state = snapshot
        header = orjson.dumps({"crc": _crc(version, position, state), "version": version, "position": position})
        temporary = self._directory / f"{name}.new"
        with _CHANGES:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            os.fchmod(fd, 0o600)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(header + b"\n" + state)
                temporary.replace(self._directory / name)
            except BaseException:
                temporary.unlink(missing_ok=True)  # delete the partial file, so that it does not fill a full disk
                raise


def _crc(version: int, position: int, state: bytes) -> int:
    return crc32(b"%d %d " % (version, position) + state)


def checked_name(name: str) -> str:
    """Return ``name`` if it is a valid name for a hint; otherwise raise ``ValueError``."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid cursor or snapshot name: use up to 63 lower-case letters, digits and '-'"
        )
    return name


def remove_kept_aside(store: Path, disk: Disk) -> None:
    """Delete the files that recovery and repairs set aside, because these files may contain payloads to forget."""
    for name in (TORN, REPAIRED):
        directory = store / name
        if directory.is_dir() and not directory.is_symlink():
            for path in [path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir()]:
                disk.unlink(path)
