"""The inputs of an agent, and the events that record each input with its results. Pure, except for the ids.

An agent's stream ``agent/{name}`` holds groups. Each group begins with the input: the command itself, or
``agent.received``, which points at an event of the log. The outputs that ``receive`` returned for the input follow. The
last event of a group has, in ``metadata.state``, the hash of the agent's state after the group.

``metadata`` of these events: ``role`` (``installed``, ``owned``, ``input``, ``output``, ``command``, ``effect``,
``refused`` or ``dead``), ``depth``, and, for a command, ``to``, ``project``, ``workspace`` and ``route``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

from sidecar.agents.agent import Cause, Output
from sidecar.agents.effects.policy import Effect, EffectPolicy
from streams.event import StreamEvent
from streams.hashing import canonical, is_digest
from streams.identity import Identity
from streams.trace import made_trace, parse_traceparent

RECEIVED: Final = "agent.received"
INSTALLED: Final = "agent.installed"
OWNED: Final = "agent.owned"
REFUSED: Final = "agent.refused"
DEAD_LETTER: Final = "agent.dead_letter"

MAX_DEPTH: Final = 20
"""The default of ``[worker] max_recursion_depth``: an event this many steps away from a user reaches no agent."""

APPLIED: Final = frozenset({"output", "command", "effect"})
"""The roles of events that ``receive`` returns and ``apply`` folds into the state."""


def is_applied(event: StreamEvent) -> bool:
    """Whether an event of an agent's stream is folded into the state; one whose payload was forgotten is not."""
    return event.metadata.get("role") in APPLIED and not is_digest(event.payload)


PLACED: Final = frozenset({"input", "dead", "installed"})
"""The roles of events that show how far the agent has read the log."""

ADAPTER: Final = "runtime"
_MAX_KEY: Final = 300

Route = Literal["log", "bus"]
"""How a command reaches its agent: through the log if the agent is in this home, or over a bus."""


class Refusal(NamedTuple):
    """Why an input ends its chain: the protocol's code, and the reason in words for people."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command from a bus or a person. ``key`` is its idempotency key: commands with the same key are handled only
    once."""

    key: str
    type: str
    payload: dict[str, Any] = field(repr=False)
    actor: str = "user"
    sender: str = "user"
    depth: int = 0
    correlation_id: str | None = None
    causation_id: str | None = None
    traceparent: str | None = None
    ts: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    """More metadata to record, such as ``tracestate`` or the subject."""
    refusal: Refusal | None = None
    """Set if the command broke a rule before it arrived. Such a command is recorded as refused, and its depth is
    ignored."""


@dataclass  # not frozen, because an Input is made for every event that an agent lists, and a frozen one takes longer
class Input:
    """An input for an agent: ``event`` is passed to ``receive``, and ``record`` is the first event of the input's group
    in the agent's stream.

    ``key`` is the idempotency key of ``record``. ``position`` is the event's place in the log; ``None`` for a command.
    """

    key: str
    event: StreamEvent
    make: Callable[[], StreamEvent]
    depth: int
    position: int | None = None
    refusal: Refusal | None = None

    @cached_property
    def record(self) -> StreamEvent:
        """The first event of the input's group. Created on first use, because an agent ignores most events of the
        log."""
        return self.make()


def agent_stream(agent: str) -> str:
    """The stream of an agent's inputs and outputs."""
    return f"agent/{agent}"


def effects_stream(agent: str) -> str:
    """The stream of the ledger of an agent's effects."""
    return f"agent/{agent}/effects"


def request_key(effect: Effect, visit: int | None = None) -> str:
    """The idempotency key of the record that requests an effect."""
    return f"effect-request:{effect.agent}:{effect.base}:{effect.visit if visit is None else visit}"


def scoped(scope: str, agent: str, key: str) -> str:
    """An idempotency key of an agent; long or unprintable keys are replaced by their digest."""
    plain = key if len(key) <= _MAX_KEY and key.isprintable() else digest(key.encode("utf-8", "surrogatepass"))
    return f"{scope}:{agent}:{plain}"


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:32]


def depth_of(event: StreamEvent) -> int:
    """An event's distance in steps from a user's action; 0 for captured events."""
    depth = event.metadata.get("depth")
    return depth if isinstance(depth, int) and depth >= 0 else 0


def command_input(agent: str, command: Command, identity: Identity, clean: Callable[[Any], Any]) -> Input:
    """Convert a command to an input. The payload is redacted first, because ``receive`` must see what the log keeps.

    Raises:
        InvalidEvent: the command does not match the envelope.
    """
    key = scoped("inbox", agent, command.key)
    metadata = {**command.metadata, "role": "input", "key": command.key[:_MAX_KEY]}
    if command.refusal is None:
        metadata["depth"] = command.depth
    event = identity.stamp(
        {
            "type": command.type,
            "ts": command.ts,
            "stream_id": agent_stream(agent),
            "idempotency_key": key,
            "causation_id": command.causation_id,
            "correlation_id": command.correlation_id or key,
            "actor": command.actor,
            "source": {"agent": command.sender, "adapter": ADAPTER},
            "traceparent": command.traceparent or str(made_trace(key)),
            "payload": clean(command.payload),
            "metadata": metadata,
        }
    )
    return Input(key, event, lambda: event, command.depth, refusal=command.refusal)


def log_input(agent: str, event: StreamEvent, position: int, identity: Identity, *, key: str | None = None) -> Input:
    """Convert an event of the log to an input; the agent's stream only points to this event. ``key`` is used in place
    of the event's id.
    """
    key = scoped("inbox", agent, key or event.id)

    def record() -> StreamEvent:
        return identity.stamp(
            {
                "type": RECEIVED,
                "stream_id": agent_stream(agent),
                "idempotency_key": key,
                "causation_id": event.id,
                "correlation_id": event.correlation_id,
                "actor": agent,
                "source": {"agent": agent, "adapter": ADAPTER},
                "traceparent": event.traceparent or str(made_trace(event.stream_id)),
                "payload": {"event": event.id, "type": event.type, "stream": event.stream_id, "position": position},
                "metadata": {"role": "input", "depth": depth_of(event)},
            }
        )

    return Input(key, event, record, depth_of(event), position)


def installed(agent: str, position: int, identity: Identity) -> StreamEvent:
    """The first event of an agent's stream: the agent sees events of the log after ``position``."""
    return identity.stamp(
        {
            "type": INSTALLED,
            "stream_id": agent_stream(agent),
            "idempotency_key": f"installed:{agent}",
            "actor": agent,
            "source": {"agent": agent, "adapter": ADAPTER},
            "traceparent": str(made_trace(agent_stream(agent))),
            "payload": {"position": position},
            "metadata": {"role": "installed"},
        }
    )


def owned(agent: str, epoch: int, previous: str | None, identity: Identity) -> StreamEvent:
    """The event that records that this home took an agent: ``previous`` is the log that owned it before, if another
    did."""
    return identity.stamp(
        {
            "type": OWNED,
            "stream_id": agent_stream(agent),
            "idempotency_key": f"owned:{agent}:{epoch}",
            "actor": agent,
            "source": {"agent": agent, "adapter": ADAPTER},
            "traceparent": str(made_trace(agent_stream(agent))),
            "payload": {"epoch": epoch, "previous": previous},
            "metadata": {"role": "owned"},
        }
    )


class Outbox:
    def __init__(
        self,
        agent: str,
        identity: Identity,
        clean: Callable[[Any], Any],
        policy: EffectPolicy,
        is_local: Callable[[str], bool],
        max_depth: int = MAX_DEPTH,
    ) -> None:
        self._agent, self._identity, self._clean = agent, identity, clean
        self._policy, self._is_local, self._max_depth = policy, is_local, max_depth

    def event(self, cause: Input, number: int, output: Output) -> StreamEvent:
        """The event that records an output; ``number`` is its place among the outputs of its input.

        A command that would be too deep becomes ``agent.refused`` with the code ``recursion_depth_exceeded``.

        Raises:
            InvalidEvent: the output does not match the envelope.
        """
        depth = cause.depth + 1
        payload = self._clean(output.payload)
        metadata: dict[str, Any] = {"role": "output", "depth": depth}
        type_, correlation = output.type, cause.record.correlation_id
        identity = self._identity.ulid()
        if output.to is not None:
            if depth >= self._max_depth:
                return self.refused(cause, "recursion_depth_exceeded", number, to=output.to, refused=output.type)
            metadata |= {
                "role": "command",
                "to": output.to,
                "project": output.project,
                "workspace": output.workspace,
                "route": "log" if self._is_local(output.to) else "bus",
            }
            # Each call has its own correlation id, under which its depth is recorded. The trace id belongs to the whole
            # chain.
            correlation = identity
        return self._stamp(cause, number, identity, type_, payload, metadata, correlation, output.cause)

    def effect(self, cause: Input, number: int, output: Output) -> Effect:
        assert output.effect is not None
        args, run = self._clean(output.payload), self._run_of(cause)
        return Effect(output.effect, args, run, output.node, agent=self._agent)

    def requested(
        self, cause: Input, number: int, effect: Effect, key: str, earlier: Cause | None = None
    ) -> StreamEvent:
        """The event that requests an effect with a known visit; ``key`` is its ``visit_key``, and ``earlier`` the
        cause of the output."""
        payload = {
            "kind": effect.kind,
            "args": effect.args,
            "run": effect.run,
            "node": effect.node,
            "visit": effect.visit,
            "key": self._policy.idempotency_key(run=effect.run, node=effect.node, effect=effect),
        }
        metadata = {"role": "effect", "depth": cause.depth + 1}
        correlation = cause.record.correlation_id
        event = self._stamp(
            cause, number, self._identity.ulid(), "effect.requested", payload, metadata, correlation, earlier
        )
        return StreamEvent.parse({**event.fields(), "idempotency_key": key})

    def visit_key(self, effect: Effect, visit: int) -> str:
        """The idempotency key of the request for one visit of an effect."""
        return request_key(effect, visit)

    def refused(self, cause: Input, code: str, number: int = -1, *, reason: str = "", **about: str) -> StreamEvent:
        """The event that records the refusal of an output or, if ``number`` is -1, of the input itself."""
        payload = {"error_code": code, "reason": reason, "type": cause.event.type, **about}
        metadata = {"role": "refused", "depth": cause.depth}
        return self._stamp(
            cause, number, self._identity.ulid(), REFUSED, payload, metadata, cause.record.correlation_id
        )

    def dead(self, cause: Input, reason: str, about: dict[str, Any], key: str = "") -> StreamEvent:
        """The dead letter of an input that cannot be handled. The dead letter contains everything that a redrive needs.

        If ``about`` has a ``body``, the message is not a command and cannot be redriven. ``key`` identifies the
        message, in case the same command arrives in several messages.
        """
        event = cause.event
        payload: dict[str, Any] = {"reason": reason, "type": event.type, **about}
        if cause.position is not None:
            payload |= {"event": event.id, "position": cause.position, "stream": event.stream_id}
        elif "body" not in about:
            payload |= {"payload": event.payload, "key": event.metadata.get("key")}
        metadata = {"role": "dead", "depth": cause.depth}
        stamped = self._stamp(
            cause, -1, self._identity.ulid(), DEAD_LETTER, payload, metadata, cause.record.correlation_id
        )
        return StreamEvent.parse({**stamped.fields(), "idempotency_key": f"dead:{key or cause.key}"})

    def _run_of(self, cause: Input) -> str:
        return cause.record.correlation_id or cause.record.id

    def _stamp(
        self,
        cause: Input,
        number: int,
        identity: str,
        type_: str,
        payload: dict[str, Any],
        metadata: dict[str, Any],
        correlation: str | None,
        earlier: Cause | None = None,
    ) -> StreamEvent:
        by = earlier or Cause(cause.record.id, cause.record.traceparent or "")
        trace = parse_traceparent(by.traceparent) or made_trace(cause.key)
        return self._identity.stamp(
            {
                "id": identity,
                "type": type_,
                "stream_id": agent_stream(self._agent),
                "idempotency_key": f"out:{self._agent}:{digest(cause.key.encode())}:{number}",
                "causation_id": by.id,
                "correlation_id": correlation,
                "actor": self._agent,
                "source": {"agent": self._agent, "adapter": ADAPTER},
                "traceparent": str(trace.child(f"{cause.key}:{number}")),
                "payload": payload,
                "metadata": metadata,
            }
        )


def state_hash(state: dict[str, Any]) -> str:
    return sha256(canonical(state)).hexdigest()


def with_state(event: StreamEvent, hash_: str) -> StreamEvent:
    """The last event of a group, with the hash of the state after the group."""
    return StreamEvent.trusted(
        {**event.fields(), "source": event.source.fields(), "metadata": {**event.metadata, "state": hash_}}
    )
