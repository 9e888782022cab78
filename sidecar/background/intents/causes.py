"""What caused what in background work: one chain in one trace, from the call that asks to the message with the result.
Pure.

The turn of the call causes the intent. The intent causes its session, the input of the session, and all that the agent
``intents`` does for the intent. The message with the result, once queued, causes the input of the parent.
"""

from __future__ import annotations

from typing import Any

from bridge.opencode.capture.emitter import Asked
from bridge.opencode.capture.shapes import present
from bridge.opencode.capture.state import SessionState
from sidecar.agents.agent import Cause, Output
from sidecar.background.hosts import v2_ids
from sidecar.background.intents.state import Intent, State
from streams.event import StreamEvent
from streams.trace import is_one_trace


def of_call(session: SessionState | None, call: str | None, before: Intent | None) -> tuple[dict[str, Any], Any, str]:
    """Who asks for work: the fields ``call`` and ``turn`` of the registration, its cause, and its ``traceparent``.

    ``call`` is the tool call of the ``session`` that asks. It is recorded when it ends, so its turn is the cause.
    Without a call, a person asks, and perhaps continues the work ``before``.
    """
    turn = session.turn if session is not None and call is not None else None
    about = present(call=call, turn=turn.user_message if turn is not None else None)
    trace = before.trace if before is not None else session.traceparent() if session is not None else ""
    return about, turn.event_id if turn is not None else None, trace


def begin(state: State, event: StreamEvent) -> None:
    """Remember the event with which an intent begins. The event is already folded into the state."""
    if event.type in ("intent.created", "intent.refused"):
        known = state.intents[event.payload["intent"]]
        known.cause, known.trace = event.id, event.traceparent or ""


def in_their_chains(state: State, event: StreamEvent, outputs: list[Output]) -> list[Output]:
    """The outputs for an input. What another chain sets off, such as a tick or the end of other work, still belongs to
    the chain of its own intent."""
    found: list[Output] = []
    for output in outputs:
        known = state.intents.get(output.payload.get("intent") or "") or state.intents.get(output.node)
        is_own = known is None or not known.cause or is_one_trace(known.trace, event.traceparent)
        found.append(output if known is None or is_own else output._replace(cause=Cause(known.cause, known.trace)))
    return found


def asked(state: State, session: str, mark: str) -> Asked | None:
    """What asked for a session of background work; see ``Asks``."""
    known = state.intents.get(state.sessions.get(session, mark))
    if known is None and v2_ids.is_phantom(session):
        known = next((each for each in state.unfinished() if v2_ids.session_id(each.id) == session), None)
    # OpenCode copies the mark of a session to the session's forks and children.
    if known is None or not known.cause or known.session not in (None, session):
        return None
    return Asked(
        known.cause, known.trace, known.parent, known.turn or None, known.call or None, known.agent, known.title
    )
