"""What an intent is waiting for, and what it has used, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.background.intents.lifecycle import ENDED
from sidecar.background.intents.state import Intent
from sidecar.background.people.checkpoints import Checkpoint
from sidecar.read.asked import on_one_line
from sidecar.read.wording import amount, money, rough_span


def waits(intent: Intent, full: str, checkpoints: Iterable[Checkpoint]) -> list[dict[str, str]]:
    """Everything that an intent is waiting for: ``for`` (``answer``, ``place`` or ``opencode``), ``id`` and ``text``.

    ``full`` is the key of ``[phantom]`` whose limit is reached, if any.
    """
    if intent.state == "queued" and full:
        return [{"for": "place", "id": full, "text": f"a free place ([phantom] {full})"}]
    found = [
        {"for": "answer", "id": each.id, "text": on_one_line(each.text)}
        for each in checkpoints
        if each.id in intent.asks
    ]
    if intent.state == "resuming" and not intent.prompting:
        found.append({"for": "opencode", "id": "", "text": "an OpenCode that can run it"})
    return found


def state_shown(state: str, asks: int) -> str:
    """An intent's state for a list; ``asks`` is how many answers of a person the intent is waiting for."""
    return "waiting for you" if asks and state not in ENDED else state


def remark(intent: Intent) -> str:
    """What a list of background work says before the intent's title: why it failed, or what a person can still do."""
    if intent.state in ("failed", "refused") and intent.reason:
        return on_one_line(intent.reason)
    return "changes not applied" if intent.changes.get("ref") and not (intent.applied or intent.discarded) else ""


def used(intent: Intent, now_ms: int) -> str:
    """The time that an intent has worked, its tokens and its cost; empty before the intent has started.

    If the intent has its own limit of tokens or cost, the limit follows the number.
    """
    if intent.started is None:
        return ""
    tokens, cost = amount(intent.tokens), money(intent.cost) if intent.cost else "$0"
    tokens += f" of {amount(intent.max_tokens)}" if intent.max_tokens else ""
    cost += f" of {money(intent.max_cost)}" if intent.max_cost else ""
    return f"{rough_span(intent.ran(now_ms))}, {tokens} tokens, {cost}"
