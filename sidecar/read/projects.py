"""Finds the streams of a project, whose sessions ran in the project's directory or in another worktree of its
repository. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from sidecar.read.catalog import Catalog, is_agents
from sidecar.read.views import Place

_WORKTREE: Final = re.compile(r".*/worktrees/(int_[0-9a-f]{4,64}(/.*)?)", re.DOTALL)

_NO_PROJECT = ("", "global")
"""OpenCode's project ids for a directory without a repository."""


@dataclass(frozen=True, slots=True)
class Project:
    """A directory (absolute, without symlinks) and everything below it."""

    root: str

    def holds(self, directory: str) -> bool:
        """True if ``directory`` is this project's root or below it; false if ``directory`` is empty."""
        return bool(directory) and PurePath(directory).is_relative_to(self.root)

    def places(self, catalog: Catalog) -> set[Place]:
        """The places in this directory, and those to which OpenCode gave the same project id."""
        places = catalog.places()
        held = {place for place in places if self.holds(place.directory)}
        ids = {place.project for place in held} - set(_NO_PROJECT)
        return held | {place for place in places if place.project in ids}

    def streams(self, catalog: Catalog) -> set[str]:
        """The streams that ran in these places."""
        found = {name for place in self.places(catalog) for name in catalog.streams_at(place)}
        # A stream that was joined to another one may not know its directory.
        nowhere = [name for place in catalog.places() if not place.directory for name in catalog.streams_at(place)]
        return found | {name for name in nowhere if self.holds(catalog.directory(name))}


def newest_of(catalog: Catalog, streams: Collection[str] | None = None) -> str | None:
    """The stream to which a record was added last, preferably a stream with a session. If ``streams`` are given, the
    result is one of these.

    The result is never the stream of an agent.
    """
    found = (stream for stream in catalog.newest_first() if streams is None or stream.id in streams)
    without = None
    for stream in found:
        if stream.sessions and not is_agents(stream.id):
            return stream.id
        without = without or (None if is_agents(stream.id) else stream.id)
    return without


def short_directory(directory: str, home: str) -> str:
    """A directory as people write it: ``~/shop``, or ``the worktree of int_56516e4e564a`` for background work."""
    worktree = _WORKTREE.fullmatch(directory)
    if worktree is not None:
        return f"the worktree of {worktree[1]}"
    path = PurePath(directory)
    if home and path.is_relative_to(home):
        return str(PurePath("~") / path.relative_to(home))
    return directory
