"""What the runtime still has to do, computed from the whole log: open effects, dead letters, and the depths of chains.
Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter

from sidecar.agents.inputs import DEAD_LETTER, OWNED, depth_of
from streams.hashing import is_digest
from streams.store import NOTHING, Record

VIEW: Final = "runtime"
VIEW_VERSION: Final = 2

MAX_CHAINS: Final = 20_000
"""Maximum number of chains whose depth is remembered; beyond that, the oldest chain is dropped. The depth of the next
message in a dropped chain is then taken from the message's header."""

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
    """An input that could not be handled. ``stream`` and ``offset`` locate its record."""

    id: str
    agent: str
    type: str
    reason: str
    ts: int
    stream: str
    offset: int


@dataclass(slots=True)
class RuntimeView:
    """The projection; ``position`` is the last record applied."""

    position: int = NOTHING
    effects: dict[str, OpenEffect] = field(default_factory=dict)
    dead: dict[str, DeadLetter] = field(default_factory=dict)
    depths: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Maps a correlation id to the depth of the commands that an agent sent or received."""

    taken: dict[str, int] = field(default_factory=dict)
    """Maps an agent to the position at which this home last took it from another home."""

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
        elif event.type == IN_DOUBT:
            found = self.effects.get(str(event.payload.get("request")))
            if found is not None:
                found.in_doubt = True
        elif event.type == OWNED and role == "owned":
            if event.payload.get("previous") is not None:
                self.taken[event.actor] = record.position
        elif event.type == DEAD_LETTER:
            self.dead[event.id] = DeadLetter(
                event.id,
                event.source.agent,
                str(event.payload.get("type")),
                str(event.payload.get("reason")),
                event.ts,
                event.stream_id,
                record.offset,
            )
        elif event.type in (REDRIVEN, DROPPED):
            self.dead.pop(str(event.payload.get("letter")), None)
        elif not event.correlation_id or "depth" not in event.metadata:
            return
        elif role == "command" or (role == "input" and "position" not in event.payload):
            self.depths[event.correlation_id] = depth_of(event)
            self.depths.move_to_end(event.correlation_id)
            if len(self.depths) > MAX_CHAINS:
                self.depths.popitem(last=False)

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
