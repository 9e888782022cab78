"""Finds the streams of a project, whose sessions ran in the project's directory or in another worktree of its
repository.

What counts is the directory that was recorded. OpenCode's own project id does not count: a fork has that of its origin,
and a file in the repository can name any."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from sidecar.read.kinds import is_agents
from sidecar.read.story.catalog import Catalog
from sidecar.read.views import Place

_COPY: Final = re.compile(r".*/copies/(int_[0-9a-f]{4,64})/files(/.*)", re.DOTALL)

_POINTER: Final = 4096
"""How many characters of a file that names a directory are read."""


@dataclass(frozen=True, slots=True)
class Project:
    """A directory (absolute, without symlinks) and everything below it."""

    root: str

    def holds(self, directory: str) -> bool:
        """True if ``directory`` is this project's root or below it; false if ``directory`` is empty."""
        return bool(directory) and PurePath(directory).is_relative_to(self.root)

    def places(self, catalog: Catalog) -> set[Place]:
        """The places in this directory, and those in the same repository."""
        own = repository_of(self.root)
        return {
            place
            for place in catalog.places()
            if self.holds(place.directory) or (place.directory and repository_of(place.directory) == own)
        }

    def streams(self, catalog: Catalog) -> set[str]:
        """The streams that ran in these places."""
        found = {name for place in self.places(catalog) for name in catalog.streams_at(place)}
        # A stream that was joined to another one may not know its directory.
        nowhere = [name for place in catalog.places() if not place.directory for name in catalog.streams_at(place)]
        return found | {name for name in nowhere if self.holds(catalog.directory(name))}


def repository_of(directory: str) -> str:
    """The top of the git repository around a directory, or the directory. For a worktree, the top of its repository, if
    that repository names the worktree, too. Git is not asked, because what it says can be configured."""
    path = Path(directory)
    top = next((each for each in (path, *path.parents) if os.path.lexists(each / ".git")), path)
    with suppress(OSError, ValueError):
        own = _named(top / ".git", top)
        if own.parent.name == "worktrees" and _named(own / "gitdir", own) == top / ".git":
            main = own.parent.parent
            return str(main.parent if main.name == ".git" else main)
    return str(top)


def _named(file: Path, base: Path) -> Path:
    """The path that one of git's files names."""
    if not file.is_file():
        raise FileNotFoundError(file)
    with file.open(encoding="utf-8") as opened:
        return Path(os.path.normpath(base / opened.read(_POINTER).removeprefix("gitdir: ").strip()))


def newest_of(catalog: Catalog, streams: Collection[str] | None = None) -> str | None:
    """The stream to which a record was added last, preferably a stream with a session. If ``streams`` are given, the
    result is one of these.

    The result is never the stream of an agent.
    """
    without = None
    for stream in catalog.newest_first():
        if (streams is None or stream in streams) and not is_agents(stream):
            if catalog.streams[stream].sessions:
                return stream
            without = without or stream
    return without


def short_directory(directory: str, home: str) -> str:
    """A directory as people write it: ``~/shop``, or ``the copy of int_56516e4e564a`` for background work."""
    copy = _COPY.fullmatch(directory)
    if copy is not None:
        return f"the copy of {copy[1]}"
    path = PurePath(directory)
    if home and path.is_relative_to(home):
        return str(PurePath("~") / path.relative_to(home))
    return directory
