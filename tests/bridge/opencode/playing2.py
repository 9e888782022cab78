"""Feeding recordings of OpenCode 2 to its translator in tests, with the service's messages as they are told there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from bridge.opencode.capture.emitter import Origin, Token
from bridge.opencode.capture.v2.messages import before, children_of, events_of
from bridge.opencode.capture.v2.translate import HostTranslator
from bridge.opencode.link.frames import HookItem
from streams.event import StreamEvent
from streams.identity import seeded_identity
from tests.bridge.opencode.playing import Log, Resting, read

RECORDINGS = Path(__file__).parents[2] / "recordings" / "opencode2"
PLACE = "a1b2c3d4"
"""The service of all recordings."""


def names() -> list[str]:
    """The names of all recordings of OpenCode 2."""
    return sorted(path.stem for path in RECORDINGS.glob("*.jsonl"))


class Recording:
    """A recording: the items of the plugin, each with the process that it comes from, and what the service's API said
    at the end."""

    def __init__(self, name: str, teller: str = "") -> None:
        self.items: list[tuple[Token, HookItem]] = []
        self.told: dict[str, dict[str, Any]] = {}
        instance = sha256(teller.encode()).hexdigest()[:16]
        origin = Origin("0" * 32, instance, 4321, PLACE)
        for number, line in enumerate(read(RECORDINGS / f"{name}.jsonl", teller).splitlines(), 1):
            row = json.loads(line)
            if row["hook"] == "__boot":
                origin = Origin(row["input"]["boot_id"], instance, row["input"]["pid"], PLACE)
            elif row["hook"] == "__told":
                self.told[row["input"]["session"]] = row["input"]
            elif not row["hook"].startswith("__"):
                self.items.append((Token(origin, number), HookItem(row["hook"], row["t"], row["input"])))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The service's events, as the plugin got them."""
        return [item.input for _, item in self.items if item.hook == "service"]


KEPT = [name for name in names() if all(told["info"] for told in Recording(name).told.values())]
"""The recordings whose sessions were not deleted, so that the service still has their messages."""


class Player2:
    """A sidecar's translator of OpenCode 2 over a log. ``told``: what the service says of its sessions when it is
    asked; without it, no service can be asked."""

    def __init__(
        self,
        told: dict[str, dict[str, Any]] | None = None,
        log: Log | None = None,
        resting: Resting | None = None,
    ) -> None:
        self._resting = resting
        self.log = log if log is not None else Log()
        self.told = told or {}
        self.identity = seeded_identity(3)
        self.now = 0.0
        self.finished: set[Token] = set()
        self.crash()

    def crash(self) -> None:
        """Lose everything but the log."""
        state = self._resting.restored(self.log) if self._resting is not None else self.log.state()
        self.translator = HostTranslator(self.identity, state)

    def knows(self, **means: Any) -> None:
        self.translator.means = self.translator.means._replace(**means)

    def feed(self, items: Iterable[tuple[Token, HookItem]]) -> None:
        """Feed items; answer each question at once."""
        for token, item in items:
            self.now += 0.001
            self.translator.feed(token, item, self.now)
            self._drain()
            if self._resting is not None:
                self._resting.fed(self.translator.state, self.log)

    def settle(self) -> None:
        """Let the time pass until nothing waits."""
        while (deadline := self.translator.next_deadline()) is not None:
            self.now = deadline
            self.translator.tick(self.now)
            self._drain()

    def drain(self) -> list[tuple[str, Origin]]:
        """Append what was recorded to the log; return the sessions to ask about."""
        drained = self.translator.drain()
        self.log.append(drained.events)
        self.finished.update(drained.done)
        return list(drained.asks)

    def answer(self, session: str, origin: Origin) -> None:
        """Answer a question: compare the session, and translate what waited."""
        self.compare(session, origin)
        self.translator.open(session, origin, self.now)

    def _drain(self) -> None:
        while asks := self.drain():
            for session, origin in asks:
                self.answer(session, origin)

    def compare(self, session: str, origin: Origin, *, is_import: bool = False, is_active: bool = False) -> int:
        """As ``sidecar/record/opencode2/history.py``: compare a session with its messages; return how many records
        were rebuilt."""
        told = self.told.get(session)
        if told is None or told["info"] is None:
            return 0
        waiting = self.translator.waiting(session, origin)
        parent = told["info"].get("parentID")
        if parent and parent not in self.translator.state.sessions:
            self.compare(parent, origin, is_import=is_import)
        self.translator.place(told["info"], origin, is_new=True)
        for child, message, call in children_of(told["messages"]):
            if child not in self.translator.state.sessions and (not waiting or is_import):
                self.translator.note_call(child, message, call, None)
                self.compare(child, origin, is_import=is_import)
        is_active = is_active or bool(waiting)
        rebuilt = before(events_of(session, told["messages"], told["inbox"], is_active=is_active), waiting)
        records, memory = self.translator.rebuild(session, rebuilt, origin, is_whole=True)
        known = {key: event.id for key, event in self.log.events.items()}
        known |= {event.idempotency_key: event.id for event in self.translator._out.events}
        count = self.translator.fill(records, known)
        self.translator.adopt(session, memory, origin)
        self.log.append(self.translator.drain().events)
        return count

    def of(self, type_: str) -> list[StreamEvent]:
        return [event for event in self.log.events.values() if event.type == type_]

    def types(self) -> list[str]:
        return [event.type for event in self.log.events.values()]


def play2(name: str, *, asks: bool = True) -> Player2:
    """Return a player that was fed one whole recording, live."""
    recording = Recording(name)
    player = Player2(recording.told if asks else None)
    player.feed(recording.items)
    player.settle()
    return player


_TOLD = ("outcome", "trigger", "kind", "tool", "status", "finish", "text", "error", "name", "reply", "answers", "shell")


def summary(player: Player2) -> list[str]:
    """One line for each event of the log: type, actor, session, and what says most."""
    numbers: dict[str, int] = {}
    lines = []
    for event in player.log.events.values():
        session = numbers.setdefault(str(event.payload.get("session")), len(numbers))
        told = [f"{name}={event.payload[name]!r}" for name in _TOLD if name in event.payload]
        state = [str(event.payload["state"])] if event.type == "workflow.checkpoint" else []
        past = ["(history)"] if event.metadata.get("history") else []
        lines.append(" ".join([f"{session}", event.type, event.actor, *state, *told, *past]))
    return lines
