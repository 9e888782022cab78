"""The submodules of a worktree: filled from what the user's repository has of them, and never from the network.

Each gets a repository of its own, below what git keeps about the worktree. Git itself would put it there, too, and it
is removed with the worktree. It borrows the objects of the user's submodule below ``.git/modules``, and nothing else:
what an agent does in it changes nothing in the user's submodule. (In a second worktree of that one, it would: ``git
submodule update`` writes the place of the files into the settings that both share.) Git's own commands for submodules
are not used, because they follow settings that an agent may write.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from sidecar.background.worktrees import files as worktree_files
from sidecar.background.worktrees import lfs
from sidecar.background.worktrees.git import Git, WorktreeError, nul

INDEX: Final = "durable-stream-index"
"""The index as it was before the agent began. The agent's own index can say that a changed file has not changed."""

_LONG: Final = 64
"""The length of a commit's id in a repository that uses SHA-256."""

_LIST: Final = "durable-stream-modules"
"""The file in git's folder of a worktree that lists its submodules as JSON."""


class Module(NamedTuple):
    """A submodule in a worktree: its place below the worktree's root, what git keeps about it, and its commit."""

    path: str
    folder: str
    commit: str


async def fill(git: Git, top: Path, stores: Sequence[Path], root: Path, note: Path, below: str = "") -> list[str]:
    """Fill the submodules in the index of ``git``, and the submodules in these. Returns what was left out.

    Args:
        git: the worktree, or a submodule in it.
        top: the user's directory of which the worktree is a copy.
        stores: where the repository keeps those of its submodules.
        root: the worktree.
        note: what git keeps about the worktree; the submodules are listed there.
        below: the place of ``git`` in the worktree; empty, or ends with a slash.
    """
    out: list[str] = []
    for name, commit in await listed(git):
        path = below + name
        kept = await asyncio.to_thread(_kept, top / path, stores)
        store = next((each for each in stores if kept is not None and kept.is_relative_to(each.resolve())), None)
        if kept is None or store is None or not await asyncio.to_thread(_is_free, root / path, root):
            out.append(path)
            continue
        made = Module(path, str(Path(git.folder, "modules", kept.relative_to(store.resolve()))), commit)
        await asyncio.to_thread(_make, made, kept, root / path)
        files = Git(made.folder, str(root / path))
        try:
            await files.commit(commit)
            await files.run("read-tree", "--reset", "-u", commit)
        except WorktreeError:  # the user's submodule has not all of this commit
            await asyncio.to_thread(_clear, made, root / path)
            out.append(path)
            continue
        await asyncio.to_thread(_note, note, made)
        out += await cut_links(files, top, root, f"{path}/")
        await asyncio.to_thread(shutil.copy2, Path(made.folder, "index"), Path(made.folder, INDEX))
        out += await fill(files, top, [kept / "modules"], root, note, f"{path}/")
    return out


async def listed(git: Git) -> list[tuple[str, str]]:
    """The submodules in an index: each with its commit."""
    lines = await git.names("ls-files", "--stage", "-z")
    return [(line.partition("\t")[2], line.split(" ")[1]) for line in lines if line.startswith("160000 ")]


async def cut_links(git: Git, top: Path, root: Path, below: str = "") -> list[str]:
    """Take the tracked links that lead out of a worktree away from it. Git is told not to miss them."""
    lines = await git.names("ls-files", "--stage", "-z")
    links = [below + line.partition("\t")[2] for line in lines if line.startswith("120000 ")]
    out = await asyncio.to_thread(worktree_files.cut_links, links, top, root)
    if out:
        given = nul(each.removeprefix(below) for each in out)
        await git.run("update-index", "--skip-worktree", "-z", "--stdin", given=given)
    return out


async def untouched(root: Path, folder: str) -> tuple[set[str], set[str]]:
    """The files in the submodules of a worktree that are as they were, and the submodules that are not."""
    same, changed = set[str](), set[str]()
    for each in await asyncio.to_thread(_read, Path(folder)):
        git, is_there = Git(each.folder, str(root / each.path)), await asyncio.to_thread((root / each.path).exists)
        if not is_there and await Git(each.folder).commit("HEAD") == each.commit:
            continue
        if not await asyncio.to_thread(is_ours, root / each.path, each.folder):
            changed.add(each.path)
            continue
        with TemporaryDirectory() as temporary:
            await asyncio.to_thread(shutil.copy2, Path(each.folder, INDEX), Path(temporary, "index"))
            scratch = git.with_index(Path(temporary, "index"))
            found = await scratch.names("diff-files", "--name-only", "-z", "--ignore-submodules=all")
            differing = set(await lfs.changed(scratch, found))
            names = set(await scratch.names("ls-files", "-z")) - {name for name, _ in await listed(scratch)}
        # A branch or a stash of the agent is only here.
        if differing or await git.commit("HEAD") != each.commit or await git.run("for-each-ref", "--count=1"):
            changed.add(each.path)
        same |= {f"{each.path}/{name}" for name in (names - differing) | {".git"}}
    return same, changed


def is_ours(root: Path, folder: str) -> bool:
    """Whether a worktree's file ``.git`` is the one that git wrote."""
    link = root / ".git"
    try:
        if not stat.S_ISDIR(root.lstat().st_mode) or not stat.S_ISREG(link.lstat().st_mode):
            return False
        return link.read_bytes() == b"gitdir: " + os.fsencode(folder) + b"\n" and Path(folder).is_dir()
    except OSError:
        return False


def folder_of(root: Path) -> str:
    """What git keeps about a worktree that git has just made."""
    return (root / ".git").read_text("utf-8", "surrogateescape").removeprefix("gitdir: ").removesuffix("\n")


def _make(made: Module, kept: Path, target: Path) -> None:
    """Make the repository of a submodule, without its files."""
    folder = Path(made.folder)
    for each in ("objects/info", "refs/heads"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    is_long = len(made.commit) == _LONG
    place = str(target).replace("\\", "\\\\").replace('"', '\\"')
    settings = f'[core]\n\trepositoryformatversion = {int(is_long)}\n\tbare = false\n\tworktree = "{place}"\n'
    (folder / "config").write_text(settings + ("[extensions]\n\tobjectformat = sha256\n" if is_long else ""))
    (folder / "objects/info/alternates").write_text(f"{kept / 'objects'}\n")
    if (kept / "shallow").is_file():
        shutil.copyfile(kept / "shallow", folder / "shallow")
    (folder / "HEAD").write_text(f"{made.commit}\n")
    (target / ".git").write_text(f"gitdir: {folder}\n")


def _clear(made: Module, target: Path) -> None:
    shutil.rmtree(made.folder)
    shutil.rmtree(target)
    target.mkdir()


def _is_free(target: Path, root: Path) -> bool:
    try:
        return target.resolve().is_relative_to(root.resolve()) and not any(target.iterdir())
    except (OSError, RuntimeError):
        return False


def _kept(here: Path, stores: Sequence[Path]) -> Path | None:
    """The repository of a submodule in the user's directory; ``None`` if it is not one of those in ``stores``."""
    try:
        link = (here / ".git").read_text("utf-8", "surrogateescape").removeprefix("gitdir: ").removesuffix("\n")
        kept = (here / link).resolve(strict=True)
        inside = any(kept.is_relative_to(each.resolve()) and kept != each.resolve() for each in stores)
    except (OSError, RuntimeError, ValueError):
        return None
    return kept if inside and (kept / "HEAD").is_file() else None


def _note(note: Path, made: Module) -> None:
    (note / _LIST).write_text(json.dumps([*_read(note), made]))


def _read(note: Path) -> list[Module]:
    try:
        return [Module(*each) for each in json.loads((note / _LIST).read_text())]
    except FileNotFoundError:
        return []


def forget(worktrees: Path, root: Path) -> None:
    """Remove what git keeps in ``worktrees`` about the worktree at ``root``. Other worktrees are left alone, even if
    they are not there."""
    for each in worktrees.glob("*/gitdir"):
        if each.read_text("utf-8", "surrogateescape").rstrip("\n") == f"{root}/.git":
            shutil.rmtree(each.parent)
    with suppress(OSError):  # another worktree is still there
        worktrees.rmdir()
