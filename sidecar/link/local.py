"""The home's socket: over it the command line reaches the sidecar, and the system says which process that is."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, NamedTuple

NAME: Final = "sock"

PEER: ContextVar[int | None] = ContextVar("peer", default=None)
"""The process that sent the request which is being answered; 0 if the system does not say which. ``None`` if no
connection brought the request. The link server sets it for each control connection."""


class Asker(NamedTuple):
    """Another machine that sent a request: its name, who asked there (``user`` or ``process``), and the request's
    id."""

    machine: str
    by: str
    id: str


ASKER: ContextVar[Asker | None] = ContextVar("asker", default=None)
"""The machine that sent the request which is being answered; ``None`` if no other machine did."""


@contextmanager
def _address(home: Path) -> Iterator[str]:
    """The socket's path, as short as the system wants it."""
    if sys.platform != "linux":
        yield str(home / NAME)
        return
    directory = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{NAME}"
    finally:
        os.close(directory)


def listening(home: Path) -> socket.socket:
    """A new socket for a home whose lock the process holds.

    Raises:
        OSError: the home cannot be written, or its path is too long for the system.
    """
    remove(home)
    made = socket.socket(socket.AF_UNIX)
    try:
        with _address(home) as address:
            made.bind(address)
            Path(address).chmod(0o600)
    except OSError:
        made.close()
        raise
    return made


def remove(home: Path) -> None:
    """Remove the socket of a sidecar that has ended."""
    (home / NAME).unlink(missing_ok=True)


def connected(home: Path) -> socket.socket | None:
    """A connection to the sidecar of a home; ``None`` if its socket is missing or dead."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(1.0)  # it waits only if a suspended sidecar leaves many waiting
    with suppress(OSError), _address(home) as address:
        made.connect(address)
        return made
    made.close()
    return None


def pid_of(connection: Any) -> int:
    """The process at the other end, as the system says; 0 over TCP, or if the process is in another pid namespace."""
    if connection.family != socket.AF_UNIX:
        return 0
    if sys.platform == "linux":
        found: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return found
    return int(connection.getsockopt(0, 2))  # SOL_LOCAL, LOCAL_PEERPID
