"""The contract of an agent, and the outputs that it may return.

An agent decides and remembers; it never acts. ``receive`` looks at one event and returns what should follow; ``apply``
folds what was returned into the agent's state. Both methods are pure: the engine records their results and does the
rest.

What ``receive`` returns, each as a dictionary:

* ``{"type": "shop.failed", "payload": {...}}``: an event in the agent's own stream.
* ``{"to": "cleaner", "type": "tidy", "payload": {...}}``: a command for another agent.
* ``{"effect": "http.post", "payload": {...}}``: an action on the outside world; its
  result comes back as an ``effect.completed`` or ``effect.failed`` event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from streams.event import StreamEvent, is_event_type

AGENT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,49}")

MAX_OUTPUTS: Final = 100
"""Maximum number of events that one call of ``receive`` may return."""

MAX_FOLLOWED: Final = 100
"""With more outputs than this, an event leads to no further step."""

RESERVED: Final = (
    "agent.",
    "capture.",
    "dlq.",
    "effect.",
    "execution.",
    "inbox.",
    "lifecycle.",
    "lineage.",
    "tool.",
    "turn.",
)
"""Prefixes of event types that only capture and the runtime may write."""

EFFECT_REQUESTED: Final = "effect.requested"

Status = Literal["READY", "DEGRADED", "FAILED"]


class HealthStatus(NamedTuple):
    """The health of an agent; ``reasons`` says why the agent is not ``READY``."""

    status: Status
    reasons: tuple[str, ...] = ()


READY: Final = HealthStatus("READY")


class Agent(Protocol):
    """What the engine needs from an agent. ``loading.UserAgent`` wraps a user's agent.

    An agent may have a method ``follow``, which decides what else follows from an event, once its outputs so far are
    applied. It gets the event and these outputs, is pure like ``receive``, and is asked again until nothing follows.
    """

    name: str
    """The agent's name, unique in the home: at most 50 lower-case letters, digits and ``-``."""
    events: Sequence[str]
    """The types of events in the log that the agent receives. Each is an exact type, or a prefix such as
    ``execution.*``. Commands need no entry."""
    begins_anywhere: bool
    """Whether a new agent may see events from before its first start. If not, the agent's starting position is recorded
    when the agent is first started."""
    has_turns: bool
    """Whether other programs see the agent's work as turns, and can stop them."""

    def receive(self, event: StreamEvent) -> Sequence[Output]:
        """Decide what follows from an event or command. Pure: the same state and event give the same outputs.

        If ``receive`` raises an error, only this event fails, and the agent's state is unchanged.

        Raises:
            BadOutput: the agent returned a value that cannot be recorded.
        """

    def apply(self, event: StreamEvent) -> None:
        """Fold one event that ``receive`` returned into the state. Only this method changes the state."""

    def state(self) -> dict[str, Any]:
        """The whole state as JSON values, for its hash and for snapshots."""

    def load(self, state: dict[str, Any] | None) -> None:
        """Replace the state with a state that ``state`` returned; ``None`` means the state of a new agent."""

    def health(self) -> HealthStatus:
        """The agent's health, for ``status`` and ``agents``. Must return at once."""


def health_of(agent: Agent, last_error: str) -> HealthStatus:
    """What an agent says of its health; ``DEGRADED`` after an error, ``FAILED`` if it cannot say."""
    try:
        found = agent.health()
    except Exception as error:  # noqa: BLE001 - an agent is foreign code
        return HealthStatus("FAILED", (f"health raised {type(error).__name__}",))
    if found.status == "READY" and last_error:
        return HealthStatus("DEGRADED", (last_error,))
    return found if found.status != "READY" else READY


class BadOutput(ValueError):
    """An agent returned a value that cannot be recorded; the text says what is wrong."""


class Cause(NamedTuple):
    id: str
    traceparent: str


class Output(NamedTuple):
    """One output of an agent: an event, a command (``to``), or an effect (``effect``)."""

    type: str
    payload: dict[str, Any]
    to: str | None = None
    project: str | None = None
    workspace: str | None = None
    """Where a command for another home goes; ``None`` means where the input came from."""
    effect: str | None = None
    node: str = ""
    """The step of the agent that asks for the effect; a part of the effect's idempotency key."""
    cause: Cause | None = None
    """The cause of the output, if that is not its input but an earlier event. The input may be a tick, for example."""

    @classmethod
    def of(cls, given: Any) -> Output:
        """Check what an agent returned: a dictionary as described above, or a ``StreamEvent``.

        Raises:
            BadOutput: ``given`` is not a valid output; the text says what is wrong.
        """
        if isinstance(given, Output):
            return given
        if isinstance(given, StreamEvent):
            given = {"type": given.type, "payload": given.payload}
        if not isinstance(given, Mapping):
            raise BadOutput(f"each output that `receive` returns must be a dictionary, not {type(given).__name__}")
        unknown = given.keys() - _KEYS
        if unknown:
            raise BadOutput(
                f"unknown key {sorted(unknown)[0]!r} in an output; the allowed keys are {', '.join(sorted(_KEYS))}"
            )
        payload = given.get("payload", {})
        if not isinstance(payload, dict):
            raise BadOutput("the payload of an output must be a dictionary")
        texts: dict[str, str] = {}
        for key in _KEYS - {"payload"}:
            value = given.get(key)
            if value is not None:
                if not isinstance(value, str) or not value:
                    raise BadOutput(f"`{key}` of an output must be a non-empty string")
                texts[key] = value
        if "effect" in texts:
            if "to" in texts or "type" in texts:
                raise BadOutput("an output with `effect` must have neither `type` nor `to`")
            kind = _type(texts["effect"])
            return cls(EFFECT_REQUESTED, payload, effect=kind, node=texts.get("node", ""))
        if "type" not in texts:
            raise BadOutput("an output needs a `type` or an `effect`")
        type_ = _type(texts["type"])
        if type_.startswith(RESERVED):
            raise BadOutput(f"the type prefix of {type_} is reserved; use another prefix")
        to = texts.get("to")
        if to is not None and AGENT_NAME.fullmatch(to) is None:
            raise BadOutput(f"{to[:80]!a} cannot be an agent's name")
        return cls(type_, payload, to, texts.get("project"), texts.get("workspace"))


def outputs_of(returned: Any) -> list[Output]:
    """Check everything that ``receive`` returned; ``None`` counts as an empty list.

    Raises:
        BadOutput: ``returned`` is not a list, is too long, or contains an invalid output.
    """
    if returned is None:
        return []
    if isinstance(returned, Mapping | str | bytes) or not hasattr(returned, "__iter__"):
        raise BadOutput(f"`receive` must return a list, not {type(returned).__name__}")
    outputs = [Output.of(given) for given in returned]
    if len(outputs) > MAX_OUTPUTS:
        raise BadOutput(f"`receive` returned {len(outputs)} outputs; the limit is {MAX_OUTPUTS}")
    return outputs


def decisions(agent: Agent, event: StreamEvent) -> Iterator[list[Output]]:
    """What follows from an event, step by step. The caller applies the outputs of a step before it asks for the next.

    Raises:
        BadOutput: see ``outputs_of``.
    """
    step = outputs_of(agent.receive(event))
    yield step
    outputs, follow = list(step), getattr(agent, "follow", lambda event, outputs: ())
    while len(outputs) <= MAX_FOLLOWED and (step := outputs_of(follow(event, outputs))):
        yield step
        outputs += step


def _type(text: str) -> str:
    if not is_event_type(text):
        raise BadOutput(f"{text[:80]!a} is not a dotted event type")
    return text


_KEYS: Final = frozenset({"type", "payload", "to", "project", "workspace", "effect", "node"})
