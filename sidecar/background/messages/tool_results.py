"""Tells when OpenCode has saved, or lost, what a tool call returned. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streams.event import StreamEvent

WHOLE: Final = ("completed", "failed", "stopped")
"""The outcomes of turns in which OpenCode saved the result of every call that returned."""

_BEFORE_SAVED: Final = "tool.execute.after"
"""The hook that OpenCode 1 calls after a tool and before it saves the result."""


def is_earlier(ended: Mapping[str, Any], ts: int, turn: str, since: int) -> bool:
    """Whether a ``turn.ended`` from ``ts`` is about a turn before ``turn``, in which a call was made at ``since``.

    ``turn`` is named by its user message. An agent may handle the end of a turn only after a call of the next turn.
    """
    return bool(turn) and ended.get("message") not in (None, turn) and ts <= since


def loses_result(step: StreamEvent) -> bool:
    """Whether an ``execution.step`` says that a tool call failed, so that the session never got what the call returned.

    The sidecar may have died after it recorded that the call returned, and before OpenCode had the answer.
    """
    return bool(step.payload.get("call")) and step.payload.get("status") == "error"


def saves_result(step: StreamEvent) -> bool:
    """Whether an ``execution.step`` says that OpenCode has the result of a tool call.

    A step that capture had to make from the hook alone is not enough, because OpenCode calls the hook first and may
    have died before it saved the result.
    """
    is_done = bool(step.payload.get("call")) and step.payload.get("status") == "completed"
    return is_done and step.metadata.get("hook") != _BEFORE_SAVED
