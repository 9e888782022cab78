"""Copies of large projects, and of what git ignores; and how they go."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from pydantic import ValidationError

from sidecar.background.copies import files
from sidecar.background.copies.copies import Copies
from sidecar.config import Config
from tests.sidecar.background.copies.copying import ID, Private
from tests.sidecar.background.projects import git, repository, write


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return repository(tmp_path / "project")


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


async def test_what_goes_is_removed_in_the_background(project: Path, tmp_path: Path) -> None:
    copies, outside = Copies(tmp_path / "place"), tmp_path / "outside"
    write(outside / "f", "mine\n")
    copy = await copies.make(ID, str(project))
    deep = Path(copy.root)
    for number in range(30):
        write(deep / f"d{number}/f")
    (deep / "link").symlink_to(outside)
    (deep / "d1").chmod(0o500)
    (deep / "d2").chmod(0)
    for _ in range(1200):  # deeper than Python calls
        deep /= "d"
        deep.mkdir()
    await copies.discard(ID, ID)
    assert not copies.place(ID).exists(), "at once"
    (gone,) = (tmp_path / "place/gone").iterdir()
    with mock.patch.object(files, "remove", _stopped_after(files.remove, 10)):
        await copies.sweep()
    assert gone.exists(), "it ends when it is told, and"
    await Copies(tmp_path / "place").sweep()
    assert not gone.exists() and (outside / "f").read_text() == "mine\n", "the next process goes on"


async def test_the_setting_names_what_a_copy_has_although_git_ignores_it(project: Path, tmp_path: Path) -> None:
    write(project / ".gitignore", "out/\n.venv\n")
    for name in ("out/x", ".venv/lib/x"):
        write(project / name)
    listed = Config.model_validate({"phantom": {"copy": [".venv"]}}).phantom.copied
    made = await Copies(tmp_path / "place").make(ID, str(project), listed=listed)
    assert sorted(each.name for each in Path(made.root).iterdir()) == [".git", ".gitignore", ".venv", "a.txt"]


@pytest.mark.parametrize("path", ["/etc", "../x", "a/../../x", ".git/hooks", ".", "", "a//b", "a/"])
def test_the_setting_names_paths_in_the_project_only(path: str) -> None:
    with pytest.raises(ValidationError):
        Config.model_validate({"phantom": {"copy": [path]}})


async def test_a_sweep_that_is_cancelled_ends(project: Path, tmp_path: Path) -> None:
    copies, ended = Copies(tmp_path / "place"), threading.Event()
    await copies.make(ID, str(project))
    await copies.discard(ID, ID)

    def endless(_: str, stopped: Callable[[], bool]) -> None:
        began.set()
        while not stopped():
            pass
        ended.set()

    began = threading.Event()
    with mock.patch.object(files, "remove", endless):
        task = asyncio.create_task(copies.sweep())
        await asyncio.to_thread(began.wait)
        task.cancel()
        await asyncio.wait((task,))
        assert await asyncio.to_thread(ended.wait, 30)


def _stopped_after(remove: Callable[..., None], asked: int) -> Callable[..., None]:
    times = iter(range(10**9))
    return lambda top, _: remove(top, lambda: next(times) > asked)
