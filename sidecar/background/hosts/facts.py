"""Reads what ``/proc`` tells of a process: the facts that ``identity.py`` makes keys of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sidecar.background.hosts.identity import SPACES, Facts
from sidecar.processes import mark_of

_LIMITS: Final = ("cpu.max", "memory.high", "memory.max", "pids.max")


def read_facts(pid: int) -> Facts:
    """The facts of a process of this user. Where the system tells nothing (macOS), only what names the process."""
    of = Path("/proc", str(pid))
    return Facts(
        status=_text(of / "status"),
        limits=_text(of / "limits"),
        spaces={name: _link(of / "ns" / name) for name in SPACES},
        root=_place(of / "root/."),
        label=_text(of / "attr/current"),
        limited=tuple(_cgroup_limits(_text(of / "cgroup"))),
        boot=_text(Path("/proc/sys/kernel/random/boot_id")),
        one_status=_text(Path("/proc/1/status")),
        one_stat=_text(Path("/proc/1/stat")),
        is_beside_one=_is_beside_one(of),
        process=f"{pid} {mark_of(pid)}",
    )


def _is_beside_one(of: Path) -> bool:
    """Whether a process has the mounts, users and network of process 1. Who may not look into process 1 sees it, too:
    the id of a mount, and the inode of a network's file, are unique while they last."""
    one = Path("/proc/1")
    for name in ("mountinfo", "uid_map", "gid_map"):
        first = _text(of / name).partition("\n")[0]
        if not first or first != _text(one / name).partition("\n")[0]:
            return False
    net = _place(of / "net/dev")
    return bool(net) and net == _place(one / "net/dev")


def _cgroup_limits(cgroups: str) -> Iterator[str]:
    """The limits of a cgroup and of those around it."""
    place = next((line[3:] for line in cgroups.splitlines() if line.startswith("0::")), "")
    for above in [Path(place), *Path(place).parents][:-1] if place.startswith("/") else []:
        for name in _LIMITS:
            limit = _text(Path(f"/sys/fs/cgroup{above}", name))
            if limit and not limit.startswith("max"):
                yield f"{name}={limit}"


def _place(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return ""  # the system has no such file, or hides it
    return f"{found.st_dev}:{found.st_ino}"


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""  # the system has no such link, or hides it


def _text(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b"").decode("utf-8", "replace").strip()
    except OSError:
        return ""  # the system has no such file, or hides it
