"""The real disk: everything reported durable was synced, first the file and then its name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from streams.files import make_directory, write_durably
from streams.stores.disk import Disk


class Syncs:
    """The syncs so far: (name below ``root``, whether ``watched`` existed, the file's size at that time)."""

    def __init__(self, root: Path, watched: Path, patch: pytest.MonkeyPatch) -> None:
        self._root, self._watched = root, watched
        self.seen: list[tuple[str, bool, int | None]] = []
        for name in ("fsync", "fdatasync") if hasattr(os, "fdatasync") else ("fsync",):
            patch.setattr(os, name, self._noted)

    def _noted(self, fd: int) -> None:
        found = os.fstat(fd)
        places = [self._root, *self._root.rglob("*")]
        (place,) = [each for each in places if each.stat().st_ino == found.st_ino]
        size = None if place.is_dir() else found.st_size
        self.seen.append((str(place.relative_to(self._root)), self._watched.exists(), size))


linux = pytest.mark.skipif(sys.platform == "darwin", reason="macOS syncs a file by another call, which nothing counts")


def test_a_new_file_has_a_name_that_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(tmp_path, tmp_path / "new", monkeypatch)
    os.close(Disk().create(tmp_path / "new"))
    assert syncs.seen == [(".", True, None)]


def test_a_deleted_file_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power loss it would contain forgotten text again."""
    (tmp_path / "old").write_bytes(b"pruned")
    syncs = Syncs(tmp_path, tmp_path / "old", monkeypatch)
    Disk().unlink(tmp_path / "old")
    assert syncs.seen == [(".", False, None)]


def test_a_directory_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(tmp_path, tmp_path / "log", monkeypatch)
    make_directory(tmp_path / "log")
    assert syncs.seen == [(".", True, None)]


@linux
def test_a_file_is_whole_before_it_takes_the_place_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pointer"
    path.write_bytes(b"old")
    draft = tmp_path / "pointer.new"
    syncs = Syncs(tmp_path, draft, monkeypatch)
    write_durably(path, b"pointer")
    assert syncs.seen == [("pointer.new", True, 7), (".", False, None)]
    assert path.read_bytes() == b"pointer"
