"""The built-in agent ``signals``: signals that a person or a script raises by name, for ``wait_for``. Pure.

A signal is addressed to everyone: any session may wait for any name, and gets the payload. Only a person, or a
script of theirs, raises a signal. A session whose call of ``wait_for`` ended before the signal came gets the signal as
a message.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from sidecar.agents.agent import Output
from sidecar.background.messages import message, quoted
from sidecar.background.own_agent import OwnAgent
from streams.event import StreamEvent

NAME: Final = "signals"
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
class State:
    signals: dict[str, Signal] = field(default_factory=dict)
    awaited: dict[str, dict[str, str]] = field(default_factory=dict)
    """Maps a signal's name to the sessions that get the next signal with this name as a message, each with the root
    session of its tree."""

    def waits_of(self, root: str) -> int:
        return sum(each == root for of in self.awaited.values() for each in of.values())


class SignalAgent(OwnAgent[State]):
    def __init__(self) -> None:
        super().__init__(NAME, State)

    def receive(self, event: StreamEvent) -> list[Output]:
        given = event.payload
        if event.type == "signal.await":
            came = self.data.signals.get(given["name"])
            if came is not None:  # the signal came just as the waiting call ended
                return [_message(given["name"], came.payload, given["session"], event.id)]
            known = given["session"] in self.data.awaited.get(given["name"], ())
            if known or self.data.waits_of(given.get("root") or given["session"]) >= MOST_AWAITED:
                return []
            return [Output("signal.awaited", {**given, "ts": event.ts})]
        if event.type != "signal":
            return []
        sessions = self.data.awaited.get(given["name"], ())
        messages = [_message(given["name"], given.get("payload"), session, event.id) for session in sessions]
        return [Output("signal.raised", {**given, "ts": event.ts}), *messages]

    def apply(self, event: StreamEvent) -> None:
        given = event.payload
        if event.type == "signal.awaited":
            waiting = self.data.awaited.setdefault(given["name"], {})
            waiting[given["session"]] = given.get("root") or given["session"]
            while sum(map(len, self.data.awaited.values())) > MOST_WAITS:
                del self.data.awaited[next(iter(self.data.awaited))]
        elif event.type == "signal.raised":
            self.data.awaited.pop(given["name"], None)
            before = self.data.signals.pop(given["name"], None)
            count = before.count + 1 if before is not None else 1
            self.data.signals[given["name"]] = Signal(given["name"], given.get("payload"), given["ts"], count)
            if len(self.data.signals) > KEPT:
                del self.data.signals[next(iter(self.data.signals))]


def as_json(payload: Any) -> str:
    return quoted(json.dumps(payload, ensure_ascii=False), MAX_PAYLOAD)


def _message(name: str, payload: Any, session: str, cause: str) -> Output:
    text = message("signal", {"name": name}, ["Payload:", as_json(payload)])
    notice = f"ntc_{sha256(f'{cause}:{session}'.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
    about = {"notice": notice, "session": session, "text": text, "intent": None, "wake": True}
    return Output("notify", about, to="intents")
