"""Watches over background work: how long it may run, when its session is checked, and what it is waiting for. Pure.

The time of an intent counts only while its session is working. The time does not count while the intent, or work that
it started, is waiting for a person; while a prompt is on its way to the session; while no OpenCode is open that could
run the session; or while no sidecar is running.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sidecar.agents.agent import Output
from sidecar.background.intents.budgets import Doom
from sidecar.background.intents.lifecycle import ENDED, WORKING
from sidecar.background.intents.state import Intent, State
from sidecar.background.messages.message import QUESTIONS
from streams.event import StreamEvent

CHECKED: Final = ("resumes", "models")
"""What a check notes about its intent, so that an outdated result is recognised."""

CHECK_MS: Final = 60_000
"""How often, in ms, the session of a running intent is checked, because the end of its turn may have been lost, or the
session may be silent."""


def deadlines(state: State, check_ms: int) -> list[int]:
    """The times, in ms UTC, at which ``late`` or ``due`` may return something."""
    timed = [i for i in state.unfinished() if i.wall_ms and i.since is not None]
    ends = [i.since + i.wall_ms - i.ran_ms for i in timed if i.since is not None]
    return ends + [(i.checked or i.started) + check_ms for i in checkable(state) if i.started]


def late(state: State, now: int) -> list[tuple[Intent, Doom]]:
    found = [i for i in state.unfinished() if i.wall_ms and i.since is not None and i.ran(now) >= i.wall_ms]
    return [
        (i, Doom("intent.failed", f"timeout: it ran for more than {i.wall_ms // 1000} s", "timeout")) for i in found
    ]


def checkable(state: State) -> list[Intent]:
    """The intents whose session should be at work."""
    return [i for i in state.intents.values() if i.state in WORKING and i.session and not i.prompting]


def due(state: State, now: int, check_ms: int) -> list[Intent]:
    return [i for i in checkable(state) if (i.checked or i.started or 0) + check_ms <= now]


def noted(intent: Intent) -> dict[str, Any]:
    """The values that ``CHECKED`` names: they change whenever the intent's session is prompted again."""
    return {"resumes": intent.resumes, "models": len(intent.models)}


def alarm(intent: Intent, found: Mapping[str, Any], silence_ms: int) -> Doom | None:
    """Why an intent must stop, after a check of its session; ``None`` if it may continue."""
    quiet = int(found.get("quiet_ms") or 0)
    if found.get("state") == "busy" and silence_ms and quiet >= silence_ms and not intent.asks:
        return Doom("intent.failed", f"silence: it did nothing for {quiet // 60_000} minutes", "silence")
    return None


def asked(state: State, event: StreamEvent) -> list[Output]:
    """Handle what waits for a person from now on: a permission, a question, or the call of an ``ask``."""
    given = event.payload
    intent = state.intents.get(str(given.get("intent")))
    waits = event.type == "message.waiting" or given["kind"] in QUESTIONS - {"ask"}
    if intent is None or intent.state in ENDED or not waits or given["message"] in intent.asks:
        return []
    return [Output("intent.paused", {"intent": intent.id, "checkpoint": given["message"], "ts": event.ts})]


def answered(state: State, event: StreamEvent) -> list[Output]:
    """Handle a closed checkpoint, or a call that waits no more: the time of the intents that were waiting for the
    answer counts again."""
    checkpoint = event.payload["message"]
    if not any(checkpoint in intent.asks for intent in state.unfinished()):
        return []
    return [Output("intent.continued", {"checkpoint": checkpoint, "ts": event.ts})]
