"""Finds out whether a process that once reported its pid is still running, and ends processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_OF_TOOLS: Final = frozenset({b"OPENCODE=1", b"OPENCODE_TERMINAL=1"})
"""What OpenCode 1 and OpenCode 2 put into the environment of what their tools start."""

_END_SECONDS: Final = 5.0

_MOST_ABOVE: Final = 64

_SLACK_MS: Final = 2000
"""By how many ms a process's start may seem to be later than the time that the process reported."""


def still_runs(pid: int, told_ms: int) -> bool:
    """True if the process that had this pid at ``told_ms`` (ms since 1970) is still running.

    A process that another user owns, or that started later, is a different process with the same pid. A zombie is not
    running. If the system reports neither user nor start (macOS), any process with the pid counts.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError, OverflowError):
        return False
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(
            int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime")
        )
        started_ms = int((boot + int(fields[18]) / os.sysconf("SC_CLK_TCK")) * 1000)
    except (OSError, StopIteration, IndexError, ValueError):
        return True
    return state != "Z" and started_ms <= told_ms + _SLACK_MS


def space_of(kind: str) -> str:
    """The namespace of this process, such as ``pid``; empty if the system has none."""
    try:
        return str(Path("/proc/self/ns", kind).readlink())
    except OSError:
        return ""


def seen(pid: int) -> str:
    """When a process started, in ticks since the boot; empty if it has ended, or if a sandbox hides it."""
    try:
        Path(f"/proc/{pid}/ns/mnt").readlink()
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def mark_of(pid: int) -> str:
    """What distinguishes this run of a process from every other: no other process ever has the same pid and mark.

    The mark holds the process's user and the time of its start, which a later change of the clock does not affect. The
    mark is empty if no process has the pid, if the whole process has ended, or if the system does not provide these
    facts. May start a program.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Include the pid namespace, because two containers may have the same boot id and the same pid.
        names = Path("/proc/self/ns/pid").readlink()
        user = Path(f"/proc/{pid}").stat().st_uid
    except (OSError, ValueError):
        return _mark_by_ps(pid) if not Path("/proc/self/stat").exists() else ""
    # A killed process has ended only when its last thread has: the main thread may be a zombie while the log's writer
    # still waits for the disk.
    has_ended = state in "ZX" and int(fields[16]) <= 1
    return "" if has_ended else f"{user} {fields[18]} {names} {boot}"


def _mark_by_ps(pid: int) -> str:
    state, _, mark = " ".join(_ps(pid, "stat=,uid=,lstart=").split()).partition(" ")
    return "" if state.startswith("Z") else mark


def _ps(pid: int, columns: str) -> str:
    import subprocess  # imported here, because ``subprocess`` is slow to import and rarely needed

    try:
        return subprocess.run(  # noqa: S603 - no shell, and a number
            ["/bin/ps", "-o", columns, "-p", str(pid)],
            capture_output=True,
            text=True,
            timeout=5.0,
            check=False,
            env={"LC_ALL": "C", "TZ": "UTC"},
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


class Place(NamedTuple):
    """Where a process is: its parent, its group, its terminal (empty: none), and the group in that one's foreground."""

    parent: int
    group: int
    terminal: str
    foreground: int


def place_of(pid: int) -> Place | None:
    """Where a process is; ``None`` if none has the pid. May start a program."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        parent, group, foreground, terminal = (_ps(pid, "ppid=,pgid=,tpgid=,tty=").split() + ["0"] * 4)[:4]
        terminal = "" if terminal.startswith("?") else terminal
        return Place(int(parent), int(group), terminal, int(foreground)) if group != "0" else None
    number = int(fields[4])
    names = {4: "/dev/tty", 136: "/dev/pts/"}
    name = names.get(os.major(number), f"tty {os.major(number)}:") + str(os.minor(number))
    return Place(int(fields[1]), int(fields[2]), name if number else "", int(fields[5]))


def is_below(pid: int, others: Collection[int]) -> bool:
    """True if one of the ``others`` started a process, or if its environment, or that of a process above it, is that of
    what the tools of OpenCode start. A process can leave both."""
    for _ in range(_MOST_ABOVE):
        if pid in others or _is_of_tools(pid):
            return True
        if (place := place_of(pid)) is None or (pid := place.parent) < 1:
            return False
    return False


def _is_of_tools(pid: int) -> bool:
    try:
        return not _OF_TOOLS.isdisjoint(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return False  # it has ended, or is another user's, or the system does not say


def _is_opencodes_own(pid: int) -> bool:
    """True if OpenCode runs a process for itself, such as the git of its snapshots: it is in the group of a process
    that no tool started. A shell of a tool is in a group of its own, also when its leader has ended."""
    place = place_of(pid)
    return place is None or (seen(place.group) != "" and not _is_of_tools(place.group))


def kill(pid: int, mark: str) -> None:
    """Kill the process with this pid and mark (``kill -9``), suspended or not. Any other process is left alone."""
    if mark and mark_of(pid) == mark:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pid_here(pid: int, space: str) -> int:
    """The pid, in this namespace, of a process that has ``pid`` in its own ``space``; 0 if it cannot be seen."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if str((process / "ns/pid").readlink()) == space:
                inner = next(line for line in (process / "status").read_text().splitlines() if "NSpid:" in line)
                if inner.split()[-1] == str(pid):
                    return int(process.name)
    return 0


def kill_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes; one that has ended, or is another user's, is left alone."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_left(root: Path) -> list[str]:
    """Kill what the tools of OpenCode left running in a directory, except in a terminal, where a person may sit.
    Returns the commands. Only Linux says which processes these are.
    """
    ended, deadline = dict[str, None](), time.monotonic() + _END_SECONDS
    while (found := _left(root)) and time.monotonic() < deadline:
        ended |= dict.fromkeys(found.values())
        kill_all(found, signal.SIGSTOP)  # a shell whose command ends first would go on with the next one
        for pid in found:
            kill(pid, mark_of(pid))
        time.sleep(0.02)
    return list(ended)


def _left(root: Path) -> dict[int, str]:
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):  # it has ended, or is another user's
            has_terminal = (process / "stat").read_text().rpartition(")")[2].split()[4] != "0"
            if has_terminal or not (process / "cwd").readlink().is_relative_to(root):
                continue
            if _is_of_tools(int(process.name)) and not _is_opencodes_own(int(process.name)):
                words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                found[int(process.name)] = " ".join(words).strip()
    return found
