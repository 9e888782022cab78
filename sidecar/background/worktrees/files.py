"""The files of a worktree on disk: what is copied into it, what would lead out of it, and what nobody has saved.

Nothing here runs git, and nothing follows a symbolic link that leads out of the project.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path, PurePath
from typing import Final

from sidecar.background.worktrees.git import WorktreeError

CONFIG: Final = ("opencode.json", "opencode.jsonc", ".opencode", "AGENTS.md", "CLAUDE.md")
"""What OpenCode reads in a session's directory and in each directory above it, up to the repository's root."""

MAX_COPIED: Final = 32 * 1024 * 1024
"""Maximum size of all copies in a worktree, in bytes."""

MAX_MODULES: Final = 5000
"""Maximum number of files of a ``node_modules`` that is copied."""

MAX_NAMED: Final = 20
"""Maximum number of files that are named."""

_OWN: Final = (".gitignore", "package.json", "package-lock.json", "bun.lock", "node_modules")
"""What OpenCode itself writes into a ``.opencode`` directory."""

_RULES: Final = re.compile(
    r"(.*/)?(opencode\.jsonc?|\.opencode(/opencode\.jsonc?|/(agents?|modes?|plugins?)(/[^/]*)?)?)", re.DOTALL
)
"""What can hold rules. Without it, an agent might do what the user forbids, so it is never left out."""

_BEGIN: Final = re.compile(r"\s*\{")
_SCHEMA: Final = re.compile(r'\{\n  "\$schema": "https://opencode\.ai/config\.json",')
"""What OpenCode 1 writes in the place of a configuration's beginning, if it names no schema."""

_CACHES: Final = ("node_modules", "__pycache__")

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK

_TAG: Final = b"Signature: 8a477f597d28d172789f06886806bc55"
"""How the file ``CACHEDIR.TAG`` begins, with which tools mark a directory that can be made again."""


def places(below: str) -> list[str]:
    """The directories in which OpenCode looks for its own files, from the top to ``below``; each is empty or ends with
    a slash."""
    return ["", *(f"{each}/" for each in accumulate(PurePath(below).parts, "{}/{}".format))]


def own_files(top: Path, below: str) -> list[str]:
    """The files and links in the user's directories that belong to OpenCode, whether git tracks them or not."""
    found: list[str] = []
    for place in places(below):
        for name in CONFIG:
            path = top / place / name
            if path.is_symlink() or path.is_file():
                found.append(place + name)
            elif path.is_dir():
                inside = _walk(path, lambda each: Path(each).name == "node_modules")
                found += (f"{place}{name}/{each}" for each, entry in inside if _is_kept(entry))
    return found


def _modules(top: Path, below: str) -> Iterator[tuple[str, list[str] | None]]:
    """Each ``node_modules`` of OpenCode's own in the user's directories, with its files; ``None``: it is too large."""
    for place in places(below):
        name = f"{place}.opencode/node_modules"
        if not (top / name).is_dir() or (top / name).is_symlink() or (top / place / ".opencode").is_symlink():
            continue
        files, size = [], 0
        for each, entry in _walk(top / name):
            files.append(f"{name}/{each}")
            size += entry.stat(follow_symlinks=False).st_size
            if size > MAX_COPIED // 2 or len(files) > MAX_MODULES:
                break
        else:
            yield name, files
            continue
        yield name, None


def _is_kept(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() or entry.is_file(follow_symlinks=False)


def copy(top: Path, below: str, names: Collection[str], root: Path) -> tuple[dict[str, str], list[str]]:
    """Copy these files of the user's into the worktree at ``root``.

    Returns the copies, each with its digest, and the names that were left out. A digest is empty for a name under which
    OpenCode itself writes. A link becomes a link inside the worktree, or a copy of a file in the project.

    Raises:
        WorktreeError: a file with rules cannot be copied. Without it, the agent might do what the user forbids.
    """
    done: dict[str, str] = {}
    out: list[str] = []
    room = MAX_COPIED
    # Links come last, because they may lead to another copy.
    wanted = sorted(names, key=lambda each: ((top / each).is_symlink(), each))
    for folder, files in _modules(top, below):
        wanted += files or ()
        out += [folder] if files is None else []
    for name in wanted:
        source, target = top / name, root / name
        if source.is_symlink() and not source.exists():
            continue
        try:
            if not _is_below(target.parent, root) or not _is_below(source, top):
                size = None
            else:
                size = _copied(source, target, top, root, room)
        except OSError as error:
            raise WorktreeError("config-not-copied", f"cannot copy {source} into the worktree: {error}") from None
        if size is not None:
            room -= size
            done[name] = digest(target)
        elif holds_rules(name):
            why = "it leads out of the project, is too large, or is no file"
            raise WorktreeError("config-not-copied", f"cannot copy {source} into the worktree: {why}")
        else:
            out.append(name)
    for place in places(below):
        if (root / place / ".opencode").is_dir():
            own = (f"{place}.opencode/{each}" for each in _OWN)
            done |= {each: "" for each in own if each in done or not os.path.lexists(root / each)}
    return done, out


def _copied(source: Path, target: Path, top: Path, root: Path, room: int) -> int | None:
    """Copy one file or link; its size, or ``None`` if it was left out."""
    if os.path.lexists(target):
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        inside = root / source.resolve().relative_to(top.resolve())
        if inside.exists() and _is_below(inside, root):
            target.symlink_to(os.path.relpath(inside, target.parent))
            return 0
    with os.fdopen(os.open(source.resolve(), _READ), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > room:
            return None
        with target.open("xb") as copied:
            shutil.copyfileobj(file, copied)
        target.chmod(stat.S_IMODE(about.st_mode) & 0o777 | 0o600)
        return about.st_size


def holds_rules(name: str) -> bool:
    return _RULES.fullmatch(name) is not None


def without_schema(before: str, after: str) -> str | None:
    """A configuration without the schema that OpenCode added to it; ``None`` if it added none."""
    begin, schema = _BEGIN.match(before), _SCHEMA.match(after)
    return None if begin is None or schema is None or '"$schema"' in before else begin[0] + after[schema.end() :]


def cut_links(links: Iterable[str], top: Path, root: Path) -> list[str]:
    """Remove those of these links that lead out of the worktree at ``root``, a copy of ``top``; returns their names.

    Raises:
        WorktreeError: such a link leads to rules.
    """
    out = [each for each in links if os.path.lexists(root / each) and not _is_below(root / each, root)]
    for each in out:
        if holds_rules(each) and (top / each).exists():
            raise WorktreeError("config-not-copied", f"{top / each} leads out of the project")
        (root / each).unlink()
    return out


def _is_below(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a loop of links
        return False


def digest(path: Path) -> str:
    """What a file or link contains, as a digest; empty if nothing is there."""
    try:
        content = b"link " + os.fsencode(path.readlink()) if path.is_symlink() else b"file " + path.read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(content).hexdigest()


def is_own(name: str, copied: Mapping[str, str]) -> bool:
    """Whether a name in a worktree is a copy, or OpenCode's own."""
    return any(above in copied for above in accumulate(PurePath(name).parts, "{}/{}".format))


def marks(root: Path, saved: Collection[str]) -> dict[str, str]:
    """What is in a worktree and not saved, each with a mark that changes with the file. Caches are left out."""
    return {name: _mark(entry) for name, entry in _walk(root, _is_cache) if name != ".git" and name not in saved}


def _mark(entry: os.DirEntry[str]) -> str:
    about = entry.stat(follow_symlinks=False)
    # No program can set the last of these times.
    return f"{about.st_ino} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}"


def unsaved(
    root: Path,
    saved: Collection[str],
    modules: Collection[str],
    copied: Mapping[str, str],
    made: Mapping[str, str],
) -> dict[str, str]:
    """What would be lost with the worktree, and why it is not saved.

    Args:
        saved: the files of the saved tree, which are on disk as they were saved.
        modules: the submodules of that tree.
        copied: see ``copy``.
        made: what was there when the agent began; see ``marks``.
    """
    found: dict[str, str] = {}
    nested = set(modules)
    for name, entry in _walk(root, _is_cache):
        if name == ".git" or name in saved or (name in made and made[name] == _mark(entry)):
            continue
        own = next((each for each in accumulate(PurePath(name).parts, "{}/{}".format) if each in copied), None)
        if own is not None:
            if copied[own] and copied[own] != digest(root / own):
                found[own] = "a changed copy of your file"
            continue
        parts = PurePath(name).parts
        if ".git" in parts:
            nested.add("/".join(parts[: parts.index(".git")]))
        found[name] = "ignored by git" if _is_kept(entry) else "not a file"
    return _gathered(found, nested, modules)


def _gathered(found: Mapping[str, str], nested: Collection[str], modules: Collection[str]) -> dict[str, str]:
    """The same with one line for each repository, instead of one for each of its files."""
    short: dict[str, str] = {}
    for name, why in found.items():
        inside = next((each for each in accumulate(PurePath(name).parts, "{}/{}".format) if each in nested), None)
        if inside is None:
            short[name] = why
        else:
            short[inside] = "a submodule" if inside in modules else "a repository of its own"
    return short


def _is_cache(directory: str) -> bool:
    """Whether a directory says of itself that it can be made again."""
    path = Path(directory)
    if os.path.lexists(path / ".git"):
        return False
    if path.name in _CACHES:
        return True
    try:
        with os.fdopen(os.open(path / "CACHEDIR.TAG", _READ), "rb") as tag:
            return tag.read(len(_TAG)) == _TAG
    except OSError:
        return False


def _walk(root: Path, skip: Callable[[str], bool] = lambda _: False) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything below a directory that is not itself a directory, without following links."""
    waiting = [""]
    while waiting:
        place = waiting.pop()
        with os.scandir(root / place) as entries:
            for entry in entries:
                name = f"{place}{entry.name}"
                if not entry.is_dir(follow_symlinks=False):
                    yield name, entry
                elif not skip(entry.path):
                    waiting.append(f"{name}/")
