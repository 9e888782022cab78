"""The budgets of background work: which intents may start, must wait, or must stop. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from sidecar.orchestrator.intent_state import Intent, Limits, Spent, State
from sidecar.orchestrator.lifecycle import ACTIVE, ENDED

STOPS_TREE: Final = frozenset({"budget", "cancelled", "timeout", "user-abort"})
"""Ends of an intent that also end everything it started. After any other end, the children continue."""


class Doom(NamedTuple):
    """Why an intent that has not ended must stop."""

    event: str
    reason: str
    code: str


def refusal(state: State, limits: Limits, intent: Intent) -> dict[str, str] | None:
    """Why an intent may not be registered, as ``code`` and ``reason``; ``None`` if it may."""
    spent = state.spent.get(intent.root, Spent())
    siblings = sum(each.parent == intent.parent for each in state.unfinished()) if intent.parent else 0
    if limits.depth and intent.depth > limits.depth:
        reason = f"{limits.depth} background agents have started one another already"
        return {"code": "recursion_depth_exceeded", "reason": reason}
    if limits.children and siblings >= limits.children:
        return {"code": "budget-children", "reason": f"{siblings} of its session are unfinished, the most allowed"}
    if limits.sessions and spent.sessions >= limits.sessions:
        reason = f"its session has started {spent.sessions}, the most allowed"
        return {"code": "budget-sessions", "reason": reason}
    over = _overspent(limits, spent)
    return {"code": "budget", "reason": over} if over else None


def has_room(state: State, limits: Limits, intent: Intent) -> bool:
    """Whether a queued intent may start now."""
    active = [each for each in state.intents.values() if each.state in ACTIVE]
    if len(active) >= limits.running:
        return False
    return all(
        sum(name in _providers(each) for each in active) < limits.per_model[name]
        for name in _providers(intent)
        if name in limits.per_model
    )


def used_share(limits: Limits, spent: Spent) -> tuple[float, str] | None:
    """The largest share that a root has used of one of its limits, and that limit's name; ``None`` without limits."""
    pairs = (("sessions", limits.sessions), ("tokens", limits.tokens), ("cost", limits.cost))
    return max(((getattr(spent, name) / limit, name) for name, limit in pairs if limit), default=None)


def doomed(state: State, limits: Limits, intent: Intent) -> Doom | None:
    """Why an intent must stop: its parent intent was stopped, or its root has spent too much.

    ``None`` if it may continue.
    """
    if intent.state in ENDED or intent.state in ("cancelling", "finishing"):
        return None
    starter = state.intents.get(intent.starter or "")
    if starter is not None and starter.code in STOPS_TREE:
        return Doom("intent.cancelled", f"{starter.id}, which started it, was stopped", "cancelled")
    over = _overspent(limits, state.spent.get(intent.root, Spent()))
    return Doom("intent.failed", over, "budget") if over else None


def _overspent(limits: Limits, spent: Spent) -> str:
    if limits.tokens and spent.tokens >= limits.tokens:
        return f"budget: {spent.tokens} of {limits.tokens} tokens are used"
    if limits.cost and spent.cost >= limits.cost:
        return f"budget: {spent.cost:.2f} of {limits.cost:.2f} dollars are used"
    return ""


def _providers(intent: Intent) -> tuple[str, ...]:
    """The names that ``[phantom.per_model]`` may limit: the provider of the intent's model, and the model."""
    model = intent.models[0] if intent.models else ""
    return (model.partition("/")[0], model) if model else ()
