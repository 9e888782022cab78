"""The user's repository, read as plain files, and the ``.git`` that an agent gets in its copy.

Git is never run on either. An agent's ``.git`` has a configuration of its own, the user's branches, commits and index,
and borrows the user's objects. So an agent can use git as it likes, and changes nothing in the user's repository.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from sidecar.background.copies.store import CONFIG, Store, quoted

_REFS: Final = ("refs", "reftable", "packed-refs", "HEAD")

_LONG_NAME: Final = 50
"""A stored object whose file has a longer name has a SHA-256."""


class Repository(NamedTuple):
    """A repository's folder, and the folder with all that is not of one worktree alone."""

    own: str
    common: str

    @property
    def objects(self) -> str:
        return f"{self.common}/objects"

    def lenders(self, ours: Path) -> bytes:
        """Where to borrow objects, as git reads it. A copy below ``ours`` may go first, so only the user's own
        repository lends."""
        if not Path(self.common).is_relative_to(ours):
            return quoted(self.objects)
        return read(f"{self.objects}/info/alternates")

    @property
    def form(self) -> str:
        """How objects are named, recognized by the names of some."""
        for place, _, names in os.walk(self.objects):
            for name in names:
                if name.startswith("pack-"):
                    return "sha256" if len(name.partition(".")[0]) > _LONG_NAME + len("pack-") else "sha1"
                if len(os.path.basename(place)) == 2:
                    return "sha256" if len(name) > _LONG_NAME else "sha1"
        return "sha1"


def repository_of(top: str) -> Repository | None:
    """The repository of which ``top`` is the directory with the files; ``None`` if there is none."""
    own = os.path.join(top, ".git")
    text = read(own, 4096)
    if text.startswith(b"gitdir:"):
        own = os.path.join(top, os.fsdecode(text[7:].strip()))
    common = os.path.realpath(os.path.join(own, os.fsdecode(read(f"{own}/commondir", 4096).strip())))
    is_one = os.path.isdir(f"{common}/objects") and os.path.lexists(f"{own}/HEAD")
    return Repository(os.path.realpath(own), common) if is_one else None


def top_of(directory: str) -> str | None:
    """The nearest directory above, or this one, that has a repository."""
    for top in (directory, *map(str, Path(directory).parents)):
        if repository_of(top) is not None:
            return top
    return None


def make_store(folder: Path, top: str, repository: Repository | None, ours: Path) -> Store:
    """A store with the user's objects, index, and rules for what is ignored; also our home, above ``ours``."""
    found = repository
    store = Store.make(folder, found.form if found else "sha1", found.lenders(ours) if found else b"")
    settings = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    rules = [read(f"{settings}/git/ignore")]
    if (home := ours.parent).is_relative_to(top):
        rules.append(os.fsencode(f"/{re.escape(str(home.relative_to(top)))}"))
    if found is not None:
        _copy_index(found, str(folder))
        rules.append(read(f"{found.common}/info/exclude"))
    (folder / "info/exclude").write_bytes(b"\n".join([*rules, b""]))
    return store


def write_git(at: str, repository: Repository, ours: Path, project: str = "") -> None:
    """Write an agent's ``.git``. ``project``: the id of the user's project in OpenCode, which would make up another one
    for a repository without remotes."""
    own, common = repository
    tables = os.path.isdir(f"{common}/reftable")
    config = CONFIG.format(bare="false", form=repository.form) + ("\trefStorage = reftable\n" if tables else "")
    if Path(common).is_relative_to(ours):
        for file in _below(repository.objects):
            _write(at + file[len(common) :], read(file))
    _write(f"{at}/objects/info/alternates", repository.lenders(ours))
    os.makedirs(f"{at}/refs" if tables else f"{at}/refs/heads", exist_ok=True)
    _write(f"{at}/HEAD", read(f"{own}/HEAD", 4096) or b"ref: refs/heads/main\n")
    for name in ("packed-refs", "shallow"):
        if content := read(f"{common}/{name}"):
            _write(f"{at}/{name}", content)
    for place in dict.fromkeys((common, own)):
        for sub in ("refs", "reftable") if place == common or not tables else ():
            for file in _below(f"{place}/{sub}") if os.path.isdir(f"{place}/{sub}") else ():
                _write(at + file[len(place) :], read(file))
    _copy_index(repository, at)
    _write(f"{at}/info/exclude", read(f"{common}/info/exclude") + b"\n")
    if known := project.encode() or read(f"{common}/opencode", 200):
        _write(f"{at}/opencode", known)
    _write(f"{at}/config", config.encode())


def heads_of(top: str) -> str:
    """What the branches and the rest of a repository point to, as a digest; only a commit, branch or stash changes
    it."""
    total = hashlib.sha256()
    for base in _REFS:
        for file in _below(f"{top}/.git/{base}"):
            total.update(os.fsencode(file[len(top) :]) + b"\0" + read(file) + b"\0")
    return total.hexdigest()


def read(path: str, most: int = 1 << 30) -> bytes:
    """A regular file's bytes; empty for whatever else is there."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            return file.read(most) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


def _copy_index(repository: Repository, at: str) -> None:
    for name in os.listdir(repository.own):
        if name == "index" or name.startswith("sharedindex."):
            _write(f"{at}/{name}", read(f"{repository.own}/{name}"))


def _below(path: str) -> Iterator[str]:
    if not os.path.isdir(path) and os.path.lexists(path):
        yield path
    for place, directories, names in os.walk(path):
        directories.sort()
        yield from (f"{place}/{name}" for name in sorted(names))


def _write(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(path).write_bytes(content)
