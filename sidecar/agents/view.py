"""What the runtime still has to do, computed from the whole log: open effects, dead letters, and the depths and traces
of chains. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from sidecar.agents.chains import depth_of
from sidecar.agents.inputs import DEAD_LETTER, RECEIVED
from streams.event import StreamEvent
from streams.hashing import is_digest
from streams.store import NOTHING, Record
from streams.trace import Chain

VIEW: Final = "runtime"
VIEW_VERSION: Final = 6

MAX_CHAINS: Final = 20_000
"""Maximum number of chains that are remembered; beyond that, the oldest chain is dropped. Depth and trace of the next
message in a dropped chain are then taken from the message's headers."""

REDRIVEN, DROPPED = "dlq.redriven", "dlq.dropped"
REQUESTED, COMPLETED, FAILED, IN_DOUBT = "effect.requested", "effect.completed", "effect.failed", "effect.in_doubt"


@dataclass(slots=True)
class OpenEffect:
    """A requested effect without a final result. ``offset`` is the offset of the request in the agent's stream."""

    agent: str
    stream: str
    offset: int
    in_doubt: bool = False


@dataclass(slots=True)
class DeadLetter:
    """An input that could not be handled. ``stream`` and ``offset`` locate its record. ``can_redrive`` is false for a
    message that was never a command."""

    id: str
    agent: str
    type: str
    reason: str
    code: str
    ts: int
    can_redrive: bool
    subject: str | None
    attempts: int | None
    stream: str
    offset: int
    state: Literal["open", "redriven", "dropped"] = "open"

    @classmethod
    def of(cls, record: Record) -> DeadLetter:
        event, payload = record.event, record.event.payload
        type_, reason, code = (str(payload.get(name)) for name in ("type", "reason", "code"))
        subject, attempts = payload.get("subject"), payload.get("attempts")
        return cls(
            event.id,
            event.source.agent,
            type_,
            reason,
            code if payload.get("code") else "agent-failed",
            event.ts,
            "position" in payload or isinstance(payload.get("payload"), dict),
            subject if isinstance(subject, str) else None,
            attempts if isinstance(attempts, int) else None,
            event.stream_id,
            record.offset,
        )

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name not in ("stream", "offset")}


@dataclass(slots=True)
class RuntimeView:
    """The projection; ``position`` is the last record applied."""

    position: int = NOTHING
    effects: dict[str, OpenEffect] = field(default_factory=dict)
    dead: dict[str, DeadLetter] = field(default_factory=dict)
    chains: OrderedDict[str, Chain] = field(default_factory=OrderedDict)
    """Maps a correlation id to the chain of the commands that an agent sent or received."""

    def apply(self, record: Record) -> None:
        """Apply one record. Records that were applied before change nothing."""
        if record.position <= self.position:
            return
        self.position = record.position
        event = record.event
        if not event.stream_id.startswith("agent/"):
            return
        role = event.metadata.get("role")
        if event.type == REQUESTED and role == "effect" and not is_digest(event.payload):
            self.effects[event.id] = OpenEffect(event.actor, event.stream_id, record.offset)
        elif event.type in (COMPLETED, FAILED) and event.payload.get("final") is True:
            self.effects.pop(str(event.payload.get("request")), None)
        elif event.type in (FAILED, IN_DOUBT):
            found = self.effects.get(str(event.payload.get("request")))
            if found is not None:
                found.in_doubt = event.type == IN_DOUBT
        elif event.type == DEAD_LETTER:
            self.dead[event.id] = DeadLetter.of(record)
        elif event.type in (REDRIVEN, DROPPED):
            self.dead.pop(str(event.payload.get("letter")), None)
        else:
            self.learn(event)

    def learn(self, event: StreamEvent) -> None:
        """Remember the chain of a command; its first command counts. Does nothing for any other event, and for a
        command that violated the protocol."""
        correlation, is_command = event.correlation_id, event.metadata.get("role") in ("command", "input")
        if not correlation or not is_command or event.type == RECEIVED or "depth" not in event.metadata:
            return
        self.chains.setdefault(correlation, Chain(depth_of(event), event.traceparent or ""))
        self.chains.move_to_end(correlation)
        if len(self.chains) > MAX_CHAINS:
            self.chains.popitem(last=False)

    def state(self) -> dict[str, Any]:
        dumped: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return dumped

    def dump(self) -> bytes:
        """The whole projection, for a snapshot of version ``VIEW_VERSION``."""
        return _ADAPTER.dump_json(self)

    @classmethod
    def load(cls, dumped: bytes) -> RuntimeView:
        """Restore a projection from ``dump``. Raises ``ValueError`` if the bytes did not come from ``dump``."""
        return _ADAPTER.validate_json(dumped)


_ADAPTER: Final[TypeAdapter[RuntimeView]] = TypeAdapter(RuntimeView)
