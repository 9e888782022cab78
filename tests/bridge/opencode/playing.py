"""Feeding recordings to the translator in tests, with crashes where a test asks for them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from bridge.opencode.capture.state import CaptureState
from bridge.opencode.capture.translate import Origin, Token, Translator
from bridge.opencode.link.frames import HookItem
from streams.event import StreamEvent
from streams.hashing import canonical
from streams.identity import Identity, seeded_identity
from tests.bridge.opencode.rows import MemoryRows

RECORDINGS = Path(__file__).parents[2] / "recordings"

_GIVEN_ID = re.compile(r"\b(ses|msg|prt|evt|per|que|inp|frm|sh|call|tool|toolu)_[0-9A-Za-z_]+")
"""An id that OpenCode or a provider gave."""

Item = tuple[Token, HookItem]

Content = tuple[str, str, str, bytes]
"""Of an event: stream, type, key, canonical payload. Its id and time differ from run to run."""


def content(event: StreamEvent) -> Content:
    """The part of an event that must be the same with and without kills, and with and without other sessions.

    A turn's title is not: it comes from an update that is acknowledged and not recorded, so a sidecar that is
    killed between the update and the turn's end leaves the title that the log knew before.
    """
    payload = event.payload
    if event.type == "turn.ended":
        payload = {name: value for name, value in payload.items() if name != "title"}
    return event.stream_id, event.type, event.idempotency_key, canonical(payload)


def dumped(state: CaptureState) -> bytes:
    """The whole state as bytes, equal for equal states."""
    for each in state.sessions:
        state.sessions[each]  # what was asked for counts as changed
    rest, changes = state.changes()
    there = [(key, row) for key, row in changes.items() if row is not None]
    rows = sorted((key, row.body, *map(sorted, (row.found.boots, row.found.messages))) for key, row in there)
    return rest + repr(rows).encode()


def read(path: Path, teller: str = "") -> str:
    """The text of a recording, with all ids made unique to the teller; the times stay."""
    text = path.read_text()
    return _GIVEN_ID.sub(lambda match: match[0] + teller, text) if teller else text


def recording(name: str, teller: str = "") -> list[Item]:
    """The items of ``tests/recordings/{name}.jsonl`` with their tokens. With a ``teller``, as of another OpenCode."""
    text = read(RECORDINGS / f"{name}.jsonl", teller)
    origin = Origin(sha256(text.encode()).hexdigest(), "0" * 16)
    items = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = json.loads(line)
        if not fields["hook"].startswith("__"):
            hook = HookItem(fields["hook"], fields["t"], fields.get("input"), fields.get("output"))
            items.append((Token(origin, number), hook))
    return items


def names() -> list[str]:
    """The names of all recordings."""
    return sorted(path.stem for path in RECORDINGS.glob("*.jsonl"))


class Log:
    """The durable part: the first event of each key, in order."""

    def __init__(self) -> None:
        self.events: dict[str, StreamEvent] = {}

    def append(self, events: Iterable[StreamEvent]) -> None:
        for event in events:
            self.events.setdefault(event.idempotency_key, event)

    def state(self) -> CaptureState:
        state = CaptureState()
        for event in self.events.values():
            state.apply(event)
        return state


class Resting:
    """Snapshots of a state, one each time something was fed ``every`` times; then one session stays in memory."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._fed = self._events = 0
        self._rest, self._rows = b"", MemoryRows()

    def fed(self, state: CaptureState, log: Log) -> None:
        self._fed += 1
        if self._fed % self._every == 0:
            self._rest, changes = state.changes()
            self._rows.put(changes)
            self._events = len(log.events)
            state.sessions.saved(self._rows, 1)

    def restored(self, log: Log) -> CaptureState:
        """The state from the last snapshot, and the events after it."""
        state = CaptureState.load(self._rest, self._rows) if self._rest else CaptureState()
        for event in list(log.events.values())[self._events :]:
            state.apply(event)
        return state


class Player:
    """A sidecar's translator over a log, with a clock that the test controls."""

    def __init__(
        self, log: Log | None = None, identity: Identity | None = None, resting: Resting | None = None
    ) -> None:
        self._resting = resting
        self.log = log if log is not None else Log()
        self.identity = identity or seeded_identity(3)
        self.now = 0.0
        self.finished: set[Token] = set()
        self.asked: list[str] = []
        self.translator = Translator(self.identity, self.log.state())

    def knows(self, **means: Any) -> None:
        self.translator.means = self.translator.means._replace(**means)

    def feed(self, items: Iterable[Item], known: dict[str, Any] | None = None) -> None:
        """Feed items. ``known`` is OpenCode's answer about sessions; by default there is none."""
        for token, item in items:
            self.now += 0.001
            self.translator.feed(token, item, self.now)
            self._collect(known or {})
            if self._resting is not None:
                self._resting.fed(self.translator.state, self.log)

    def wait(self, seconds: float = 10.0) -> None:
        """Let enough time pass that everything held is written."""
        self.now += seconds
        self.translator.tick(self.now)
        self._collect({})

    def crash(self) -> None:
        """Lose everything but the log; the shim resends unfinished items."""
        state = self._resting.restored(self.log) if self._resting is not None else self.log.state()
        self.translator = Translator(self.identity, state)

    def _collect(self, known: dict[str, Any]) -> None:
        drained = self.translator.drain()
        while drained.asks or drained.events or drained.done:
            self.log.append(drained.events)
            self.finished.update(drained.done)
            for session_id, _ in drained.asks:
                self.asked.append(session_id)
                self.translator.answer(session_id, known.get(session_id), self.now)
            drained = self.translator.drain()

    def types(self) -> list[str]:
        return [event.type for event in self.log.events.values()]

    def events(self) -> list[StreamEvent]:
        return list(self.log.events.values())

    def of(self, type_: str) -> list[StreamEvent]:
        return [event for event in self.log.events.values() if event.type == type_]


def play(name: str) -> Player:
    """Return a player that was fed one whole recording."""
    player = Player()
    player.feed(recording(name))
    player.wait()
    return player


_ID = re.compile(r"\b(ses|msg|prt|per|que|evt|inp)_\w+")


def story(log: Log) -> list[str]:
    """One line for each event of the log: its number, stream, type, actor, the number of its cause, the message that it
    belongs to, and its payload. Ids are numbered as they come."""
    places = {event.id: number for number, event in enumerate(log.events.values())}
    names: dict[str, str] = {}
    lines = []
    for number, event in enumerate(log.events.values()):
        cause = f"after {places[event.causation_id]}" if event.causation_id else "first"
        past = ["history"] if event.metadata.get("history") else []
        payload = json.dumps(event.payload, sort_keys=True, ensure_ascii=False)
        words = [event.stream_id, event.type, event.actor, cause, f"of {event.correlation_id}", *past, payload]
        numbered = _ID.sub(lambda id_: names.setdefault(id_[0], f"{id_[1]}_{len(names)}"), " ".join(words))
        lines.append(f"{number} {numbered}")
    return lines
