"""Intents and what they used, in the form that the command line prints. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sidecar.background.intents.state import Intent, Spent, State
from sidecar.background.people import sentences


def spent_by(state: State, root: str) -> dict[str, Any]:
    """What a root has used, in the form that ``intents --json`` and ``top --json`` print; ``ran`` is in ms."""
    spent = state.spent.get(root, Spent())
    used = {"sessions": spent.sessions, "tokens": spent.tokens, "cost": spent.cost, "ran": spent.ran_ms}
    return {"root": root, **used}


def as_row(intent: Intent) -> dict[str, Any]:
    """An intent in the form that ``intents --json`` prints; ``shown`` and ``what`` are its state and work in words."""
    about = asdict(intent)
    del about["rights"]
    return {**about, "place": intent.place, "shown": sentences.state_of(intent), "what": sentences.work(intent)}
