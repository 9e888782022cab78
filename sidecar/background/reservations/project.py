"""Which project a directory belongs to, on whichever machine it is, and a path as the project names it.

Git is not run, because a repository's own settings could then run programs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from sidecar.background.copies.repository import read, repository_of, top_of
from sidecar.background.reservations.paths import BELOW, BadPath, checked

_MOST_CONFIG: Final = 1 << 20

_SECTION: Final = re.compile(r'\[\s*([\w.-]+)\s*(?:"((?:[^"\\]|\\.)*)")?\s*\]\s*(.*)', re.DOTALL)
_URL: Final = re.compile(r"url\s*=\s*(.*)", re.IGNORECASE | re.DOTALL)
_SCP: Final = re.compile(r"(?:[^@/:\s]+@)?(\[[^\]]+\]|[^/:\s]+):(?!//)(.+)", re.DOTALL)
_DEFAULT_PORTS: Final = {"ssh": 22, "git+ssh": 22, "https": 443, "http": 80, "git": 9418}
_GLOB: Final = re.compile(r"[*?]")


class Project(NamedTuple):
    """``key`` is the same for all clones; paths are relative to ``root``, which is a real path."""

    key: str
    root: str


def project_of(directory: str, machine: str) -> Project:
    """The project of a directory: the remote that its repository names, without what differs between its addresses; or
    else this machine and the repository's own directory; or else this machine and the directory itself.
    """
    real = os.path.realpath(directory)
    top = top_of(real) or real
    found = repository_of(top)
    remote = remote_of(read(f"{found.common}/config", _MOST_CONFIG)) if found is not None else ""
    key = address(remote) if remote else ""
    if key:
        return Project(key, top)
    place = Path(top, unquote(remote.removeprefix("file://")) if remote else found.common if found is not None else "")
    return Project(f"{machine}:{os.path.realpath(place)}", top)


def path_in(root: str, directory: str, given: str) -> str:
    """A path that a session in ``directory`` names, relative to the project's ``root``, as ``paths`` writes it. Links
    are followed, as far as the path has no ``*`` or ``?``.

    Raises:
        BadPath: it is not in the project, or cannot be a path.
    """
    root = os.path.realpath(root)
    if not given.strip() or not given.isprintable():
        raise BadPath(given, "it has no characters, or some that cannot be shown")
    if given.startswith("~"):
        raise BadPath(given, "name it from the project's directory on")
    whole = os.path.normpath(Path(directory, given))
    wild = _GLOB.search(whole)
    plain = whole if wild is None else whole[: whole.rfind("/", 0, wild.start()) + 1]
    real = os.path.realpath(plain)
    if real != root and not real.startswith(f"{root.rstrip('/')}/"):
        raise BadPath(given, f"it is not in the project {root}")
    if real == f"{root}/.git" or real.startswith(f"{root}/.git/"):
        raise BadPath(given, "it is git's own")
    path = os.path.normpath(Path(os.path.relpath(real, root), whole[len(plain) :] if wild else ""))
    if path == ".":
        return BELOW
    is_directory = given.endswith(("/", "/.")) or (wild is None and _is_directory(Path(real)))
    return checked(f"{path}/{BELOW}" if is_directory else path)


def _is_directory(path: Path) -> bool:
    """Whether a path is a directory, or may become one, by its name."""
    return path.is_dir() or not (os.path.lexists(path) or "." in path.name)


def address(remote: str) -> str:
    """A remote's address without scheme, user, password, default port and ``.git``; empty if it names no host."""
    if "://" in remote:
        try:
            parts = urlsplit(remote)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            return ""
        path = unquote(parts.path)
        if not host:
            return ""
        host += f":{port}" if port not in (None, _DEFAULT_PORTS.get(parts.scheme.lower())) else ""
    elif (scp := _SCP.fullmatch(remote)) is not None and len(scp[1]) > 1:  # one letter is a drive of Windows
        host, path = scp[1].strip("[]").lower(), scp[2]
    else:
        return ""
    path = re.sub(r"/+", "/", path).strip("/").removesuffix(".git").strip("/")
    return f"{host}/{path}"


def remote_of(config: bytes) -> str:
    """The address of the remote ``origin`` in a repository's configuration, or else of the first remote; empty if there
    is none."""
    found: dict[str, str] = {}
    for section, name, line in _lines(config.decode(errors="replace")):
        if section == "remote" and name and (url := _URL.fullmatch(line)):
            found.setdefault(name, _value(url[1]))
    return found.get("origin") or next(iter(found.values()), "")


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    section = name = ""
    for line in re.sub(r"\\\r?\n", "", text).splitlines():
        line = line.strip()
        if head := _SECTION.fullmatch(line):
            section, name, line = head[1].lower(), re.sub(r"\\(.)", r"\1", head[2] or ""), head[3]
        yield section, name, line


def _value(text: str) -> str:
    """A value as git reads it: without comment and quotes."""
    found, quoted, at = "", False, 0
    while at < len(text):
        sign = text[at]
        if sign == "\\" and at + 1 < len(text):
            at += 1
            sign = {"n": "\n", "t": "\t", "b": "\b"}.get(text[at], text[at])
        elif sign == '"':
            quoted = not quoted
            at += 1
            continue
        elif sign in "#;" and not quoted:
            break
        found += sign
        at += 1
    return found.strip()
