"""Signals that a person or a script raises by name, for ``wait_for``. Pure.

A signal is addressed to everyone: any session may wait for any name, and gets the payload. Only a person, or a
script of theirs, raises a signal. A session whose call of ``wait_for`` ended before the signal came gets a message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from sidecar.agents.agent import Output
from sidecar.background.messages.wording import message, quoted
from streams.event import StreamEvent

SIGNAL: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
"""The pattern that the name of a signal must match."""

KEPT: Final = 500
"""How many signals are remembered (only the latest one with each name). The log has all signals."""

MOST_AWAITED: Final = 20
"""How many signals a session, together with its background tree, may wait for at a time. The waits of one tree never
displace those of another."""

MOST_WAITS: Final = 10_000
"""How many waits are remembered in all, which is 500 sessions that each wait for as much as they may."""

MAX_PAYLOAD: Final = 4000
"""Maximum length, in characters, of a payload as the text that the model reads."""


@dataclass(slots=True)
class Signal:
    name: str
    payload: Any
    raised: int
    count: int = 1


@dataclass(slots=True)
class Signals:
    known: dict[str, Signal] = field(default_factory=dict)
    awaited: dict[str, dict[str, str]] = field(default_factory=dict)
    """Maps a signal's name to the sessions that get the next signal with this name as a message, each with the root
    session of its tree."""

    def awaits(self, event: StreamEvent) -> list[Output]:
        given = event.payload
        if (came := self.known.get(given["name"])) is not None:  # the signal came just as the waiting call ended
            return [_message(given["name"], came.payload, given["session"], event.id)]
        root = given.get("root") or given["session"]
        waits = sum(each == root for of in self.awaited.values() for each in of.values())
        if given["session"] in self.awaited.get(given["name"], ()) or waits >= MOST_AWAITED:
            return []
        return [Output("signal.awaited", {**given, "ts": event.ts})]

    def comes(self, event: StreamEvent) -> list[Output]:
        given = event.payload
        sessions = self.awaited.get(given["name"], ())
        messages = [_message(given["name"], given.get("payload"), session, event.id) for session in sessions]
        return [Output("signal.raised", {**given, "ts": event.ts}), *messages]

    def fold(self, type_: str, given: Mapping[str, Any]) -> None:
        if type_ == "signal.awaited":
            self.awaited.setdefault(given["name"], {})[given["session"]] = given.get("root") or given["session"]
            while sum(map(len, self.awaited.values())) > MOST_WAITS:
                del self.awaited[next(iter(self.awaited))]
        elif type_ == "signal.raised":
            self.awaited.pop(given["name"], None)
            before = self.known.pop(given["name"], None)
            count = before.count + 1 if before is not None else 1
            self.known[given["name"]] = Signal(given["name"], given.get("payload"), given["ts"], count)
            if len(self.known) > KEPT:
                del self.known[next(iter(self.known))]


def as_json(payload: Any) -> str:
    return quoted(json.dumps(payload, ensure_ascii=False), MAX_PAYLOAD)


def _message(name: str, payload: Any, session: str, cause: str) -> Output:
    text = message("signal", {"name": name}, ["Payload:", as_json(payload)])
    identifier = f"ntc_{sha256(f'{cause}:{session}'.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
    return Output("message.queued", {"message": identifier, "kind": "signal", "to": session, "text": text})
