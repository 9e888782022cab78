"""Whether a headless OpenCode hangs, and how it is ended. The decision is pure.

The link of a process that does not answer for 20 seconds closes (``sidecar/link/server.py``). A busy one uses processor
time, and is waited for. One that is suspended, or that uses none, is first continued, then killed, with what its tools
started: a shell that lives on would do its work, and the resumed session would do it again.
"""

from __future__ import annotations

import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from sidecar.processes import kill_all, pid_here

QUIET_ROUNDS: Final = 10
"""For how many looks in a row a process without a link may use no processor time."""

KILL_ROUNDS: Final = 5
"""After how many more looks one that was continued is killed."""

NEVER_ROUNDS: Final = 150
"""After how many looks one that never linked is killed: its starter has ended."""

Act = Literal["", "continue", "kill"]


class Pulse(NamedTuple):
    """What earlier looks at a process without a link found."""

    ticks: int = -1
    """The processor time of the last look."""
    alone: int = 0
    """How many looks there were."""
    quiet: int = 0
    """How many in a row found no progress."""
    was_continued: bool = False


class Sample(NamedTuple):
    """What a process does."""

    state: str
    ticks: int
    """Processor time so far, in the system's ticks."""


def judge(pulse: Pulse, sample: Sample, *, was_linked: bool) -> tuple[Pulse, Act]:
    """What to do with a process that runs and has no link, at one look of many."""
    moved = sample.ticks != pulse.ticks and sample.state not in "Tt"
    now = Pulse(sample.ticks, pulse.alone + 1, 0 if moved else pulse.quiet + 1, pulse.was_continued)
    if not was_linked:
        return now, "kill" if now.alone >= NEVER_ROUNDS else ""
    if now.quiet >= QUIET_ROUNDS + KILL_ROUNDS:
        return now, "kill"
    if now.quiet == QUIET_ROUNDS:
        return now._replace(was_continued=True), "continue"
    return now, ""


class Process(Protocol):
    """A headless OpenCode, with a pid and a start that count in the pid namespace ``space``."""

    @property
    def id(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def start(self) -> str: ...
    @property
    def space(self) -> str: ...


class Watch:
    """Looks at each headless OpenCode of a home, about once in a second. ``known`` are the ids of those that may have
    linked before."""

    def __init__(self, space: str, known: Collection[str]) -> None:
        self._space, self._linked = space, set(known)
        self.pulses: dict[str, Pulse] = {}
        """Of those that run and have no link, by id."""

    def look(self, processes: Collection[Process], linked: Collection[str]) -> dict[str, Act]:
        """Look once, and do what must be done. Returns what was done, by id. Blocks briefly."""
        self._linked.update(linked)
        pulses, acts = {}, {}
        for each in [each for each in processes if each.id not in linked]:
            if not (pid := self._pid(each)) or (sample := look(pid)) is None:
                continue
            old = self.pulses.get(each.id, Pulse())
            pulses[each.id], acts[each.id] = judge(old, sample, was_linked=each.id in self._linked)
            if acts[each.id] == "kill":
                end(pid)
            elif acts[each.id] == "continue":
                kill_all([pid], signal.SIGCONT)
        self.pulses = pulses
        return {key: act for key, act in acts.items() if act}

    def end_below(self, processes: Collection[Process]) -> None:
        """Kill what these processes started. Blocks briefly."""
        for each in processes:
            if pid := self._pid(each):
                end_below(pid)

    def _pid(self, process: Process) -> int:
        """Its pid here; 0 if it has ended, or cannot be seen from here."""
        pid = process.pid if process.space == self._space else pid_here(process.pid, process.space)
        return pid if pid and started(pid) == process.start != "" else 0


def started(pid: int) -> str:
    """When a process started, in ticks since the boot; empty if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[19] if fields[0] not in "ZX" else ""


def look(pid: int) -> Sample | None:
    """What the main thread of a process does, in which its programs run; ``None`` if the process has ended, or the
    system tells nothing. Other threads collect garbage also while that one hangs."""
    try:
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Sample(fields[0], int(fields[11]) + int(fields[12])) if fields[0] not in "ZX" else None


def end(pid: int) -> None:
    """Kill a process with all that it started: its children, and what is in a session of one of them."""
    end_below(pid)
    kill_all([pid], signal.SIGKILL)


def end_below(pid: int) -> None:
    """Kill what a process started, and leave it alone."""
    found = set[int]()
    while more := _below(pid) - found:
        kill_all(more, signal.SIGSTOP)  # a shell whose command ends first would go on with the next one
        found |= more
    kill_all(found, signal.SIGKILL)


def _below(pid: int) -> set[int]:
    """A shell has a session of its own, which its commands do not leave when the shell ends."""
    stats = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            stats[int(process.name)] = (int(fields[1]), int(fields[3]))
    found = {pid}
    while more := {each for each, (parent, session) in stats.items() if {parent, session} & found} - found:
        found |= more
    return found - {pid}
