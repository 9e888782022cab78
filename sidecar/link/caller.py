"""Finds out which process sent a request of the command line, and whether an OpenCode started that process.

The system says which process holds the other end of a connection, so a process cannot name another. Where the system
does not say (macOS), the pid is the one that the process named itself.

This is a fence for models that run our command line, not a lock: a process of the same user can leave the tree of
processes and clean its environment.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextvars import ContextVar
from pathlib import Path
from typing import Final, NamedTuple


class Peer(NamedTuple):
    """A control connection: its port, the sidecar's port, and the pid that the process named."""

    port: int
    own_port: int
    named_pid: int


class Caller(NamedTuple):
    """The process that sent a request. ``pid`` is 0 if nobody knows it; ``tty`` is empty if it has no terminal."""

    pid: int
    tty: str
    is_below_opencode: bool


PEER: ContextVar[Peer | None] = ContextVar("peer", default=None)
"""The connection whose request is being answered. The link server sets it for each control connection."""

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_PROC: Final = Path("/proc")
_MARKS: Final = (b"OPENCODE=1", b"OPENCODE_PID=")
"""What OpenCode 1 puts into the environment of everything that it starts."""

_MOST_ABOVE: Final = 64


def find_caller(peer: Peer, opencodes: Collection[int]) -> Caller:
    """The process at the other end of the connection. ``opencodes`` are the pids of the linked OpenCodes. Takes up to
    100 ms, because it looks at all processes."""
    if not (_PROC / "self" / "stat").exists():
        return _by_ps(peer.named_pid, opencodes)
    # Several processes hold one connection after a fork. One that an OpenCode started is enough.
    holders = _holders(peer) or [peer.named_pid]
    found = [Caller(pid, _terminal(pid), _is_below(pid, opencodes)) for pid in holders]
    return next((each for each in found if each.is_below_opencode), found[0])


def _holders(peer: Peer) -> list[int]:
    sockets = {f"socket:[{inode}]" for table in _TABLES for inode in _inodes(table, peer)}
    return sorted(pid for pid in _pids() if sockets and not sockets.isdisjoint(_open_files(pid)))


def _inodes(table: Path, peer: Peer) -> list[str]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return []
    rows = (line.split() for line in lines)
    ends = (peer.port, peer.own_port)
    return [row[9] for row in rows if len(row) > 9 and ends == (_port(row[1]), _port(row[2]))]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208 - the names are enough


def _open_files(pid: int) -> set[str]:
    folder = f"/proc/{pid}/fd"
    found = set()
    try:
        for name in os.listdir(folder):  # noqa: PTH208 - the names are enough
            found.add(os.readlink(f"{folder}/{name}"))  # noqa: PTH115 - a link to a socket is no path
    except OSError:
        return found  # the process ended, or belongs to another user
    return found


def _stat(pid: int) -> list[str]:
    """The fields of a process, beginning with its state; empty if the process has ended."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _terminal(pid: int) -> str:
    fields = _stat(pid)
    number = int(fields[4]) if len(fields) > 4 else 0
    major, minor = os.major(number), os.minor(number)
    if 136 <= major <= 143:  # pseudo-terminals
        return f"/dev/pts/{(major - 136) * 256 + minor}"
    return f"/dev/tty{minor}" if major == 4 else f"tty {major}:{minor}" if number else ""


def _is_below(pid: int, opencodes: Collection[int]) -> bool:
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        variables = []
    if any(variable.startswith(_MARKS) for variable in variables):
        return True
    for _ in range(_MOST_ABOVE):
        if pid in opencodes:
            return True
        fields = _stat(pid)
        pid = int(fields[1]) if len(fields) > 1 else 0
        if pid < 1:
            return False
    return False


def _by_ps(pid: int, opencodes: Collection[int]) -> Caller:
    import subprocess  # imported here, because ``subprocess`` is slow to import and rarely needed

    try:
        listed = subprocess.run(
            ["/bin/ps", "-A", "-o", "pid=,ppid=,tty="], capture_output=True, text=True, timeout=5.0, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return Caller(pid, "", False)
    rows = [line.split() for line in listed.splitlines()]
    known = {int(row[0]): (int(row[1]), row[2]) for row in rows if len(row) > 2 and row[0].isdigit()}
    tty, above = known.get(pid, (0, ""))[1], pid
    for _ in range(_MOST_ABOVE):
        if above in opencodes or above not in known:
            break
        above = known[above][0]
    return Caller(pid, "" if tty.startswith("?") else tty, above in opencodes)
