"""What a person does with background work that has ended: continue it, or discard what it left behind. Pure."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from bridge.opencode.capture.shapes import is_human
from bridge.opencode.link.protocol import RequestError
from sidecar.agents.agent import Output
from sidecar.background.hosts import v2_ids
from sidecar.background.intents import intent_effects as asked
from sidecar.background.intents.lifecycle import ENDED
from sidecar.background.intents.state import Intent, State
from sidecar.registry import Args
from streams.event import StreamEvent

REPORTS_MS: Final = 60_000
"""Time in ms after the end of work in which OpenCode reports to its session what was stopped. Later reports belong to
a person's turns."""


class IntentArgs(Args):
    intent: str = Field(max_length=100, description="its id, or a unique prefix of it")


class CancelArgs(IntentArgs):
    proof: str = Field(default="", max_length=64, description="as in `checkpoint_answer`, without answers")


class ApplyArgs(IntentArgs):
    undo: bool = Field(default=False, description="take back what was applied last")


class ChangesArgs(IntentArgs):
    packed: bool = Field(default=False, description="as the files themselves, not as a diff")


class DiscardArgs(IntentArgs):
    preview: bool = Field(default=False, description="only tell")


def check_ended(state: State, intent: Intent) -> None:
    """Check that nothing works in an intent's session.

    Raises:
        RequestError: something does (``still-running``).
    """
    if intent.state not in ENDED:
        raise RequestError("still-running", f"{intent.id} has not ended yet: {intent.state}")
    if (other := continuing(state, intent.session or "-")) is not None:
        raise RequestError("still-running", f"{other.id} goes on with this work and has not ended yet")


def check_saved(intent: Intent) -> None:
    """Check that an intent has changes in a copy that are saved.

    Raises:
        RequestError: it has none (``no-changes``).
    """
    if intent.changes.get("saved"):
        return
    if intent.discarded:
        why = f"the changes of {intent.id} were discarded"
    elif intent.state in ENDED:
        why = f"{intent.id} changed nothing in its copy"
    else:
        why = f"{intent.id} is still running, so its changes are not saved yet"
    raise RequestError("no-changes", why)


def check_waits(intent: Intent, is_of_one: bool) -> None:
    """Check that an intent waits for an OpenCode of version 1, in which its work is to be done (``is_of_one``).

    Raises:
        RequestError: it has ended (``has-ended``), or it does not wait (``still-running``).
    """
    if intent.state in ENDED:
        raise RequestError("has-ended", f"{intent.id} has already ended: {intent.state}")
    if not is_of_one or not (intent.waits or (intent.state == "resuming" and not intent.prompting)):
        raise RequestError("still-running", f"{intent.id} waits for no OpenCode: {intent.state}")


def continuing(state: State, session: str) -> Intent | None:
    """The unfinished intent that works in a session, or is about to."""
    found = (each for each in state.unfinished() if session in (each.session, each.continues.get("session")))
    return next(found, None)


def copy_of(state: State, intent: Intent) -> str:
    """The copy that an ended intent left behind; empty if there is none, or if later work went on in it."""
    is_last = state.sessions.get(intent.session or "", intent.id) == intent.id
    has_left = intent.changes.get("kept") or intent.changes.get("error")
    return str(intent.copy.get("root", "")) if is_last and has_left else ""


def prompted(state: State, event: StreamEvent) -> list[Output]:
    """Handle a prompt for the session of work that has ended. What a stopped command or subagent reports to it begins
    no turn. If a person prompts it and its copy is gone, OpenCode can do nothing there, so tell the person how the
    work can go on."""
    session = str(event.payload.get("session"))
    intent = state.intents.get(state.sessions.get(session, ""))
    if intent is None or event.metadata.get("history") or not (intent.state in ENDED or intent.is_stopped):
        return []
    if event.type == "agent.input" and v2_ids.is_phantom(session):
        is_report = event.payload.get("synthetic") and event.ts < (intent.ended or event.ts) + REPORTS_MS
        return [asked.abort(intent, is_late=True)] if is_report else []
    # In OpenCode 1 the session is a child, where a person's prompt is recorded as an agent's.
    if event.type == "agent.input" and not is_human(event.payload.get("parts") or []):
        return []
    return [asked.how_to_continue(intent)] if intent.copy and not intent.changes.get("kept") else []


def continues(before: Intent) -> dict[str, Any]:
    changes = before.changes
    return {
        "intent": before.id,
        "session": before.session,
        "copy": before.copy,
        "saved": bool(changes.get("saved")) and before.applied is None,
        "kept": bool(changes.get("kept") or changes.get("error")),
    }
