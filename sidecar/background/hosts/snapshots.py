"""The snapshots that OpenCode keeps of each directory in which an agent edits. Nobody can use those of a directory that
is gone, and OpenCode does not remove them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from hashlib import sha1
from pathlib import Path

from sidecar.background.hosts.environments import read_environment


def environment_of(pid: int) -> Mapping[str, str]:
    """The variables of a process; those of the sidecar where no process can read another's."""
    return read_environment(pid) or os.environ


def data_of(environment: Mapping[str, str]) -> Path:
    """The data directory of an OpenCode with these variables."""
    data = environment.get("XDG_DATA_HOME") or Path(environment.get("HOME") or Path.home(), ".local", "share")
    return Path(data, "opencode")


def remove_snapshots(data: Path, project: str, top: str) -> None:
    """Remove the snapshots of a directory of a project, if the directory is gone."""
    if not project or os.sep in project or project.startswith(".") or Path(top).exists():
        return
    name = sha1(top.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()
    shutil.rmtree(data / "snapshot" / project / name, ignore_errors=True)
