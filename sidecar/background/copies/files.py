"""The files of a copy on disk: which there are, how they get there, and what is in no result. Follows no link."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.background.copies.repository import read
from sidecar.background.copies.store import LINK, CopyError, Store, Version
from streams.system.files import write_all

RULES: Final = frozenset(
    {".opencode", ".claude", ".agents", "opencode.json", "opencode.jsonc", "AGENTS.md", "CLAUDE.md", "CONTEXT.md"}
)
"""What OpenCode reads in a session's directory and in those above it. Without it, an agent might do what the user
forbids, so it is copied even if git ignores it."""

CONFIG: Final = ("opencode.json", "opencode.jsonc")

MAX_FILES: Final = 400_000
MAX_BYTES: Final = 20 << 30

_MAX_PATH: Final = 4095
"""The longest path that the system opens, in bytes."""

_HOSTS: Final = ("/.gitignore", "/package.json", "/package-lock.json", "/bun.lock", "/node_modules")
"""What OpenCode itself writes into a directory ``.opencode``."""

_ABOVE: Final = re.compile(r'\.\./([^./"][^/"]*)')
"""What a configuration names in a directory above."""

_BEGIN: Final = re.compile(rb"\s*\{")
_SCHEMA: Final = re.compile(rb'\{\n  "\$schema": "https://opencode\.ai/config\.json",')
"""What OpenCode 1 writes in the place of a configuration's beginning, if it names no schema."""

_CACHES: Final = ("node_modules", "__pycache__")
_TAG: Final = b"Signature: 8a477f597d28d172789f06886806bc55"
"""How the file ``CACHEDIR.TAG`` begins, with which tools mark a directory that can be made again."""

_CHUNK: Final = 1 << 20


@dataclass
class Found:
    """What is below a directory. All names are relative to it."""

    files: dict[str, os.stat_result] = field(default_factory=dict)
    """Files and links that can be in a result."""
    folders: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    """What git ignores, or the user lists: a directory stands for all in it."""
    hosts: list[str] = field(default_factory=list)
    """What OpenCode itself wrote, and git does not track."""
    nested: list[str] = field(default_factory=list)
    """Directories that are repositories of their own."""
    odd: dict[str, str] = field(default_factory=dict)
    """What cannot be read or is no file, and why."""

    def check(self, root: str = "") -> None:
        """Refuse what is too much to copy to ``root``, too long there, or lacks rules.

        Raises:
            CopyError: it is so.
        """
        size = sum(info.st_size for info in self.files.values())
        if len(self.files) > MAX_FILES or size > MAX_BYTES:
            most = f"a copy has at most {MAX_FILES} files and {MAX_BYTES >> 30} GiB"
            raise CopyError(
                "copy-failed", f"{len(self.files)} files with {size >> 20} MiB are too much to copy: {most}"
            )
        longest = max(map(os.fsencode, (*self.files, *self.folders)), key=len, default=b"")
        if len(os.fsencode(root)) + 1 + len(longest) > _MAX_PATH:
            name = longest.decode("utf-8", "replace")
            raise CopyError("copy-failed", f"{name}: its path in a copy, below {root}, would be too long")
        if lost := next((each for each in self.odd if _has_rules(each)), None):
            raise CopyError("copy-failed", f"{lost}, which has rules for OpenCode, cannot be copied: {self.odd[lost]}")


def walk(store: Store, top: str, known: Collection[str] = (), listed: Collection[str] = ()) -> Found:
    """What is below ``top``. Names that are ``known`` are never ignored; ``listed`` ones are, unless something
    known is below them.

    Raises:
        CopyError: git cannot say what is ignored.
    """
    found = Found()
    above = {path[:at] for path in (*known, *listed) for at, letter in enumerate(path) if letter == "/"}
    level = [""]
    while level:
        entries: dict[str, os.stat_result] = {}
        for here in level:
            entries |= _entries(top, here, found)
        if len(found.files) > MAX_FILES:
            found.check()
        ignored = store.ignored(top, entries)
        level = []
        for path, info in entries.items():
            is_directory, counts = stat.S_ISDIR(info.st_mode), path in known or path in above
            if path not in known and f"/{path}".endswith(tuple(f"/.opencode{each}" for each in _HOSTS)):
                found.hosts.append(path)
            elif not counts and (path in listed or (path in ignored and not _has_rules(path))):
                found.ignored.append(path)
            elif is_directory:
                found.folders.append(path)
                level.append(path)
            elif stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
                found.files[path] = info
            else:
                found.odd[path] = "it is not a file"
    return found


def _entries(top: str, here: str, found: Found) -> dict[str, os.stat_result]:
    try:
        entries = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir(os.path.join(top, here))}
    except OSError as error:
        found.odd[here] = str(error.strerror)
        return {}
    if here and ".git" in entries:
        found.nested.append(here)
    rules = entries.get(".gitignore")
    if rules is not None and not stat.S_ISREG(rules.st_mode) and not stat.S_ISLNK(rules.st_mode):
        raise CopyError("copy-failed", f"{os.path.join(here, '.gitignore')} is no file; remove it")  # git would wait
    return {os.path.join(here, name): info for name, info in entries.items() if name != ".git"}


def _has_rules(path: str) -> bool:
    return not RULES.isdisjoint(path.split("/"))


# --- copying ---


def kind_of(mode: int) -> str:
    return LINK if stat.S_ISLNK(mode) else "100755" if mode & 0o100 else "100644"


def signature(info: os.stat_result) -> list[int]:
    """What changes with a file. No program can set the time of its last change."""
    return [info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_mode]


@contextmanager
def _opened(path: str) -> Iterator[tuple[int, os.stat_result]]:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0) as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "it is not a file", path)
        yield file.fileno(), info


def take(store: Store, path: str, copy: str | None = None) -> Version:
    """The version of a file, which is read once; the same bytes become the file ``copy``."""
    with _opened(path) as (file, info):
        total = store.hash(info.st_size)
        if copy is None:
            _read(file, info.st_size, total.update)
        else:
            _copy(file, info, copy, total.update)
    return Version(kind_of(info.st_mode), total.hexdigest())


def _copy(source: int, info: os.stat_result, copy: str, see: Callable[[bytes], object] | None) -> None:
    with open(copy, "x+b", buffering=0) as new:
        if not _is_shared(source, new.fileno(), info.st_size):
            _read(source, info.st_size, see or len, new.fileno())
        elif see is not None:
            _read(new.fileno(), info.st_size, see)
        os.fchmod(new.fileno(), stat.S_IMODE(info.st_mode) & 0o777 | 0o600)
    os.utime(copy, ns=(info.st_atime_ns, info.st_mtime_ns))


def _is_shared(source: int, new: int, size: int) -> bool:
    """Copy the content inside of the system, which shares the blocks where the disk can; false if that is impossible.
    Both files are at their beginnings then."""
    try:
        while size > 0 and (copied := os.copy_file_range(source, new, size)):
            size -= copied
    except (OSError, AttributeError):
        os.ftruncate(new, 0)
    os.lseek(source, 0, os.SEEK_SET)
    os.lseek(new, 0, os.SEEK_SET)
    return size == 0


def _read(file: int, size: int, see: Callable[[bytes], object], to: int | None = None) -> None:
    while size > 0:
        if not (part := os.read(file, min(size, _CHUNK))):
            raise OSError(errno.EAGAIN, "it became shorter while it was read")
        see(part)
        size -= len(part)
        if to is not None:
            write_all(to, part)


def version_of_link(store: Store, text: str) -> Version:
    return Version(LINK, store.name(os.fsencode(text)))


def led(text: str, path: str, top: str, copy: str) -> str:
    """The text of the user's link at ``path`` in the copy. A link that leads into the tree leads into the copy; one
    that leads out leads to the same place as before."""
    goal = os.path.normpath(os.path.join(top, os.path.dirname(path), text))
    if goal == top or goal.startswith(f"{top}/"):
        return copy + goal[len(top) :] if text.startswith("/") else text
    return text if os.path.lexists(os.path.normpath(os.path.join(copy, os.path.dirname(path), text))) else goal


def copy_whole(path: str, top: str, root: str) -> None:
    """Copy a file, a link or a directory below ``top`` as it is.

    Raises:
        OSError, shutil.Error: something in it is not there, or is no file; everything else was copied.
    """
    source, target = f"{top}/{path}", f"{root}/{path}"
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(source):
        os.symlink(led(os.readlink(source), path, top, root), target)
    elif os.path.isdir(source):
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, copy_function=_copy_alone)
    else:
        _copy_alone(source, target)


def _copy_alone(source: str, target: str) -> None:
    with _opened(source) as (file, info):
        _copy(file, info, target, None)


def remove(top: str, stopped: Callable[[], bool]) -> None:
    """Remove a directory, also what its owner may not read or write, until it is ``stopped``."""
    waiting = [top]
    while waiting and not stopped():
        os.chmod(waiting[-1], 0o700)
        below = list[str]()
        for entry in os.scandir(waiting[-1]):
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.path)
            elif not stopped():
                os.unlink(entry.path)
        if below:
            waiting += below
        elif not stopped():
            os.rmdir(waiting.pop())


def surround(top: str, root: str) -> None:
    """Link, above the copy at ``root``, what OpenCode reads above the user's directory, and what its configuration
    names there. Nothing else, since an agent could reach it."""
    named = set[str]()
    for each in (*CONFIG, *(f".opencode/{name}" for name in CONFIG)):
        named.update(_ABOVE.findall(read(f"{top}/{each}", 1 << 20).decode("utf-8", "replace")))
    user, base = os.path.expanduser("~"), root.removesuffix(top)
    while top not in ("/", user) and (top := os.path.dirname(top)) != "/":
        for name in RULES | named:
            if os.path.lexists(f"{top}/{name}") and not os.path.lexists(f"{base}{top}/{name}"):
                os.symlink(f"{top}/{name}", f"{base}{top}/{name}")


# --- what is in no result ---


def without_schema(before: bytes, after: bytes) -> bytes | None:
    """A configuration without the schema that OpenCode added to it; ``None`` if it added none."""
    begin, schema = _BEGIN.match(before), _SCHEMA.match(after)
    return None if begin is None or schema is None or b'"$schema"' in before else begin[0] + after[schema.end() :]


def is_cache(path: str) -> bool:
    """Whether a directory says of itself that it can be made again."""
    if os.path.lexists(f"{path}/.git"):
        return False
    return os.path.basename(path) in _CACHES or read(f"{path}/CACHEDIR.TAG", len(_TAG)) == _TAG


def marks(top: str, paths: Collection[str]) -> dict[str, str]:
    """Files and directories below ``top``, each with a mark that changes with what is in it. Caches are left out."""
    return {path: _mark(f"{top}/{path}") for path in paths if not is_cache(f"{top}/{path}")}


def _mark(path: str) -> str:
    total = hashlib.sha256()
    for each in _inside(path):
        total.update(f"{each!a} {signature(os.lstat(each))}".encode())
    return total.hexdigest()


def _inside(path: str) -> Iterator[str]:
    if os.path.islink(path) or not os.path.isdir(path):
        yield path
        return
    for place, directories, names in os.walk(path):
        directories[:] = sorted(each for each in directories if not is_cache(f"{place}/{each}"))
        yield from (f"{place}/{name}" for name in sorted(names))


def is_below(path: str, tops: Collection[str]) -> bool:
    return any(str(above) in tops for above in (Path(path), *Path(path).parents))
