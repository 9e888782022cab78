"""Git repositories for the tests of copies, and a program that tells that it ran."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.install_git import archive, binary_path, is_new

ID = "int_0123456789ab"


def git(directory: Path, *arguments: str) -> str:
    """What git prints, as the user would run it."""
    given = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always", *arguments]
    return subprocess.run(given, cwd=directory, check=True, capture_output=True, text=True).stdout


def newest_git() -> Path:
    """The directory of a git that runs hooks which stand in the configuration."""
    own = shutil.which("git")
    places = [binary_path(), *([Path(own)] if own is not None and is_new(own) else [])]
    if (found := next((each.parent for each in places if each.exists()), None)) is None:
        if archive() is None:
            pytest.skip("this system's git is older than 2.54, and there is no Debian archive that has a newer one")
        pytest.fail("the newest git is not installed: run `make newest-git`", pytrace=False)
    return found


def repository(path: Path, files: dict[str, str] | None = None) -> Path:
    """A repository with one commit."""
    path.mkdir(parents=True, exist_ok=True)
    git(path, "init", "-q")
    for name, text in (files or {"a.txt": "one\ntwo\n"}).items():
        write(path / name, text)
    git(path, "add", "--all")
    git(path, "commit", "-qm", "first")
    return path


def write(path: Path, text: str = "by the agent\n") -> Path:
    """Write a file, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def tree(root: Path) -> dict[str, str]:
    """Each file and link below a directory, with what it contains; without what git keeps."""
    found = {}
    for place, directories, files in os.walk(root):
        directories[:] = [each for each in directories if each != ".git"]
        for each in (*files, *directories):
            path = Path(place, each)
            if path.is_symlink():
                found[str(path.relative_to(root))] = f"-> {path.readlink()}"
            elif path.is_file():
                found[str(path.relative_to(root))] = path.read_bytes().decode("latin-1")
    return found


class Marker:
    """A program that leaves a file when it runs, and otherwise is ``cat``."""

    def __init__(self, folder: Path) -> None:
        self._ran = folder / "ran"
        self.program = write(folder / "marker", f'#!/bin/sh\necho "$0 $*" >> "{self._ran}"\nexec cat\n')
        self.program.chmod(0o755)

    def __str__(self) -> str:
        return str(self.program)

    @property
    def ran(self) -> str:
        return self._ran.read_text() if self._ran.exists() else ""
