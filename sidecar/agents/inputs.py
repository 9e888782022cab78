"""The inputs of an agent, and the events that record each input with its results. Pure, except for the ids.

An agent's stream ``agent/{name}`` holds groups. Each group begins with the input: the command itself, or
``agent.received``, which points at an event of the log. The outputs for the input follow. An agent without turns has no
``agent.received``: the first output has the position of that event in ``metadata.position``, and the event as its
cause. The last event of a group has, in ``metadata.state``, the hash of the agent's state after the group.

``metadata`` of these events: ``role`` (``installed``, ``owned``, ``stopped``, ``input``, ``output``, ``command``,
``effect``, ``refused`` or ``dead``), ``depth``, what the chain keeps (``chains.INHERITED``), for a command ``to``,
``project``, ``workspace`` and ``route``, for a result ``request`` (its id), and where a turn changes ``turn`` and
``epoch`` (``turns.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, Literal

from sidecar.agents.agent import EFFECT_REQUESTED, Cause, Output
from sidecar.agents.chains import depth_of, hop, inherited
from sidecar.agents.effects.policy import Effect, EffectPolicy
from streams.bus.command import Command, Refusal
from streams.errors import CodedError, InvalidEvent
from streams.event import StreamEvent
from streams.hashing import canonical, is_digest
from streams.identity import Identity
from streams.store import NOTHING
from streams.trace import made_trace, next_depth

RECEIVED: Final = "agent.received"
INSTALLED: Final = "agent.installed"
OWNED: Final = "agent.owned"
STOPPED: Final = "agent.turn_stopped"
REFUSED: Final = "agent.refused"
DEAD_LETTER: Final = "agent.dead_letter"

RESULTS: Final = ("effect.completed", "effect.failed")
"""The types of events that end an effect; the payload's ``request`` is the id of its request."""

EXCEEDED: Final = "recursion_depth_exceeded"
"""The code of a chain that is too deep."""

NOWHERE: Final = "_"
"""The project and the workspace of a command that neither its sender nor its chain gives one."""

MAX_DEPTH: Final = 20
"""An event this many steps away from a user reaches no agent."""

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


class InputRefused(CodedError):
    """The input can never be handled, because its key is known with another body, or because the input does not match
    the envelope."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code  # type: ignore[misc]  # each refusal has its own
        self.reason = reason


@dataclass  # not frozen, because an Input is made for every event that an agent lists, and a frozen one takes longer
class Input:
    """An input for an agent: ``event`` is passed to ``receive``, and ``record`` is the first event of the input's group
    in the agent's stream.

    ``key`` is the idempotency key of ``record``. ``position`` is the event's place in the log; ``None`` for a command.
    Without ``has_record``, the group has no record of the input, and ``record`` is the event itself.
    """

    key: str
    event: StreamEvent
    make: Callable[[], StreamEvent]
    depth: int
    position: int | None = None
    refusal: Refusal | None = None
    has_record: bool = True

    @cached_property
    def record(self) -> StreamEvent:
        """The first event of the input's group. Created on first use, because an agent ignores most events of the
        log."""
        return self.make()

    def group(self, outputs: list[StreamEvent]) -> list[StreamEvent]:
        """The group of the input with these outputs; without ``has_record``, there must be one."""
        if self.has_record:
            return [self.record, *outputs]
        return [with_metadata(outputs[0], position=self.position), *outputs[1:]]


def agent_stream(agent: str) -> str:
    return f"agent/{agent}"


def effects_stream(agent: str) -> str:
    return f"agent/{agent}/effects"


def request_key(effect: Effect, visit: int | None = None) -> str:
    return f"effect-request:{effect.agent}:{effect.base}:{effect.visit if visit is None else visit}"


def scoped(scope: str, agent: str, key: str) -> str:
    """An idempotency key of an agent; long or unprintable keys are replaced by their digest."""
    plain = key if len(key) <= _MAX_KEY and key.isprintable() else digest(key.encode("utf-8", "surrogatepass"))
    return f"{scope}:{agent}:{plain}"


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:32]


def command_input(agent: str, command: Command, identity: Identity, clean: Callable[[Any], Any]) -> Input:
    """Convert a command to an input. The payload is redacted first, because ``receive`` must see what the log keeps.

    Raises:
        InputRefused: the command does not match the envelope.
    """
    key = scoped("inbox", agent, command.key)
    metadata = {**command.metadata, "role": "input", "key": command.key[:_MAX_KEY]}
    if command.refusal is None:
        metadata["depth"] = command.depth
    about = {
        "ts": command.ts,
        "causation_id": command.causation_id,
        "correlation_id": command.correlation_id or key,
        "actor": command.actor,
        "source": {"agent": command.sender, "adapter": ADAPTER},
        "traceparent": command.traceparent or str(made_trace(key)),
    }
    try:
        event = _stamped(agent, command.type, key, clean(command.payload), metadata, identity, about)
    except InvalidEvent as error:
        raise InputRefused("invalid-command", str(error)) from None
    return Input(key, event, lambda: event, command.depth, refusal=command.refusal)


def log_input(
    agent: str, event: StreamEvent, position: int, identity: Identity, *, key: str = "", has_record: bool = True
) -> Input:
    """Convert an event of the log to an input; the agent's stream only points to this event. ``key`` is used in place
    of the event's id.
    """
    key = scoped("inbox", agent, key or event.id)

    def record() -> StreamEvent:
        passed_on = hop(event, depth_of(event))
        payload = {"event": event.id, "type": event.type, "stream": event.stream_id, "position": position}
        about = {"causation_id": event.id, "correlation_id": event.correlation_id}
        about["traceparent"] = passed_on["traceparent"]
        metadata = {"role": "input", **passed_on["metadata"], **_answered(event)}
        return _stamped(agent, RECEIVED, key, payload, metadata, identity, about)

    return Input(key, event, record if has_record else lambda: event, depth_of(event), position, has_record=has_record)


def _answered(event: StreamEvent) -> dict[str, str]:
    """What the metadata of an input says of an event that is the result of an effect: the id of its request."""
    return {"request": event.payload["request"]} if event.type in RESULTS and "request" in event.payload else {}


def installed(agent: str, position: int, identity: Identity) -> StreamEvent:
    """The first event of an agent's stream: the agent sees events of the log after ``position``."""
    return _stamped(agent, INSTALLED, f"installed:{agent}", {"position": position}, {"role": "installed"}, identity)


def owned(agent: str, epoch: int, identity: Identity) -> StreamEvent:
    """The event that records that this home took an agent."""
    return _stamped(agent, OWNED, f"owned:{agent}:{epoch}", {"epoch": epoch}, {"role": "owned"}, identity)


def stopped(agent: str, turn: str, command: Command, offset: int, identity: Identity) -> StreamEvent:
    """The event that ends a turn before its time, as ``command`` asks; its payload may have a ``reason``. ``offset`` is
    its place in the agent's stream, as the turn may begin anew and be stopped again."""
    about = {
        "causation_id": command.causation_id,
        "correlation_id": turn,
        "actor": command.actor,
        "traceparent": command.traceparent or str(made_trace(turn)),
    }
    payload = {"turn": turn, "reason": command.payload.get("reason") or ""}
    metadata = {**command.metadata, "role": "stopped", "depth": command.depth}
    return _stamped(agent, STOPPED, scoped("stopped", agent, f"{offset}:{turn}"), payload, metadata, identity, about)


def _stamped(
    agent: str,
    type_: str,
    key: str,
    payload: dict[str, Any],
    metadata: dict[str, Any],
    identity: Identity,
    about: Mapping[str, Any] = MappingProxyType({}),
) -> StreamEvent:
    """An event of an agent's stream; ``about`` has the fields that are not as the agent itself would give them."""
    own = {"actor": agent, "source": {"agent": agent, "adapter": ADAPTER}}
    if "traceparent" not in about:
        own["traceparent"] = str(made_trace(agent_stream(agent)))
    said = {"type": type_, "stream_id": agent_stream(agent), "idempotency_key": key}
    return identity.stamp({**own, **said, "payload": payload, "metadata": metadata, **about})


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
        self._agent, self._identity, self.clean = agent, identity, clean
        self._policy, self._is_local, self._max_depth = policy, is_local, max_depth

    def too_deep(self, cause: Input, number: int, output: Output) -> StreamEvent | None:
        """``agent.refused`` for a command or an effect that would be as deep as the limit; ``None`` for anything else.

        A plain event is not refused here, but by every agent that would receive it.
        """
        depth = next_depth(cause.depth)
        if (output.to is None and output.effect is None) or depth < self._max_depth:
            return None
        about = {"effect": output.effect} if output.effect is not None else {"to": output.to}
        reason = f"depth {depth} is not below the limit of {self._max_depth}"
        return self._refused(cause, number, EXCEEDED, reason, depth, refused=output.type, **about)

    def event(self, cause: Input, number: int, output: Output) -> StreamEvent:
        """The event that records an output; ``number`` is its place among the outputs of its input.

        Raises:
            InvalidEvent: the output does not match the envelope.
        """
        payload = self.clean(output.payload)
        if output.to is None:
            return self._stamp(cause, number, output.type, payload, "output", earlier=output.cause)
        route: Route = "log" if self._is_local(output.to) else "bus"
        identity = self._identity.ulid()
        # Each call has its own correlation id, under which its depth is recorded. The trace id belongs to the whole
        # chain.
        return self._stamp(
            cause,
            number,
            output.type,
            payload,
            "command",
            identity=identity,
            correlation=identity,
            earlier=output.cause,
            about={"to": output.to, "route": route, **_place(output, cause.record)},
        )

    def effect(self, cause: Input, number: int, output: Output) -> Effect:
        assert output.effect is not None
        args, run = self.clean(output.payload), cause.record.correlation_id or cause.record.id
        return Effect(output.effect, args, run, output.node, agent=self._agent)

    def requested(self, cause: Input, number: int, effect: Effect, earlier: Cause | None = None) -> StreamEvent:
        """The event that requests an effect with a known visit; ``earlier`` is the cause of the output."""
        payload = {
            "kind": effect.kind,
            "args": effect.args,
            "run": effect.run,
            "node": effect.node,
            "visit": effect.visit,
            "key": self._policy.idempotency_key(run=effect.run, node=effect.node, effect=effect),
        }
        event = self._stamp(cause, number, EFFECT_REQUESTED, payload, "effect", earlier=earlier)
        return StreamEvent.parse({**event.fields(), "idempotency_key": request_key(effect)})

    def refused(self, cause: Input, refusal: Refusal) -> StreamEvent:
        return self._refused(cause, -1, refusal.code, refusal.reason, refusal.depth)

    def _refused(
        self, cause: Input, number: int, code: str, reason: str, depth: int | None, **about: str | None
    ) -> StreamEvent:
        payload = {"error_code": code, "reason": reason, "type": cause.event.type, **about}
        return self._stamp(cause, number, REFUSED, payload, "refused", depth)

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
            payload |= {"payload": event.payload, "key": event.metadata.get("key"), "depth": cause.depth}
        stamped = self._stamp(cause, -1, DEAD_LETTER, payload, "dead", about=_answered(event))
        return StreamEvent.parse({**stamped.fields(), "idempotency_key": f"dead:{key or cause.key}"})

    def unhandled(self, command: Command, reason: str, about: dict[str, Any], key: str) -> StreamEvent:
        """The dead letter of a command; ``key`` identifies its message, and ``about`` is redacted.

        Raises:
            InputRefused: the command does not match the envelope.
        """
        given = command_input(self._agent, command, self._identity, self.clean)
        return self.dead(given, reason, self.clean(about), scoped("message", self._agent, key))

    def _stamp(
        self,
        cause: Input,
        number: int,
        type_: str,
        payload: dict[str, Any],
        role: str,
        depth: int | Literal["next"] | None = "next",
        *,
        identity: str | None = None,
        correlation: str | None = None,
        earlier: Cause | None = None,
        about: Mapping[str, str] = MappingProxyType({}),
    ) -> StreamEvent:
        by = earlier or Cause(cause.record.id, cause.record.traceparent or "")
        depth = next_depth(cause.depth) if depth == "next" else depth
        passed_on = hop(cause.record, depth, f"{cause.key}:{number}", trace=by.traceparent)
        fields = {
            "id": identity or self._identity.ulid(),
            "causation_id": by.id,
            "correlation_id": correlation or cause.record.correlation_id,
            "traceparent": passed_on["traceparent"],
        }
        key = f"out:{self._agent}:{digest(cause.key.encode())}:{number}"
        metadata = {"role": role, **passed_on["metadata"], **about}
        return _stamped(self._agent, type_, key, payload, metadata, self._identity, fields)


def _place(output: Output, cause: StreamEvent) -> dict[str, str]:
    """The project and the workspace of a command. A command that names another project leaves the chain's workspace."""
    kept = inherited(cause.metadata) if output.project is None else {}
    return {
        "project": output.project or kept.get("project", NOWHERE),
        "workspace": output.workspace or kept.get("workspace", NOWHERE),
    }


def state_hash(state: dict[str, Any]) -> str:
    return sha256(canonical(state)).hexdigest()


def with_metadata(event: StreamEvent, **more: Any) -> StreamEvent:
    return StreamEvent.trusted(
        {**event.fields(), "source": event.source.fields(), "metadata": {**event.metadata, **more}}
    )


def handled_position(event: StreamEvent) -> int:
    """How far an agent had handled the log when it recorded this event; ``NOTHING`` if the event does not say."""
    found = (event.payload if event.metadata.get("role") in PLACED else event.metadata).get("position")
    return found if isinstance(found, int) else NOTHING


def begins_group(event: StreamEvent) -> bool:
    """Whether an event of an agent's stream is or has the input of its group."""
    return event.metadata.get("role") == "input" or "position" in event.metadata
