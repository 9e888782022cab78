"""Which files contain some words."""

from __future__ import annotations

import subprocess
from pathlib import Path


def files_with(place: Path, word: str) -> list[str]:
    """The files below ``place`` that contain the word, relative to it.

    Another process reads them: one that closes a database's file gives up the locks of all connections that it has to
    the database, and then reads pages that a sidecar is writing ("database disk image is malformed").
    """
    assert any(path.is_file() for path in place.rglob("*"))
    done = subprocess.run(
        ["grep", "-rlaFs", "-e", word, "."], cwd=place, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode in (0, 1, 2), done.stderr  # 2: a file went away meanwhile
    return sorted(line.removeprefix("./") for line in done.stdout.splitlines())
