"""The L0 messages of captured records. Pure.

==================  ==================================  =====================================
record              published as                        payload
==================  ==================================  =====================================
``execution.step``  ``evt.agent.{session}.step``        ``Step``, ``phase`` completed or failed
``turn.started``    ``evt.agent.{session}.state``       ``State``, ``status`` running
``turn.ended``      ``evt.agent.{session}.task``,       ``Task``, and
                    then ``evt.agent.{session}.state``  ``State``, ``status`` idle
``agent.refused``   ``evt.agent.{agent}.task``          ``Task``, ``status`` failed
of an agent's turn  ``evt.agent.{agent}.…``             the same three, for the agents of the runtime
==================  ==================================  =====================================

``agent_id`` is the session's id, ``agent_turn_id`` the id of the turn's user message, ``step_id`` the part's id, and
``turn_epoch`` the number of the turn in its session. The exception is the record of a refused chain: it belongs to an
agent of the runtime, and its turn is the chain. Payloads describe the record but never contain its inputs or outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from pydantic import ValidationError

from bridge.nats.l0.context import RecordContext
from bridge.nats.l0.payloads import MAX_ID, MAX_TEXT, L0Payload, State, Step, Task
from bridge.nats.l0.recursion import EXCEEDED, VIOLATION, Decision, failed_task
from streams.event import StreamEvent

REFUSED: Final = "agent.refused"
STOPPED: Final = "agent.turn_stopped"

OUTCOMES: Final[dict[str, str]] = {
    "completed": "success",
    "failed": "failed",
    "interrupted": "failed",
    "aborted": "canceled",
    "stopped": "partial",
    "continued": "partial",
}
"""Maps a turn's outcome to a task's status; the outcome itself is in ``stats.outcome``."""

_MAX_COUNTS = 32


class L0Message(NamedTuple):
    """One L0 message: the suffix of its subject, its payload, and ``part``, which makes the message id unique.

    ``target`` is the target in the subject; an empty ``target`` stands for the record's session.
    """

    suffix: str
    payload: L0Payload
    part: str
    target: str = ""


class IncompleteRecord(ValueError):
    """A record has an L0 meaning but lacks a field that its payload requires; ``reason`` is short, for counting."""

    code: ClassVar[str] = "l0-incomplete-record"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def l0_messages(event: StreamEvent, context: RecordContext) -> list[L0Message]:
    """The L0 messages of one record, in order; empty if the record has no L0 meaning.

    Raises:
        IncompleteRecord: the record has an L0 meaning, but its session, turn or payload is unknown (or forgotten).
    """
    if "turn" in event.metadata and event.stream_id.startswith("agent/"):
        return _agents_turn(event)
    if event.type == STOPPED:
        return _agents_end(event, "canceled")
    if event.type == REFUSED:
        return _refused(event)
    build = _BUILDERS.get(event.type)
    if build is None:
        return []
    if set(event.payload) == {"$sha256"}:
        raise IncompleteRecord(f"{event.type}:forgotten")
    if context.session is None:
        raise IncompleteRecord(f"{event.type}:no_session")
    try:
        return build(event, context.session, context)
    except ValidationError:
        raise IncompleteRecord(f"{event.type}:invalid") from None


def _step(event: StreamEvent, session: str, context: RecordContext) -> list[L0Message]:
    payload = event.payload
    failed = payload.get("status") == "error"
    metadata = _present(
        event=event.id,
        kind=_name(payload.get("kind")),
        tool=_name(payload.get("tool")),
        call=_name(payload.get("call")),
        finish=_name(payload.get("finish")),
        model=_name(_mapping(payload.get("model")).get("model")),
        child=_name(payload.get("child")),
        cost=_number(payload.get("cost")),
        tokens=_counts(payload.get("tokens")),
        timing=_present(
            started_ms=_number(payload.get("started_ms")),
            ended_ms=_number(payload.get("ended_ms")),
            duration_ms=_number(payload.get("duration_ms")),
        )
        or None,
    )
    step = Step(
        agent_turn_id=_id(payload.get("turn") or event.correlation_id, event, "turn"),
        # A call that never became a part has no part id, so the id of its event identifies the step.
        step_id=_id(payload.get("part") or event.id, event, "step"),
        phase="failed" if failed else "completed",
        metadata=metadata,
    )
    return [L0Message("step", step, "")]


def _turn_started(event: StreamEvent, session: str, context: RecordContext) -> list[L0Message]:
    turn = _id(event.payload.get("message") or event.correlation_id, event, "turn")
    metadata = _present(event=event.id, trigger=_name(event.payload.get("trigger")))
    return [L0Message("state", _state(event, session, turn, "running", context, metadata), "")]


def _turn_ended(event: StreamEvent, session: str, context: RecordContext) -> list[L0Message]:
    payload = event.payload
    turn = _id(payload.get("message") or event.correlation_id, event, "turn")
    outcome = _name(payload.get("outcome")) or "unknown"
    error = payload.get("error")
    fields = _present(
        agent_turn_id=turn,
        status=OUTCOMES.get(outcome, outcome),
        error=error[:MAX_TEXT] if isinstance(error, str) else None,
        error_code=outcome if outcome == "interrupted" else _name(error) if outcome == "failed" else None,
        stats=_present(
            event=event.id,
            outcome=outcome,
            steps=_number(payload.get("steps")),
            cost=_number(payload.get("cost")),
            tokens=_counts(payload.get("tokens")),
        ),
    )
    metadata = {"event": event.id, "outcome": outcome}
    state = _state(event, session, turn, "idle", context, metadata)
    return [L0Message("task", Task(**fields), ""), L0Message("state", state, "state")]


def _refused(event: StreamEvent) -> list[L0Message]:
    code, reason = event.payload.get("error_code"), event.payload.get("reason")
    if code == "stopped":
        return []  # the record of the stop has its own message
    if code != EXCEEDED and code != VIOLATION:
        raise IncompleteRecord(f"{event.type}:no_code")
    decision = Decision(code, reason=reason[:MAX_TEXT] if isinstance(reason, str) and reason else code)
    target = _id(event.source.agent, event, "agent")
    turn = _id(event.correlation_id or event.id, event, "turn")
    return [L0Message("task", failed_task(decision, turn), "", target)]


def _agents_turn(event: StreamEvent) -> list[L0Message]:
    """What a record of an agent of the runtime means for the agent's turn; ``metadata.turn`` names it."""
    edges = event.metadata["turn"]
    found: list[L0Message] = []
    target, turn = _agent(event), _id(event.correlation_id, event, "turn")
    if "started" in edges:
        found.append(L0Message("state", _agents_state(event, turn, "running"), "started", target))
    if "step" in edges:
        phase = "failed" if event.payload.get("type") == "effect.failed" else "completed"
        step_id = _id(event.payload.get("event") or event.id, event, "step")
        step = Step(agent_turn_id=turn, step_id=step_id, phase=phase, metadata={"event": event.id})
        found.append(L0Message("step", step, "step", target))
    if "completed" in edges:
        found += _agents_end(event, "success")
    elif "failed" in edges and event.type == REFUSED:
        found += _agents_end(event, "failed", _name(event.payload.get("error_code")), event.payload.get("reason"))
    elif "failed" in edges:
        found += _agents_end(
            event, "failed", "dead_letter" if event.metadata.get("role") == "dead" else "effect_failed"
        )
    return found


def _agent(event: StreamEvent) -> str:
    """The agent in whose stream ``agent/{name}`` an event is."""
    return _id(event.stream_id.split("/")[1], event, "agent")


def _agents_end(event: StreamEvent, status: str, code: str | None = None, error: Any = None) -> list[L0Message]:
    target, turn = _agent(event), _id(event.correlation_id, event, "turn")
    said = error[:MAX_TEXT] if isinstance(error, str) and error else None
    task = Task(**_present(agent_turn_id=turn, status=status, error_code=code, error=said, stats={"event": event.id}))
    return [
        L0Message("task", task, "task", target),
        L0Message("state", _agents_state(event, turn, "idle"), "state", target),
    ]


def _agents_state(event: StreamEvent, turn: str, status: str) -> State:
    epoch = _number(event.metadata.get("epoch"))
    return State(
        agent_id=_agent(event),
        agent_turn_id=turn,
        status=status,
        turn_epoch=int(epoch or 0),
        updated_at=event.ts,
        metadata={"event": event.id},
    )


def _state(
    event: StreamEvent, session: str, turn: str, status: str, context: RecordContext, metadata: dict[str, Any]
) -> State:
    return State(
        agent_id=_id(session, event, "session"),
        agent_turn_id=turn,
        status=status,
        turn_epoch=context.epoch,
        updated_at=event.ts,
        metadata=metadata,
    )


_BUILDERS: Final[dict[str, Callable[[StreamEvent, str, RecordContext], list[L0Message]]]] = {
    "execution.step": _step,
    "turn.started": _turn_started,
    "turn.ended": _turn_ended,
}

MEANINGS: Final[dict[str, tuple[str, ...]]] = {
    "execution.step": ("step",),
    "turn.started": ("state",),
    "turn.ended": ("task", "state"),
    REFUSED: ("task",),
    STOPPED: ("task", "state"),
}
"""Maps a record type to suffixes, for the documentation; a test compares this table with ``l0_messages``."""


def _id(value: Any, event: StreamEvent, what: str) -> str:
    if not isinstance(value, str) or not value or len(value) > MAX_ID:
        raise IncompleteRecord(f"{event.type}:no_{what}")
    return value


def _name(value: Any) -> str | None:
    return value[:MAX_ID] or None if isinstance(value, str) else None


def _number(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _counts(value: Any) -> dict[str, int | float] | None:
    found = {name[:MAX_ID]: count for name, count in _mapping(value).items() if _number(count) is not None}
    return dict(sorted(found.items())[:_MAX_COUNTS]) or None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
