"""Effects in doubt as questions to a person: nobody else knows whether an agent's effect happened. Pure.

Each attempt that is in doubt is one checkpoint, whichever agent asked for the effect. The checkpoint is withdrawn if
the effect goes on without an answer.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from sidecar.background.people.consent import MAX_TEXT
from sidecar.read.ask_text import checkpoint_id
from sidecar.read.wording import cut_middle, visible

if TYPE_CHECKING:
    from sidecar.agents.effects.runner import Resolution

RESOLVE: Final = "effect.resolve"

DECISIONS: Final[dict[str, Resolution]] = {"it happened": "done", "try again": "retry", "give up": "fail"}
"""The answers, and what each does with the effect."""


def doubted(agent: str, given: dict[str, Any]) -> dict[str, Any]:
    """What an ``effect.in_doubt`` of an agent asks, in the form that ``message.queued`` keeps."""
    effect = {name: given.get(name) for name in ("kind", "run", "attempt", "reason")}
    effect |= {"agent": agent, "key": given.get("idempotency_key")}
    text, left_out = cut_middle(whole_text(effect, given.get("args")), MAX_TEXT)
    request, work = str(given.get("request")), f"the agent {agent}"
    about = {"kind": "effect", "session": "", "request": request, "work": work, "effect": effect}
    return {**about, "text": text, "left_out": left_out, "options": list(DECISIONS)}


def identifier_of(effect: dict[str, Any]) -> str:
    """The id of the checkpoint about an attempt."""
    return checkpoint_id(str(effect["run"]), "{key} {attempt}".format_map(effect))


def whole_text(effect: dict[str, Any], args: Any) -> str:
    """What the effect was, all of it; ``effect`` as in ``Message``."""
    return visible(f"{effect['kind']} {json.dumps(args, ensure_ascii=False)} ({effect['reason']})")
