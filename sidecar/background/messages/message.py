"""A message: one thing that waits until somebody has heard it, and how each event of its life changes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.opencode.capture.emitter import Asked
from sidecar.agents.agent import Cause, Output
from sidecar.background.intents.lifecycle import after
from sidecar.background.intents.state import some_of
from sidecar.background.messages.signals import Signals
from streams.event import StreamEvent
from streams.trace import is_one_trace

KEPT: Final = 200
"""How many ended messages of each kind stay in the state; the log has them all."""

MESSAGE: Final[dict[str, dict[str, str]]] = {
    "queued": {
        "message.held": "queued",
        "message.sending": "sending",
        "message.returned": "returned",
        "message.seen": "seen",
    },
    "sending": {
        "message.sent": "sent",
        "message.held": "queued",
        "message.returned": "returned",
        "message.seen": "seen",
    },
    "sent": {"message.held": "queued"},
    "returned": {"message.seen": "seen", "message.held": "queued"},
    "seen": {},
}
"""The transitions of a message. A combination of state and event that is not in the table changes nothing.

``sent``: a message to a session was accepted by OpenCode, but the session's history does not have it yet; only the
history proves that it was ``seen``. ``returned``: a tool call of the session returned its content; once OpenCode has
saved that result, the message is seen. ``message.held``: it waits, for other results or for another attempt.
"""

CLOSED: Final = frozenset({"seen"})


@dataclass(slots=True)
class Message:
    """One message. Times are in ms UTC."""

    id: str
    kind: str
    """``result`` (of background work), ``answer`` or ``signal``: for the model of a session."""
    text: str
    queued: int
    to: str | None = None
    """The session that gets it."""
    state: str = "queued"
    intent: str | None = None
    """The background work that it is about."""
    due: int | None = None
    """When it is sent, after it has waited for others or after a failure; ``None`` if something else decides that."""
    key: str = ""
    """The key that marks it in the session's history."""
    sent: int | None = None
    failures: int = 0
    heir: str | None = None
    """The session that gets it instead, if it must be sent again: the work of the first one has ended."""
    more: bool = False
    """Whether more results for the session may come in a moment."""
    nudged: bool = False
    """Whether the session became idle while it was on its way."""
    wake: bool = True
    """Whether the model should answer it."""
    call: str = ""
    """The tool call that returned its content."""
    turn: str = ""
    """The user message that the turn of that call answers; empty if unknown."""
    since: int = 0
    """When that call returned."""
    said: str = ""
    """The digest of an answer in it, if redaction replaced some of its words (see ``said.py``)."""
    cause: str = ""
    """The event that queued it, and its ``traceparent`` in ``trace``. What is done for it has this cause."""
    trace: str = ""

    def change(self, type_: str, given: Mapping[str, Any]) -> None:
        """Fold one event about this message."""
        self.state, self.due = after(MESSAGE, self.state, type_), given.get("due")
        if type_ == "message.sending":
            self.key, self.nudged = given["key"], False
        elif type_ == "message.nudged":
            self.nudged = True
        elif type_ == "message.sent":
            self.sent = given["ts"]
        elif type_ == "message.held":
            self.failures = self.failures + 1 if self.due is not None and self.key else 0
        elif type_ == "message.returned":
            self.call, self.turn, self.since = given["call"], str(given.get("turn") or ""), given.get("ts") or 0
        elif type_ == "message.inherited":
            self.heir = given["to"]
        if self.heir is not None and self.state == "queued":
            self.to, self.heir, self.key = self.heir, None, ""


@dataclass(slots=True)
class State:
    messages: dict[str, Message] = field(default_factory=dict)
    signals: Signals = field(default_factory=Signals)

    def for_session(self, session: str, *states: str) -> list[Message]:
        return [each for each in self.messages.values() if each.to == session and each.state in states]

    def fold(self, event: StreamEvent) -> None:
        given = event.payload
        if event.type == "message.queued":
            about = some_of(given, "kind", "text", "to", "intent", "more", "wake", "said")
            about |= {"queued": event.ts, "cause": event.id, "trace": event.traceparent or ""}
            self.messages[given["message"]] = Message(given["message"], **about)
            self._tidy()
        elif event.type.startswith("signal."):
            self.signals.fold(event.type, given)
        elif (known := self.messages.get(given.get("message", ""))) is not None:
            known.change(event.type, given)

    def asked(self, mark: str) -> Asked | None:
        """What asked for an input of a session, if it is a message that the sidecar sent; see ``Asks``."""
        found = (each for each in self.messages.values() if mark and each.key == mark and each.cause)
        return next((Asked(each.cause, each.trace) for each in found), None)

    def _tidy(self) -> None:
        ended: dict[str, list[str]] = {}
        for each in self.messages.values():
            if each.state in CLOSED:
                ended.setdefault(each.id[:4], []).append(each.id)
        for ids in ended.values():
            for old in ids[: max(len(ids) - KEPT, 0)]:
                del self.messages[old]

    def in_their_chains(self, event: StreamEvent, outputs: list[Output]) -> list[Output]:
        """The outputs for an input. What another chain sets off still belongs to the chain of its own message."""
        found = []
        for output in outputs:
            known = self.messages.get(output.payload.get("message") or output.payload.get("last") or "")
            is_own = known is None or not known.cause or is_one_trace(known.trace, event.traceparent)
            found.append(output if known is None or is_own else output._replace(cause=Cause(known.cause, known.trace)))
        return found
