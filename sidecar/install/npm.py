"""Keeps OpenCode from waiting for npm when it starts, in each of its config directories.

Once there is any plugin, OpenCode 1 starts only after an npm install has ended in **every** config directory: without a
network, that takes over a minute each time. npm installs nothing where ``node_modules`` exists and the lock file names
the packages it needs. An npm that is configured not to retry fails at once.

So a directory where nobody needs packages gets an empty ``node_modules`` and a lock file (*the stub*). If a package is
needed, a stub would prevent its installation, so the directory's ``.npmrc`` gets one setting instead. OpenCode 2
installs nothing in its config directories, and ignores what is there. Everything that
``install`` makes has a *kind*, and is removed only if it is unchanged.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from streams.system.files import write_durably

LOCK: Final = "package-lock.json"
MODULES: Final = "node_modules"
RC: Final = ".npmrc"
RC_LINES: Final = ".npmrc lines"
"""A kind: lines that ``install`` added to an existing ``.npmrc``. The kind ``RC`` is an ``.npmrc`` that ``install``
created."""

STUB: Final = (LOCK, MODULES)
LOCK_TEXT: Final = '{"lockfileVersion":3,"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}\n'
RC_TEXT: Final = (
    b"; durable-stream: without a network OpenCode would wait over a minute for npm at each start\nfetch-retries=0\n"
)

PLUGIN_PACKAGE: Final = "opencode-durable-stream"
"""The name of our plugin as an npm package."""

_PACKAGE: Final = "@opencode-ai/plugin"
_SETTINGS: Final = ("opencode.json", "opencode.jsonc", "config.json")
_STRING: Final = r'("(?:\\.|[^"\\])*")'
_COMMENT: Final = re.compile(_STRING + r"|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA: Final = re.compile(_STRING + r"|,(?=\s*[\]}])")
_DEPENDENCIES: Final = ("dependencies", "devDependencies", "peerDependencies", "optionalDependencies")

DIRECTORY_MODE: Final = 0o755
FILE_MODE: Final = 0o644
"""The mode of files that ``install`` creates outside the home; a umask can only remove permissions."""

OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ConfigDirectories:
    """OpenCode's config directories for one working directory.

    ``user`` is the user's config directory, which may not exist yet. ``others`` are the existing ones among these: each
    ``.opencode`` from the directory up to the repository's root, ``.opencode`` in the user's home, and
    ``OPENCODE_CONFIG_DIR``.
    """

    user: Path
    others: tuple[Path, ...]

    @property
    def all(self) -> tuple[Path, ...]:
        return (self.user, *self.others)

    @classmethod
    def of(cls, directory: Path, environ: Mapping[str, str] = os.environ) -> ConfigDirectories:
        """The directories that OpenCode reads when it starts in ``directory`` with this environment."""
        home = Path(environ.get("HOME") or Path.home())
        base = environ.get("XDG_CONFIG_HOME")
        user = (Path(base) if base and Path(base).is_absolute() else home / ".config") / "opencode"
        found = [*_upward(directory), home / ".opencode"]
        if given := environ.get("OPENCODE_CONFIG_DIR"):
            found.append(directory / given)
        others = [path for path in dict.fromkeys(found) if path != user and path.is_dir()]
        return cls(user, tuple(others))


def _upward(directory: Path) -> Iterator[Path]:
    for place in (directory, *directory.parents):
        yield place / ".opencode"
        if os.path.lexists(place / ".git"):
            return


# --- looking ---


BOTH_READ: Final = "plugin"
"""The key with the plugins that OpenCode 1 and 2 load. The other key, ``plugins``, is OpenCode 2's own."""


def settings_with_package(
    directory: Path, environ: Mapping[str, str] = os.environ, keys: Collection[str] = (BOTH_READ, "plugins")
) -> list[Path]:
    """The configuration files that make an OpenCode in ``directory`` load our npm package under one of the ``keys``.

    ``opencode plugin add`` of OpenCode 2 writes such a file in the user's config directory.
    """
    places = [*ConfigDirectories.of(directory, environ).all, *(path.parent for path in _upward(directory))]
    files = [place / name for place in dict.fromkeys(places) for name in _SETTINGS]
    return [file for file in files if any(_is_package(entry) for key in keys for entry in _listed(file, key))]


def _listed(path: Path, key: str) -> list[Any]:
    """A list in a file of JSON with comments; empty if the file does not have it."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
        for ignored in (_COMMENT, _LAST_COMMA):
            text = ignored.sub(lambda found: found[1] or "", text)
        found = json.loads(text)[key]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _is_package(entry: Any) -> bool:
    if isinstance(entry, dict):
        entry = entry.get("package")
    elif isinstance(entry, list):
        entry = entry[0] if entry else None
    return isinstance(entry, str) and (entry == PLUGIN_PACKAGE or entry.startswith(f"{PLUGIN_PACKAGE}@"))


def waits(directory: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """True if this directory makes OpenCode wait for npm when it has a plugin but no network."""
    if not _is_writable(directory):
        return False  # OpenCode skips a directory that it cannot write to
    needed = _names(_json(directory / "package.json")) | {_PACKAGE}
    if os.path.lexists(directory / MODULES) and needed <= _locked(directory):
        return False
    home = Path(environ.get("HOME") or Path.home())
    return not any(_gives_up(read_rc(path)) for path in (directory / RC, home / RC))


def starves(directory: Path) -> bool:
    """True if a stub would block packages that a plugin, a tool or the user needs."""
    return _is_stub(directory) and _is_used(directory)


def needs_packages(directory: Path) -> bool:
    """True if a config directory has packages that others installed, or code that may import packages."""
    if _is_used(directory):
        return True
    return not _is_stub(directory) and any(os.path.lexists(directory / name) for name in STUB)


def _is_used(directory: Path) -> bool:
    """True if there is a ``package.json``, another plugin, a tool, or a configuration that names plugins."""
    if os.path.lexists(directory / "package.json"):
        return True
    for folder in ("plugin", "plugins", "tool", "tools"):
        for path in (directory / folder).glob("*.[jt]s"):
            if path.name != "durable-stream.js":
                return True
    for name in _SETTINGS:
        with suppress(OSError):
            if re.search(rb'"plugin"\s*:\s*\[\s*[^\]\s]', (directory / name).read_bytes()):
                return True
    return False


def _is_stub(directory: Path) -> bool:
    modules = directory / MODULES
    try:
        return (directory / LOCK).read_bytes() == LOCK_TEXT.encode() and not any(modules.iterdir())
    except OSError:
        return False


def _is_writable(directory: Path) -> bool:
    return directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)


def _locked(directory: Path) -> set[str]:
    packages = _json(directory / LOCK).get("packages")
    root = packages.get("") if isinstance(packages, dict) else None
    return _names(root) if isinstance(root, dict) else set()


def _names(package: Mapping[str, Any]) -> set[str]:
    groups = [package.get(group) for group in _DEPENDENCIES]
    return {name for group in groups if isinstance(group, dict) for name in group}


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}  # OpenCode also treats an unreadable file as empty
    return found if isinstance(found, dict) else {}


def read_rc(path: Path) -> dict[str, str]:
    """The plain settings of an ``.npmrc``; empty if it cannot be read."""
    try:
        lines = path.read_bytes().removeprefix(_BOM).decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    settings = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith((";", "#", "[")):
            settings[name.strip()] = value.strip().strip("\"'")
    return settings


def _gives_up(settings: Mapping[str, str]) -> bool:
    return settings.get("fetch-retries") == "0" or settings.get("offline") == "true"


# --- making and undoing ---


def wanted(directory: Path, made: Collection[str]) -> list[str]:
    """The kinds that ``directory`` should have, given the kinds ``made`` there before. Changes nothing."""
    if not _is_writable(directory):
        return list(made)
    if needs_packages(directory):
        if RC in made or RC_LINES in made:
            return [kind for kind in made if kind not in STUB]
        rc = directory / RC
        if not os.path.lexists(rc):
            return [RC]
        return [] if rc.is_symlink() or not rc.is_file() or "fetch-retries" in read_rc(rc) else [RC_LINES]
    rc_kinds = [kind for kind in made if kind in (RC, RC_LINES)]
    if rc_kinds:
        return rc_kinds
    return list(made) if _is_stub(directory) else list(STUB)


def make(directory: Path, kind: str) -> bool:
    """Create the file, directory or lines of this ``kind`` in ``directory``; return false if they already exist.

    Raises:
        OSError: a file cannot be written.
    """
    path = directory / kind.partition(" ")[0]
    if kind == MODULES:
        if os.path.lexists(path):
            return False
        path.mkdir(mode=DIRECTORY_MODE)
    elif kind == LOCK:
        if os.path.lexists(path):
            return False
        write(path, LOCK_TEXT.encode())
    else:
        before = path.read_bytes() if path.is_file() else b""
        if RC_TEXT in before:
            return False
        # Write the setting at the front, because a section at the end of the file would swallow it.
        mark = _BOM if before.startswith(_BOM) else b""
        write(path, mark + RC_TEXT + before.removeprefix(mark))
    return True


def undo(directory: Path, kind: str) -> bool:
    """Remove what ``kind`` names if it is unchanged since it was made; return false if there was nothing to remove.

    Raises:
        OSError: a file cannot be removed.
    """
    path = directory / kind.partition(" ")[0]
    if path.is_symlink() or not os.path.lexists(path):
        return False
    if kind == MODULES:
        try:
            path.rmdir()
        except OSError:
            return False  # the directory is not empty, so something is using it
        return True
    content = path.read_bytes() if path.is_file() else b""
    if kind == LOCK:
        if content != LOCK_TEXT.encode():
            return False
        path.unlink()
        return True
    if RC_TEXT not in content:
        return False
    rest = content.replace(RC_TEXT, b"", 1)
    if kind == RC and not rest:
        path.unlink()
    else:
        write(path, rest)
    return True


def write(path: Path, content: bytes, *, is_ours: bool = False) -> None:
    """Create or replace a file; a reader sees the old or the new content, never a mixture.

    Other users cannot write to a new file, regardless of the umask. An existing file keeps its mode, but with
    ``is_ours``, other users lose write permission.

    Raises:
        OSError: the file cannot be written; the old file is unchanged.
    """
    # The draft gets the mode of the file that it replaces, because an .npmrc may contain a token.
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else FILE_MODE
    if is_ours:
        mode &= ~OTHERS_MAY_WRITE
    # The directory belongs to somebody else, so use a name for the draft that cannot exist yet.
    write_durably(path, content, mode=mode, draft=path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}"))
