"""Watches over background work: how long it may run, when its session is checked, and what it is waiting for. Pure.

The time of an intent counts only while its session is working. It does not count while the intent, or something that it
started, is waiting for a person; while a prompt is on its way to it; while no OpenCode is open that could run it; or
while no sidecar is running.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sidecar.orchestrator.budgets import Doom
from sidecar.orchestrator.intent_state import Intent, State
from sidecar.orchestrator.lifecycle import ENDED, WORKING
from sidecar.runtime.agent import Output
from streams.event import StreamEvent

CHECK: Final = "opencode.check"

CHECK_MS: Final = 60_000
"""How often a running intent's session is checked, because the end of its turn may have been lost, or it may be
silent."""


def deadlines(state: State, check_ms: int) -> list[int]:
    """The times, in ms UTC, at which ``late`` or ``due`` may return something."""
    timed = [i for i in state.unfinished() if i.wall_ms and i.since is not None]
    ends = [i.since + i.wall_ms - i.ran_ms for i in timed if i.since is not None]
    return ends + [(i.checked or i.started) + check_ms for i in checkable(state) if i.started]


def late(state: State, now: int) -> list[tuple[Intent, Doom]]:
    """The intents that have worked for longer than they may."""
    found = [i for i in state.unfinished() if i.wall_ms and i.since is not None and i.ran(now) >= i.wall_ms]
    return [
        (i, Doom("intent.failed", f"timeout: it ran for more than {i.wall_ms // 1000} s", "timeout")) for i in found
    ]


def checkable(state: State) -> list[Intent]:
    """The intents whose session should be at work."""
    return [i for i in state.intents.values() if i.state in WORKING and i.session and not i.prompting]


def due(state: State, now: int, check_ms: int) -> list[Intent]:
    """The intents whose session was not checked for ``check_ms``."""
    return [i for i in checkable(state) if (i.checked or i.started or 0) + check_ms <= now]


def check(intent: Intent, ts: int) -> list[Output]:
    """Check an intent's session. The result comes back with ``resumes``, so that an outdated result is recognised."""
    args = {
        "session": intent.session,
        "directory": intent.place,
        "resumes": intent.resumes,
    }
    checked = Output("intent.checked", {"intent": intent.id, "ts": ts})
    return [checked, Output("effect.requested", args, effect=CHECK, node=intent.id)]


def alarm(intent: Intent, found: Mapping[str, Any], silence_ms: int) -> Doom | None:
    """Why an intent must stop, after a check of its session; ``None`` if it may continue."""
    quiet = int(found.get("quiet_ms") or 0)
    if found.get("state") == "busy" and silence_ms and quiet >= silence_ms and not intent.asks:
        return Doom("intent.failed", f"silence: it did nothing for {quiet // 60_000} minutes", "silence")
    return None


def asked(state: State, event: StreamEvent) -> list[Output]:
    """Something in an intent's session, or in one that it started, is waiting for a person."""
    intent = state.intents.get(str(event.payload.get("intent")))
    if intent is None or intent.state in ENDED:
        return []
    about = {"intent": intent.id, "checkpoint": event.payload["checkpoint"], "ts": event.ts}
    return [Output("intent.paused", about)]


def answered(state: State, event: StreamEvent) -> list[Output]:
    """A checkpoint is closed; the time of the intents that waited for it counts again."""
    checkpoint = event.payload["checkpoint"]
    if not any(checkpoint in intent.asks for intent in state.unfinished()):
        return []
    return [Output("intent.continued", {"checkpoint": checkpoint, "ts": event.ts})]
