"""The files that one step changed, from the payload of its tool call. Pure.

Payloads come from other programs, so any field may be missing or have another type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import unified_diff
from typing import Any, Literal, TypeGuard

from sidecar.read.fields import as_list, as_mapping, as_text, first_text, given_to, with_cuts_shown

EDITORS = frozenset({"edit", "write", "multiedit", "patch", "apply_patch"})
"""The tools that change files. The files that a command changes are not known."""

MOST_COMPARED = 1_000_000
"""Maximum number of line pairs for which two texts are compared. For larger texts, the diff shows the whole old text
and then the whole new text."""

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NAME = re.compile(r"(?:\+\+\+ (?:b/)?|Index: )([^\t]+)")
_NO_FILE = "/dev/null"
_CREATED = "Created file successfully"
"""What OpenCode 2 says of a file that ``write`` made; of any other it says that it wrote it."""


@dataclass(frozen=True, slots=True)
class Diff:
    """One file's change: a unified diff, and how many lines it adds and removes.

    ``how`` is ``edit``, ``new``, or ``replace`` if the old content is not known.
    """

    file: str
    patch: str
    additions: int
    deletions: int
    how: Literal["edit", "new", "replace"] = "edit"


def file_changes(payload: dict[str, Any], asked_diff: str = "") -> list[Diff]:
    """The files that an ``execution.step`` changed; empty if the step failed or its tool changes no files.

    ``asked_diff`` is the diff that a person approved. OpenCode reports the diff of an edit; otherwise the diff is
    made from the call's input: the whole content, or the old and the new string.
    """
    tool, metadata = as_text(payload.get("tool")), as_mapping(payload.get("metadata"))
    if tool not in EDITORS or payload.get("status") == "error":
        return []
    given = as_mapping(given_to(payload))
    file = first_text(given, "filePath", "path", "file") or first_text(metadata, "filepath", "filePath")
    for entries in (as_list(metadata.get("files")), as_list(metadata.get("results")), [metadata]):
        if found := [diff for each in entries for diff in _reported(as_mapping(each), file)]:
            return found
    if asked_diff and file:
        return [Diff(file, asked_diff, *diff_stat(asked_diff))]
    is_new = metadata.get("exists") is False or as_text(payload.get("output")).startswith(_CREATED)
    return _from_input(tool, file, given, is_new=is_new)


def diff_stat(diff: str) -> tuple[int, int]:
    """How many lines a unified diff adds and removes."""
    return _counted([line for part in _parts(diff) for line in part.hunks])


def new_file_diff(file: str, content: str) -> str:
    """The unified diff that creates ``file`` with ``content``."""
    lines = content.split("\n")
    ended = not lines[-1]
    whole = [f"{line}\n" for line in (lines[:-1] if ended else lines)]
    missing = "" if ended else "\\ No newline at end of file\n"
    return "".join(unified_diff([], whole, _NO_FILE, file)) + missing


def hunks_of(diff: str) -> str:
    """A unified diff without its file headers; other text is returned unchanged."""
    return "\n".join(line for part in _parts(diff) for line in part.hunks) or diff.rstrip("\n")


def diff_lines(diff: str) -> Iterator[tuple[str, str]]:
    """The lines of a diff, each with its style, without the title that OpenCode adds."""
    for line in diff.rstrip("\n").split("\n"):
        if line.startswith("Index: ") or (line and not line.strip("=")):
            continue
        style = "bold" if line.startswith(("--- ", "+++ ")) else {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        yield line, style or ""


def short_path(file: str, directory: str) -> str:
    """``file`` relative to ``directory`` if the file is below that directory; otherwise unchanged."""
    inside = f"{directory.rstrip('/')}/"
    return file.removeprefix(inside) if directory and file != inside else file


@dataclass(slots=True)
class _Part:
    """The part of a diff about one file."""

    name: str
    head: list[str]
    hunks: list[str] = field(default_factory=list)


def _reported(outer: dict[str, Any], named: str) -> list[Diff]:
    """The diffs that OpenCode reports, as ``{file, patch, additions, deletions}`` (perhaps below ``filediff``) or as a
    ``diff``.
    """
    inner = as_mapping(outer.get("filediff")) or outer
    file = first_text(inner, "movePath", "filePath", "file", "path", "relativePath") or named
    patch = first_text(inner, "patch", "diff") or first_text(outer, "diff")
    counts = [inner.get(name) for name in ("additions", "deletions")]
    parts = _parts(patch)
    if parts and (len(parts) > 1 or not file):
        return [Diff(each.name, "\n".join(each.head + each.hunks), *_counted(each.hunks)) for each in parts]
    if not (patch or (file and all(map(_is_count, counts)))):
        return []
    counted = diff_stat(patch)
    added, removed = (count if _is_count(count) else own for count, own in zip(counts, counted, strict=True))
    return [Diff(file, patch, added, removed)]


def _from_input(tool: str, file: str, given: dict[str, Any], *, is_new: bool) -> list[Diff]:
    """The diffs made from the call's input."""
    content = with_cuts_shown(given.get("content"))
    if tool == "write" and isinstance(content, str):
        patch = new_file_diff(file, content)
        return [Diff(file, patch, *diff_stat(patch), "new" if is_new else "replace")]
    many = map(as_mapping, as_list(given.get("edits")) or [given])
    if edits := [edit for edit in many if "oldString" in edit or "newString" in edit]:
        bodies = [_compared(as_text(edit.get("oldString")), as_text(edit.get("newString"))) for edit in edits]
        patch = "\n".join([f"--- {file}", f"+++ {file}", *filter(None, bodies)])
        return [Diff(file, patch, *diff_stat(patch))]
    if patch := as_text(given.get("patchText")):
        return [Diff(file, patch, *_counted(patch.split("\n")))]
    return [Diff(file, "", 0, 0, "replace")] if file else []


def _compared(old: str, new: str) -> str:
    before, after = old.splitlines(), new.splitlines()
    if len(before) * len(after) > MOST_COMPARED:
        head = f"@@ -1,{len(before)} +1,{len(after)} @@"
        return "\n".join([head, *(f"-{line}" for line in before), *(f"+{line}" for line in after)])
    return "\n".join(list(unified_diff(before, after, lineterm="", n=2))[2:])


def _parts(diff: str) -> list[_Part]:
    """Split a unified diff by file. The line counts in hunk headers are used, because a line of a file may look like a
    header."""
    found: list[_Part] = []
    part, old, new = _Part("", []), 0, 0
    for line in diff.rstrip("\n").split("\n"):
        if (old > 0 or new > 0) or (part.hunks and line.startswith("\\")):
            part.hunks.append(line)
            if not line.startswith("\\"):
                old, new = old - (line[:1] != "+"), new - (line[:1] != "-")
        elif hunk := _HUNK.match(line):
            old, new = (int(count[:9]) if count is not None else 1 for count in hunk.groups())
            if not part.hunks:
                found.append(part)
            part.hunks.append(line)
        else:
            if part.hunks:
                part = _Part(part.name, [])
            part.head.append(line)
            if (named := _NAME.match(line)) and named[1].strip() != _NO_FILE:
                part.name = named[1].strip()
    return found


def _counted(lines: list[str]) -> tuple[int, int]:
    return sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
