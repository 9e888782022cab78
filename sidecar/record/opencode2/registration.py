"""Finds OpenCode 2's background service through the file in which the service writes where it listens.

The file contains the service's password, so the file is accepted only if nobody else could have read or written it. The
password is sent only to a socket on which a process of this user listens, because another user may have taken a dead
service's port.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from sidecar.home import is_alive
from sidecar.private_files import open_unfollowed, why_not_private

MAX_BYTES: Final = 64 * 1024


_LISTEN: Final = "0A"
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class UnsafeService(Exception):
    """The registration or the service cannot be trusted; the text says why."""


@dataclass(frozen=True, slots=True)
class Registration:
    """Where a service listens, and its login.

    ``id`` names the service's process. ``written_ms`` is the time when the service wrote the file, which it does when
    it starts; 0 if unknown.
    """

    id: str
    version: str
    host: str
    port: int
    pid: int
    password: str = field(repr=False)
    written_ms: int = 0


def place_of(path: Path) -> str:
    """A short name for the file, and thus for the sessions of the service that writes it."""
    return sha256(os.fsencode(path)).hexdigest()[:8]


def registration_paths(environ: Mapping[str, str]) -> list[Path]:
    """The files that this user's services have written: one for each channel of releases."""
    home = Path(environ.get("HOME") or Path.home())
    state = environ.get("XDG_STATE_HOME", "").strip() or home / ".local" / "state"
    return sorted(Path(state, "opencode").glob("service*.json"))


def read_registration(path: Path) -> Registration | None:
    """Read the file; ``None`` if there is no file, or if the service that it names has stopped.

    Raises:
        UnsafeService: somebody else could have read or written the file, or it does not name a loopback address.
    """
    try:
        descriptor = open_unfollowed(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnsafeService(f"it cannot be opened: {error.strerror}") from None
    try:
        found = os.fstat(descriptor)
        if why := why_not_private(found):
            raise UnsafeService(f"it is {why}")
        content = os.read(descriptor, MAX_BYTES)
    finally:
        os.close(descriptor)
    try:
        fields = orjson.loads(content)
    except ValueError:
        return None  # the service is still writing the file
    return _parse(fields, found.st_mtime_ns // 1_000_000) if isinstance(fields, dict) else None


def _parse(fields: dict[str, Any], written_ms: int) -> Registration | None:
    id_, version, url, pid, password = (fields.get(name) for name in ("id", "version", "url", "pid", "password"))
    if not (isinstance(id_, str) and isinstance(url, str) and isinstance(password, str) and type(pid) is int):
        return None
    if pid < 1 or not is_alive(pid):
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise UnsafeService("its address is not a URL") from None
    if parts.scheme != "http" or port is None or not _is_loopback(host):
        raise UnsafeService("its address is not on loopback")
    if not id_.isprintable() or len(id_) > 100:
        return None
    return Registration(id_, version if isinstance(version, str) else "", host, port, pid, password, written_ms)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_listener(port: int, tables: tuple[Path, ...] = _TABLES) -> None:
    """Refuse a port on which a process of another user is listening. Accept the port if the system does not show who
    owns the process.

    Raises:
        UnsafeService: the process belongs to another user.
    """
    owners: set[int] = set()
    for table in tables:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if len(fields) > 7 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                owners.add(int(fields[7]))
    if owners - {os.geteuid()}:
        raise UnsafeService("another user is listening on its port")
