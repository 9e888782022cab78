"""Finds the streams of a project, whose sessions ran in the project's directory or in another worktree of its
repository. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from sidecar.read.catalog import Catalog, is_agents

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

    def streams(self, catalog: Catalog) -> set[str]:
        """The streams that ran in this directory, or in a directory that OpenCode gave the same project id."""
        directories = {stream_id: catalog.directory(stream_id) for stream_id in catalog.streams}
        held = {directory for directory in set(directories.values()) if self.holds(directory)}
        inside = {stream_id for stream_id, directory in directories.items() if directory in held}
        ids = {catalog.streams[stream_id].project for stream_id in inside} - set(_NO_PROJECT)
        return inside | {stream.id for stream in catalog.streams.values() if stream.project in ids}


def newest_of(catalog: Catalog, streams: Collection[str] | None = None) -> str | None:
    """The stream to which a record was added last, preferably a stream with a session. If ``streams`` are given, the
    result is one of these.

    The result is never the stream of an agent.
    """
    found = [stream for stream in catalog.streams.values() if streams is None or stream.id in streams]
    found = [stream for stream in found if not is_agents(stream.id)]
    found.sort(key=lambda stream: (bool(stream.sessions), stream.last_position))
    return found[-1].id if found else None


def short_directory(directory: str, home: str) -> str:
    """A directory as people write it: ``~/shop``, or ``the worktree of int_56516e4e564a`` for background work."""
    worktree = _WORKTREE.fullmatch(directory)
    if worktree is not None:
        return f"the worktree of {worktree[1]}"
    path = PurePath(directory)
    if home and path.is_relative_to(home):
        return str(PurePath("~") / path.relative_to(home))
    return directory
