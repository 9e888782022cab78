"""The private copy of a project for background work, beside ``git worktree add`` of the same files: processor time."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
from pathlib import Path

from benchmarks.report import Row
from sidecar.background.copies.copies import Copies

FILES = 20_000
PER_DIRECTORY = 40
ROUNDS = 3


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Compare the copy of 20,000 files, 3 KiB each, with a worktree; alternately, three times each."""
    top, copies = directory / "copied", Copies(directory / "copies")
    _project(top)
    ours, theirs = list[float](), list[float]()
    for number in range(ROUNDS):
        intent, other = f"int_{number:012x}", directory / f"worktree-{number}"
        before = _processor_seconds()
        await copies.make(intent, str(top))
        middle = _processor_seconds()
        _git(top, "worktree", "add", "-q", "--detach", str(other))
        theirs.append(_processor_seconds() - middle)
        ours.append(middle - before)
        shutil.rmtree(other)
        await copies.discard(intent, intent)
        await copies.sweep()
    shutil.rmtree(top)
    label = f"private copy of {FILES:,} files, processor time"
    return [Row(label, 1 / statistics.median(ours), 1 / statistics.median(theirs), "git worktree add", 1 / 1.5, 1.0)]


def _project(top: Path) -> None:
    for number in range(0, FILES, PER_DIRECTORY):
        place = top / f"d{number // PER_DIRECTORY}"
        place.mkdir(parents=True)
        for each in range(PER_DIRECTORY):
            (place / f"f{each}").write_bytes(os.urandom(30) * 100)
    _git(top, "init", "-q")
    for command in (("add", "."), ("commit", "-qm", "all"), ("repack", "-adq")):
        _git(top, *command)


def _git(top: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0")
    subprocess.run(["git", *identity, *arguments], cwd=top, check=True, capture_output=True)


def _processor_seconds() -> float:
    """What this process, with all its threads, and the programs that it waited for have used."""
    used = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
