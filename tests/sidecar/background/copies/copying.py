"""A private copy of a project, and what is done with it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from sidecar.background.copies.copies import Copies, CopyError

__all__ = ["ID", "CopyError", "Found", "Private", "snapshot"]

ID = "int_0123456789ab"


class Found(NamedTuple):
    """What the agent did: the changed files, and what is in the copy and in no result."""

    changes: set[str]
    only_here: list[str]


class Private:
    """A copy of a directory, made at once."""

    def __init__(self, project: Path, place: Path, *listed: str) -> None:
        self.copies = Copies(place)
        self.made = asyncio.run(self.copies.make(ID, str(project), listed=listed))
        self.root, self.top, self.session = Path(self.made.root), Path(self.made.top), Path(self.made.directory)
        self.result = self.copies.result(ID)

    def collect(self) -> Found:
        found = asyncio.run(self.copies.collect(ID))
        only_here = [each["file"] for each in found.get("unsaved", [])]
        assert self.root.exists() == bool(only_here) and found.get("kept") == (str(self.root) if only_here else None)
        changes = set(json.loads((self.result / "result.json").read_bytes())["changes"]) if found["saved"] else set()
        assert found["count"] == len(changes)
        return Found(changes, only_here)

    def diff(self) -> str:
        return asyncio.run(self.copies.diff(ID))

    def apply(self, **more: Any) -> list[str]:
        return asyncio.run(self.copies.apply(ID, **more))

    def undo(self, **more: Any) -> list[str]:
        return asyncio.run(self.copies.undo(ID, **more))

    def discard(self) -> None:
        asyncio.run(self.copies.discard(ID, ID))


def snapshot(root: Path) -> dict[str, Any]:
    """Each file, link and empty directory below a directory, with its content; without what git keeps."""
    found: dict[str, Any] = {}
    for place, directories, files in os.walk(root):
        directories[:] = [each for each in directories if each != ".git"]
        for each in (*files, *directories):
            path = Path(place, each)
            name = str(path.relative_to(root))
            if path.is_symlink():
                found[name] = ("link", str(path.readlink()))
            elif path.is_file() and each != ".git":
                found[name] = (bool(path.stat().st_mode & 0o100), path.read_bytes())
            elif path.is_dir() and not any(path.iterdir()):
                found[name] = "empty"
    return found
