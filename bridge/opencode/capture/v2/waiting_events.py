"""The gates of OpenCode 2: the events of a session wait until the session is placed, and compared with what the service
has. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from bridge.opencode.capture.emitter import Means, Origin
from bridge.opencode.capture.shapes import text
from bridge.opencode.capture.state import CaptureState, remember
from bridge.opencode.capture.v2 import event_fields
from bridge.opencode.capture.v2.event_fields import HostEvent
from bridge.opencode.capture.v2.rules import HostEntry, HostRules
from streams.identity import Identity

MET = 20_000
"""How many sessions are remembered as compared."""

SILENT = 3
"""How many numbers in a row a process may count without announcing them, such as the cost of a title."""


class Called(NamedTuple):
    message: str | None
    call: str
    turn: str | None


@dataclass(slots=True)
class Gate:
    """The events of a session from one process that wait until the session is placed and compared.

    ``deadline``: when the gate opens by itself; never while it waits for the comparison, which ends with ``open``.
    ``is_behind``: what a dead process left is recorded before.
    """

    deadline: float
    entries: deque[tuple[HostEntry, HostEvent]] = field(default_factory=deque)
    info: dict[str, Any] | None = None
    is_asked: bool = False
    is_compared: bool = False
    is_behind: bool = False

    @property
    def first(self) -> int | None:
        return self.entries[0][1].seq if self.entries else None

    @property
    def is_described(self) -> bool:
        """Whether the session can be placed without asking the service about it."""
        return self.info is not None or self.entries[0][1].name in ("created", "deleted")


class Gates(HostRules):
    """Lets the events of a session wait, and decides when they are translated."""

    def __init__(self, identity: Identity, state: CaptureState, means: Means) -> None:
        super().__init__(identity, state, means)
        self._called: OrderedDict[str, Called] = OrderedDict()
        self._gates: dict[tuple[str, str], Gate] = {}
        self._met: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._reached: OrderedDict[str, tuple[int, str]] = OrderedDict()
        """The highest number of each session, and the process that announced it."""

    def run(self, entry: HostEntry, event: HostEvent) -> None:
        raise NotImplementedError

    def inherit(self, session_id: str, boot: str) -> None:
        """Remember of a session what another process did in it, if no comparison said what precedes the events;
        implemented in ``HostTranslator``."""
        raise NotImplementedError

    def is_placed_by(self, session_id: str, gate: Gate) -> bool:
        raise NotImplementedError

    def open(self, session_id: str, origin: Origin, now: float) -> None:
        """Translate the events that waited: the session has been compared with the service's messages, or cannot be.

        A session that is not placed waits on for the plugin's description of it, at most ``hold_s`` seconds.
        """
        self.now = now
        gate = self._gates.get((session_id, origin.boot_id))
        if gate is not None:
            gate.is_compared, gate.deadline = True, now + self.means.hold_s
            self._open_compared(session_id, origin.boot_id)

    def _open_compared(self, session_id: str, boot: str, *, at_once: bool = False) -> None:
        gate = self._gates[session_id, boot]
        if not (at_once or session_id in self.state.sessions or gate.is_described or not gate.entries):
            return
        del self._gates[session_id, boot]
        if session_id not in self.state.sessions and not self.is_placed_by(session_id, gate):
            for entry, event in gate.entries:
                self.counts[f"unplaced:{event.type[:60]}"] += 1
                self.finish(entry.token)
            return
        remember(self._met, (session_id, boot), None, MET)
        self.inherit(session_id, boot)
        for entry, event in _in_order(gate.entries):
            self.run(entry, event)
            self.finish(entry.token)
        self._open_children(session_id)

    def tick(self, now: float) -> None:
        """Open the gates whose deadline has passed."""
        self.now = now
        for (session_id, boot), gate in list(self._gates.items()):
            if gate.deadline <= now and self._gates.get((session_id, boot)) is gate:
                self._open_compared(session_id, boot, at_once=True)

    def next_deadline(self) -> float | None:
        """When ``tick`` next has something to do; ``None`` while nothing waits."""
        return min((gate.deadline for gate in self._gates.values() if gate.deadline < inf), default=None)

    def put_behind(self, session_id: str, origin: Origin, *, is_behind: bool) -> None:
        """Let what dead processes left be translated before the events of a session that wait."""
        gate = self._gates.get((session_id, origin.boot_id))
        if gate is not None:
            gate.is_behind = is_behind

    def lose_track(self, boot: str) -> None:
        for key in [key for key in self._met if key[1] == boot]:
            del self._met[key]

    def is_met(self, session_id: str, origin: Origin) -> bool:
        """Whether a session was compared since this process and this sidecar run, or is waiting for it."""
        key = session_id, origin.boot_id
        return key in self._met or key in self._gates

    def waiting(self, session_id: str, origin: Origin) -> list[HostEvent]:
        """The events of a session that wait in a process's gate, oldest first."""
        gate = self._gates.get((session_id, origin.boot_id))
        return [event for _, event in _in_order(gate.entries)] if gate is not None else []

    def is_whole(self, session_id: str, origin: Origin) -> bool:
        """Whether the events that wait begin with the session, so that nothing precedes them."""
        waiting = self.waiting(session_id, origin)
        return bool(waiting) and waiting[0].seq is not None and waiting[0].seq <= 1

    def _gate_for(self, key: tuple[str, str], event: HostEvent) -> Gate | None:
        """The gate in which an event waits: the process's own, or that of another process which runs the session too,
        if what waits there is newer and precedes the event."""
        session_id, boot = key
        found = self._gates.get(key)
        if found is None and key not in self._met:
            return None
        for (waiting, other), gate in self._gates.items():
            if waiting != session_id or other == boot or not gate.entries or gate.is_behind:
                continue
            if event.seq is None or gate.first is None:
                follows = gate.entries[-1][0].token.origin.boot_id == boot
            else:
                follows = gate.first < event.seq and (found is None or (found.first or 0) < gate.first)
            if follows:
                found = gate
        return found

    def _try_gate(self, session_id: str, origin: Origin) -> None:
        gate = self._gates.get((session_id, origin.boot_id))
        if gate is None:
            return
        _, first = gate.entries[0]
        info = event_fields.session_info(first.data)
        if first.name == "created" and session_id not in self.state.sessions:
            parent = text(info.get("parentID"))
            # OpenCode announces the call that created a child session after the session, but before its next event.
            if parent is None or (
                parent in self.state.sessions and (session_id in self._called or len(gate.entries) > 1)
            ):
                self.open(session_id, origin, self.now)
            elif parent not in self.state.sessions:
                self._ask_once(gate, session_id, origin)
        elif first.name == "deleted" and session_id not in self.state.sessions:
            self.open(session_id, origin, self.now)
        else:
            self._ask_once(gate, session_id, origin)

    def _ask_once(self, gate: Gate, session_id: str, origin: Origin) -> None:
        if not gate.is_asked:
            gate.is_asked, gate.deadline = True, inf
            self.ask(session_id, origin)

    def _open_children(self, parent: str) -> None:
        for session_id, boot in list(self._gates):
            gate = self._gates.get((session_id, boot))
            if gate is None or not gate.entries or gate.entries[0][1].name != "created":
                continue
            if text(gate.entries[0][1].data.get("parentID")) == parent:
                self._try_gate(session_id, gate.entries[0][0].token.origin)

    def _is_jump(self, session_id: str, boot: str, event: HostEvent) -> bool:
        """Whether numbers of a session are missing that were perhaps announced while nobody listened, or by another
        process, whose events are still on their way. A session that was deleted can no longer be compared."""
        if event.seq is None or session_id not in self._reached or event.name == "deleted":
            return False
        reached, speaker = self._reached[session_id]
        return event.seq > reached + 1 + (SILENT if speaker == boot else 0)

    def _note_reached(self, session_id: str, boot: str, seq: int) -> None:
        highest = max((seq, boot), self._reached.pop(session_id, (-1, "")))
        remember(self._reached, session_id, highest, MET)  # as the newest


def _in_order(entries: Iterable[tuple[HostEntry, HostEvent]]) -> list[tuple[HostEntry, HostEvent]]:
    """The entries by the service's numbers. An event without a number follows the one before it of its process."""
    reached: dict[str, int] = {}
    numbered: list[tuple[int, tuple[HostEntry, HostEvent]]] = []
    for entry, event in entries:
        boot = entry.token.origin.boot_id
        reached[boot] = max(reached.get(boot, -1), -1 if event.seq is None else event.seq)
        numbered.append((reached[boot], (entry, event)))
    return [each for _, each in sorted(numbered, key=lambda pair: pair[0])]
