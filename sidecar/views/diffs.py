"""What a tool call changed in files, from what OpenCode says of the call. Pure."""

from __future__ import annotations

import re
from difflib import unified_diff
from typing import Any

from sidecar.views.catalog import as_text
from sidecar.views.fields import as_list, as_mapping
from sidecar.views.transcript import Diff

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NAME = re.compile(r"(?:\+\+\+ (?:b/)?|Index: )([^\t]+)")
_NO_FILE = "/dev/null"

MOST_COMPARED = 1_000_000
"""Pairs of lines up to which two texts are compared; beyond, one is shown after the other."""


def diffs_of(payload: dict[str, Any], directory: str = "") -> list[Diff]:
    """The diffs of a completed tool step, paths relative to ``directory``; empty if it changed no file.

    OpenCode gives the diff of an edit. A file that was written whole, and an edit without a diff, are
    compared here: with nothing, and the old string with the new one.
    """
    given, metadata = as_mapping(payload.get("input")), as_mapping(payload.get("metadata"))
    if payload.get("status") != "completed":
        return []
    for many in (metadata.get("files"), metadata.get("results")):
        if some := [diff for one in as_list(many) for diff in _given(as_mapping(one), {}, directory)]:
            return some
    return _given(metadata, given, directory) or _made(str(payload.get("tool")), given, metadata, directory)


def relative(path: str, directory: str) -> str:
    """``path`` as seen from ``directory`` if it is below it, else as it is."""
    inside = f"{directory.rstrip('/')}/"
    return path.removeprefix(inside) if directory and path != inside else path


def _given(metadata: dict[str, Any], given: dict[str, Any], directory: str) -> list[Diff]:
    inner = as_mapping(metadata.get("filediff"))
    patch = next((p for p in map(as_text, (metadata.get("diff"), inner.get("patch"), metadata.get("patch"))) if p), "")
    named = (inner.get("file"), given.get("filePath"), metadata.get("relativePath"), metadata.get("filePath"))
    file = next(filter(None, map(as_text, named)), "")
    bodies = _bodies(patch)
    return [_diff(relative(name if len(bodies) > 1 or not file else file, directory), body) for name, body in bodies]


def _made(tool: str, given: dict[str, Any], metadata: dict[str, Any], directory: str) -> list[Diff]:
    file = relative(as_text(given.get("filePath")) or as_text(metadata.get("filepath")), directory)
    if tool == "write" and isinstance(content := given.get("content"), str):
        made = _diff(file, _compared("", content))
        made.how = "replace" if metadata.get("exists") else "new"
        return [made]
    edits = as_list(given.get("edits")) or [given]
    bodies = [
        _compared(as_text(edit.get("oldString")), as_text(edit.get("newString")))
        for edit in map(as_mapping, edits)
        if "oldString" in edit or "newString" in edit
    ]
    if bodies:
        return [_diff(file, "\n".join(bodies))]
    patch = as_text(given.get("patchText"))
    return [_diff(file, patch.rstrip("\n"))] if patch else []


def _compared(old: str, new: str) -> str:
    before, after = old.splitlines(), new.splitlines()
    if len(before) * len(after) > MOST_COMPARED:
        return "\n".join([*(f"-{line}" for line in before), *(f"+{line}" for line in after)])
    return "\n".join(list(unified_diff(before, after, lineterm="", n=2))[2:])


def _bodies(patch: str) -> list[tuple[str, str]]:
    """The hunks of each file in a unified diff, with the file's name; a patch of another form stays whole."""
    found: list[tuple[str, list[str]]] = []
    name, is_new, left = "", True, [0, 0]
    for line in patch.rstrip("\n").split("\n") if patch else []:
        if (left[0] > 0 or left[1] > 0) or line.startswith("\\"):
            if found:
                found[-1][1].append(line)
            left = [left[0] - (line[:1] in ("-", " ", "")), left[1] - (line[:1] in ("+", " ", ""))]
        elif (hunk := _HUNK.match(line)) is not None:
            if is_new:
                found.append((name, []))
                is_new = False
            found[-1][1].append(line)
            left = [1 if count is None else int(count) for count in hunk.groups()]
        elif (named := _NAME.match(line)) is not None:
            name, is_new = (named[1].strip() if named[1].strip() != _NO_FILE else name), True
    return [(file, "\n".join(lines)) for file, lines in found] or ([("", patch.rstrip("\n"))] if patch else [])


def _diff(file: str, body: str) -> Diff:
    lines = body.split("\n")
    return Diff(file, body, sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines))
