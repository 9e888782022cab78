"""Copies of large projects, and of what git ignores; and how they go."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.sidecar.background.copies.copying import Private
from tests.sidecar.background.projects import git, write


def test_20_000_files(tmp_path: Path) -> None:
    top = tmp_path / "project"
    for number in range(500):
        (top / f"d{number}").mkdir(parents=True)
        for each in range(40):
            (top / f"d{number}/f{each}").write_bytes(b"%d %d\n" % (number % 50, each))
    git(top, "init", "-q")
    git(top, "add", ".")
    copy = Private(top, tmp_path / "place")
    for number in range(0, 500, 100):
        write(copy.root / f"d{number}/f7")
    shutil.rmtree(copy.root / "d499")
    found = copy.collect()
    assert len(found.changes) == 45 and not found.only_here
    assert len(copy.apply()) == 45 and not (top / "d499").exists()
    assert len(copy.undo()) == 45 and not git(top, "diff", "--name-only")
