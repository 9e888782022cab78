"""The budgets of background work: which intents may start, must wait, or must stop. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bridge.opencode.capture.tokens import add_tokens, total_of
from sidecar.agents.agent import Output
from sidecar.background.intents.lifecycle import ACTIVE, ENDED
from sidecar.background.intents.state import Intent, Spent, State
from streams.event import StreamEvent

if TYPE_CHECKING:
    from sidecar.config import PhantomConfig

ANSWERED: Final = ("stop", "length")
"""The finish reasons of the last model call in a turn."""

STOPS_TREE: Final = frozenset({"budget", "cancelled", "timeout", "user-abort"})
"""The ends of an intent after which everything that the intent started ends, too. After any other end, the children
continue."""


MAX_DEPTH: Final = 20
"""Maximum length of a chain of background agents, each started by the one before it."""

WARNING_SHARE: Final = 0.8
"""The share of a budget whose use is recorded as ``budget.warning``."""

MAX_WARNINGS: Final = 10
"""Maximum number of warnings for one input; further warnings follow with the next input."""


class Doom(NamedTuple):
    event: str
    reason: str
    code: str


def refusal(state: State, limits: PhantomConfig, intent: Intent) -> dict[str, str] | None:
    """Why an intent may not be registered, as ``code`` and ``reason``; ``None`` if it may be registered."""
    spent = state.spent.get(intent.root, Spent())
    if intent.depth > MAX_DEPTH:
        reason = f"the chain already has {MAX_DEPTH} background agents, each started by the one before it"
        return {"code": "recursion_depth_exceeded", "reason": reason}
    if limits.max_sessions and spent.sessions >= limits.max_sessions:
        reason = f"its session has already started {spent.sessions} agents, which is the limit"
        return {"code": "budget-sessions", "reason": reason}
    over = _spent_all(limits, spent)
    return {"code": "budget", "reason": over.removeprefix("budget: ")} if over else None


def full(state: State, limits: PhantomConfig, intent: Intent) -> str:
    """The key of ``[phantom]`` whose limit keeps a queued intent from starting; empty if the intent may start now."""
    active = [each for each in state.intents.values() if each.state in ACTIVE]
    if len(active) >= limits.max_running:
        return "max_running"
    reached = (
        f"per_model.{name}"
        for name in _providers(intent)
        if name in limits.per_model and sum(name in _providers(each) for each in active) >= limits.per_model[name]
    )
    return next(reached, "")


def spend(state: State, event: StreamEvent) -> list[Output]:
    """Count a model call that has ended. The call counts at once, so that a budget can also stop a long turn."""
    intent = state.working(str(event.payload.get("session")))
    tokens, cost = _tokens(event.payload.get("tokens")), event.payload.get("cost") or 0.0
    own = event.payload.get("kind") == "inference" and event.payload.get("session") in state.sessions
    if intent is None or not (tokens or cost or own):
        return []
    spent = {"intent": intent.id, "tokens": tokens, "cost": cost, "steps": int(own)}
    return [Output("intent.spent", spent | ({"last": True} if own and is_last(event) else {}))]


def is_last(event: StreamEvent) -> bool:
    return event.payload.get("finish") in ANSWERED


def warnings(state: State, limits: PhantomConfig) -> list[Output]:
    """One ``budget.warning`` for each budget that a root has nearly used up; each warning is given only once."""
    found = []
    at_work = {intent.root for intent in state.unfinished()}
    for root, spent in state.spent.items():
        if root not in at_work:
            continue
        for what, used, most in (
            ("sessions", spent.sessions, limits.max_sessions),
            ("tokens", spent.tokens, limits.max_tokens),
            ("cost", spent.cost, limits.max_cost),
            ("minutes", spent.ran_ms / 60_000, limits.max_minutes),
        ):
            if most and used / most >= WARNING_SHARE and what not in spent.warnings:
                found.append(Output("budget.warning", {"root": root, "what": what, "share": round(used / most, 2)}))
    return found[:MAX_WARNINGS]


def doomed(state: State, limits: PhantomConfig, intent: Intent) -> Doom | None:
    """Why an intent must stop: the intent that started it was stopped, the intent is in an endless loop, or the intent
    or its root has spent too much.

    ``None`` if the intent may continue.
    """
    if intent.state in ENDED or intent.state in ("cancelling", "finishing"):
        return None
    starter = state.intents.get(intent.starter or "")
    if starter is not None and starter.code in STOPS_TREE:
        return Doom("intent.cancelled", f"{starter.id}, which started it, was stopped", "cancelled")
    if intent.is_answered:
        return None
    if limits.max_steps and intent.steps > limits.max_steps:
        reason = f"endless loop: it called the model more than {limits.max_steps} times for one prompt"
        return Doom("intent.failed", reason, "endless-loop")
    over = _spent_all(limits, state.spent.get(intent.root, Spent()))
    over = over or _overspent(intent, intent.max_tokens, intent.max_cost)
    return Doom("intent.failed", over, "budget") if over else None


def _spent_all(limits: PhantomConfig, spent: Spent) -> str:
    minutes = spent.ran_ms / 60_000
    if limits.max_minutes and minutes >= limits.max_minutes:
        return f"budget: {minutes:.0f} of {limits.max_minutes:.0f} minutes are used"
    return _overspent(spent, limits.max_tokens, limits.max_cost)


def _overspent(used: Spent | Intent, tokens: int, cost: float) -> str:
    if tokens and used.tokens >= tokens:
        return f"budget: {used.tokens} of {tokens} tokens are used"
    if cost and used.cost >= cost:
        return f"budget: {used.cost:.2f} of {cost:.2f} dollars are used"
    return ""


def _tokens(given: Any) -> int:
    counts: dict[str, int | float] = {}
    add_tokens(counts, given)
    return total_of(counts)


def _providers(intent: Intent) -> tuple[str, ...]:
    """The names that ``[phantom.per_model]`` may limit: the provider of the intent's model, and the model."""
    return (intent.runs_on.partition("/")[0], intent.runs_on) if intent.runs_on else ()
