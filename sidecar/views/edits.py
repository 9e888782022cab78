"""The files that one step changed, as the tools of OpenCode tell it. Pure.

Payloads come from other programs, so any field may be missing or have another type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import PurePath
from typing import Any

EDITORS = frozenset({"edit", "write", "multiedit", "patch", "apply_patch"})
"""The tools that change files. What a command changes, nobody knows."""

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


@dataclass(frozen=True, slots=True)
class FileChange:
    """What one step did to one file.

    ``added`` and ``removed`` count lines; both are ``None`` where what was there before is not known.
    """

    file: str
    added: int | None
    removed: int | None
    diff: str


def file_changes(payload: dict[str, Any], asked_diff: str = "") -> list[FileChange]:
    """The files that an ``execution.step`` changed; none if it failed or is of another tool.

    ``asked_diff`` is the diff that a person was shown for this step.
    """
    tool, metadata = payload.get("tool"), _mapping(payload.get("metadata"))
    if not isinstance(tool, str) or tool not in EDITORS or payload.get("status") == "error":
        return []
    given = _mapping(payload.get("executed_input")) or _mapping(payload.get("input"))
    named = _first(given, "filePath", "path", "file") or _first(metadata, "filepath", "filePath")
    told = _list(metadata.get("files")) or _list(metadata.get("results")) or [metadata]
    found = [change for each in told if (change := _change(each, named)) is not None]
    if found or not named:
        return found
    if asked_diff:
        return [FileChange(named, *diff_stat(asked_diff), asked_diff)]
    content = given.get("content")
    if tool == "write" and metadata.get("exists") is False and isinstance(content, str):
        diff = new_file_diff(named, content)
        return [FileChange(named, *diff_stat(diff), diff)]
    return [FileChange(named, None, None, "")]


def diff_stat(diff: str) -> tuple[int, int]:
    """How many lines a unified diff adds and removes."""
    added = removed = 0
    old = new = 0
    for line in diff.split("\n"):
        if old <= 0 and new <= 0:
            if hunk := _HUNK.match(line):
                old, new = (int(count[:9]) if count is not None else 1 for count in hunk.groups())
        elif line.startswith("+"):
            added, new = added + 1, new - 1
        elif line.startswith("-"):
            removed, old = removed + 1, old - 1
        elif not line.startswith("\\"):
            old, new = old - 1, new - 1
    return added, removed


def new_file_diff(file: str, content: str) -> str:
    """The unified diff that makes ``file`` with ``content``."""
    lines = content.split("\n")
    ended = not lines[-1]
    whole = [f"{line}\n" for line in (lines[:-1] if ended else lines)]
    missing = "" if ended else "\\ No newline at end of file\n"
    return "".join(unified_diff([], whole, "/dev/null", file)) + missing


def diff_lines(diff: str) -> Iterator[tuple[str, str]]:
    """The lines of a diff, each with its style; the title that OpenCode puts above is left out."""
    for line in diff.rstrip("\n").split("\n"):
        if line.startswith("Index: ") or (line and not line.strip("=")):
            continue
        style = "bold" if line.startswith(("--- ", "+++ ")) else {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        yield line, style or ""


def short_path(file: str, directory: str) -> str:
    """``file`` as seen from ``directory``; as it is if it lies elsewhere."""
    path = PurePath(file)
    return str(path.relative_to(directory)) if directory and path.is_relative_to(directory) else file


def _change(told: Any, named: str) -> FileChange | None:
    """What ``{file, patch, additions, deletions}`` says, or what holds one as ``filediff``, or a ``diff``."""
    outer = _mapping(told)
    inner = _mapping(outer.get("filediff")) or outer
    file = _first(inner, "movePath", "filePath", "file", "path", "relativePath") or named
    diff = _first(inner, "patch", "diff") or _first(outer, "diff")
    counts = [inner.get(name) for name in ("additions", "deletions")]
    if not file or not (diff or all(map(_is_count, counts))):
        return None
    added, removed = diff_stat(diff)
    return FileChange(
        file,
        added=counts[0] if _is_count(counts[0]) else added,
        removed=counts[1] if _is_count(counts[1]) else removed,
        diff=diff,
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _first(told: dict[str, Any], *names: str) -> str:
    return next((told[name] for name in names if isinstance(told.get(name), str) and told[name]), "")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
