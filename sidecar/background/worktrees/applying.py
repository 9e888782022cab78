"""Applies saved changes to the user's files: three versions of each file, merged, and all files written or none.

No patch text is made or read. The three versions are the file from which the agent began, the agent's file, and the
user's file as it is on disk. The user's index is not used and not changed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory, mkdtemp
from typing import Final, Literal, NamedTuple

from sidecar.background.worktrees import lfs
from sidecar.background.worktrees.git import Git, WorktreeError, nul

_LINK, _MODULE = "120000", "160000"

Kind = Literal["file", "link", "directory", "other", "absent", "beyond a link"]


class Conflict(Exception):
    """The changes conflict with the user's files; the text says where."""


class Version(NamedTuple):
    """A file in one version: its mode and its content, as git stores them."""

    mode: str
    content: str


_NONE: Final = Version("000000", "")
"""The version of a file that does not exist."""


class Change(NamedTuple):
    """What the agent did to one file."""

    before: Version
    after: Version


async def apply(git: Git, base: str, commit: str) -> bool:
    """Make the changes from ``base`` to ``commit`` in the user's files; false if they had already been made.

    Raises:
        Conflict: nothing was changed.
        WorktreeError: git failed, and nothing was changed.
    """
    assert git.files is not None
    top = Path(git.files)
    changes = await _changes(git, base, commit)
    with TemporaryDirectory() as temporary:
        scratch = git.with_index(Path(temporary, "index"))
        current = await _current(scratch, top, changes)
        wanted = {
            name: await _merged(git, name, change, current[name], Path(temporary)) for name, change in changes.items()
        }
        new = {name: version for name, version in wanted.items() if version != current[name]}
        if not new:
            return False
        gone = {name for name, version in new.items() if version == _NONE}
        await asyncio.to_thread(_check_room, top, new, gone)
        # The new files are made beside the old ones, so that only renaming is left to do.
        stage = await asyncio.to_thread(_stage, git.folder, top)
        try:
            written = {name: version for name, version in new.items() if version != _NONE}
            await scratch.run("read-tree", "--empty")
            await scratch.run("update-index", "-z", "--index-info", given=_entries(written))
            await scratch.run("checkout-index", f"--prefix={stage}/new/", "-z", "--stdin", given=nul(written))
            await asyncio.to_thread(_exchange, top, stage, list(written), sorted(gone, reverse=True))
        finally:
            await asyncio.to_thread(shutil.rmtree, stage)
    return True


async def _changes(git: Git, base: str, commit: str) -> dict[str, Change]:
    fields = (await git.run("diff-tree", "-r", "--raw", "-z", "--no-renames", "--no-abbrev", base, commit)).split("\0")
    found: dict[str, Change] = {}
    for about, name in zip(fields[::2], fields[1::2], strict=False):
        before, after, old, new, _ = about.removeprefix(":").split(" ")
        parts = name.split("/")
        if any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
            raise Conflict(f"{name!a} is no name for a file")
        if _MODULE in (before, after):
            raise Conflict(f"{name}: a submodule was changed or removed")
        found[name] = Change(_version(before, old), _version(after, new))
    return found


def _version(mode: str, content: str) -> Version:
    return _NONE if mode == _NONE.mode else Version(mode, content)


async def _current(git: Git, top: Path, changes: Mapping[str, Change]) -> dict[str, Version]:
    kinds = await asyncio.to_thread(lambda: {name: kind(top, name) for name in changes})
    removed = {name for name, change in changes.items() if change.after == _NONE}
    for name, found in kinds.items():
        if found == "other":
            raise Conflict(f"{name} is not a file")
        replaced = any(str(above) in removed for above in PurePath(name).parents)
        if found == "beyond a link" and not replaced:
            raise Conflict(f"{name} is beyond a symbolic link")
    # The versions of before are the index, so that line ends are read as git would read them.
    before = {name: change.before for name, change in changes.items() if change.before != _NONE}
    await git.run("update-index", "-z", "--index-info", given=_entries(before))
    there = [name for name, found in kinds.items() if found in ("file", "link")]
    missing = [name for name in before if name not in there]
    if missing:
        await git.run("update-index", "--force-remove", "-z", "--stdin", given=nul(missing))
    if there := await lfs.changed(git, there):
        await git.run("update-index", "--add", "--replace", "-z", "--stdin", given=nul(there))
    current = dict.fromkeys(changes, _NONE)
    for line in await git.names("ls-files", "--stage", "-z"):
        about, _, name = line.partition("\t")
        mode, content, _ = about.split(" ")
        current[name] = Version(mode, content)
    return current


async def _merged(git: Git, name: str, change: Change, current: Version, temporary: Path) -> Version:
    """The version of a file with both the agent's and the user's changes."""
    before, after = change
    if current in (before, after):
        return after
    if _NONE in (before, after, current) or _LINK in (before.mode, after.mode, current.mode):
        raise Conflict(f"{name} was changed by both")
    mode = after.mode if current.mode == before.mode else current.mode
    if current.content == after.content or current.content == before.content:
        return Version(mode, after.content)
    if before.content == after.content:
        return Version(mode, current.content)
    paths = []
    for label, version in (("yours", current), ("before", before), ("agent", after)):
        path = temporary / label
        path.write_bytes((await git.run("cat-file", "blob", version.content)).encode("utf-8", "surrogateescape"))
        paths.append(str(path))
    try:
        merged = await git.run("merge-file", "-p", "-q", *paths)
    except WorktreeError:
        raise Conflict(f"{name} was changed by both, in the same place") from None
    content = await git.run("hash-object", "-w", "-t", "blob", "--stdin", "--no-filters", given=merged)
    return Version(mode, content.strip())


def _entries(versions: Mapping[str, Version]) -> str:
    return nul(f"{version.mode} {version.content}\t{name}" for name, version in versions.items())


def kind(top: Path, name: str) -> Kind:
    """What is on disk under a name. No link is followed."""
    path = top
    parts = PurePath(name).parts
    for number, part in enumerate(parts):
        path /= part
        try:
            mode = path.lstat().st_mode
        except OSError:
            return "absent"
        if number == len(parts) - 1:
            break
        if stat.S_ISLNK(mode):
            return "beyond a link"
        if not stat.S_ISDIR(mode):
            return "absent"
    if stat.S_ISLNK(mode):
        return "link"
    return "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else "other"


def _stage(folder: str, top: Path) -> Path:
    near = folder if Path(folder).stat().st_dev == top.stat().st_dev else str(top)
    return Path(mkdtemp(prefix="durable-stream-", dir=near))


def _check_room(top: Path, new: Mapping[str, Version], gone: set[str]) -> None:
    """Check that each new file has a place, once the files that go are gone."""
    for name, version in new.items():
        if version == _NONE:
            continue
        for above in map(str, list(PurePath(name).parents)[:-1]):
            if above not in gone and kind(top, above) not in ("directory", "absent"):
                raise Conflict(f"{above} is not a directory")
        if kind(top, name) == "directory":
            for place, _, files in os.walk(top / name):
                if any(str(Path(place, each).relative_to(top)) not in gone for each in files):
                    raise Conflict(f"{name} is a directory with other files")


def _exchange(top: Path, stage: Path, written: list[str], gone: list[str]) -> None:
    """Put the new files in their places. After an error, the old ones are put back."""
    old = stage / "old"
    undo: list[tuple[Path, Path | None]] = []
    try:
        for name in (*gone, *written):
            target, kept = top / name, old / name
            moved = None
            if kind(top, name) in ("file", "link"):
                kept.parent.mkdir(parents=True, exist_ok=True)
                target.replace(kept)
                moved = kept
            undo.append((target, moved))
            if name in gone:
                _tidy(top, target.parent)
                continue
            if kind(top, name) == "directory":
                for place, _, _ in os.walk(target, topdown=False):  # there are only empty directories in it
                    Path(place).rmdir()
            target.parent.mkdir(parents=True, exist_ok=True)
            (stage / "new" / name).replace(target)
    except OSError as error:
        for target, kept_as in reversed(undo):
            target.unlink(missing_ok=True)
            if kept_as is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                kept_as.replace(target)
        raise WorktreeError("git-failed", f"cannot write {error.filename} ({error.strerror})") from None


def _tidy(top: Path, directory: Path) -> None:
    """Remove directories that became empty, as git does."""
    while directory != top:
        try:
            directory.rmdir()
        except OSError:
            return
        directory = directory.parent
