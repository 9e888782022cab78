"""The text that ``/background`` shows in OpenCode: what is running and waiting, the cost, and how to cancel and answer.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal

from sidecar.background.intents.lifecycle import ENDED
from sidecar.background.intents.state import Intent
from sidecar.background.messages.message import Message
from sidecar.background.people import sentences
from sidecar.read.ask_text import on_one_line
from sidecar.read.wording import cut_middle, money, one_line, rough_span

COMMAND: Final = "background"
"""The name of the call that the plugin makes for the command. The call has the form of a tool call, but the tool is
offered to no model."""

RECENT_MS: Final = 3_600_000
MOST: Final = 20
MAX_LINE: Final = 160
MAX_ASK: Final = 500
"""Maximum length of an ask that is shown whole, in characters. A longer ask can only be rejected here."""

USAGE: Final = (
    "/background cancel INT_… stops background work. /background answer CHK_… ANSWER answers a checkpoint (a "
    "permission: once, always or reject)."
)


def parse(text: str) -> tuple[Literal["list", "cancel", "answer", "help"], str, str]:
    """What a person asked for after ``/background``: to list the work, or to cancel or answer what the second text
    names, with the third as the answer. Anything unknown counts as a request for help."""
    verb, _, rest = text.strip().partition(" ")
    target, _, answer = rest.strip().partition(" ")
    if not verb or verb == "list":
        return "list", "", ""
    if verb == "cancel" and target:
        return "cancel", target, ""
    if verb == "answer" and target and answer.strip():
        return "answer", target, answer.strip()
    return "help", "", ""


def listing(intents: Iterable[Intent], waiting: Sequence[Message], now_ms: int) -> str:
    """List the work that is unfinished or ended in the last hour, and what is waiting for a person; oldest first."""
    shown = [i for i in intents if i.state not in ENDED or now_ms - (i.ended or 0) < RECENT_MS][-MOST:]
    lines = [_line(intent, now_ms) for intent in shown] or [
        "No background work is running, and none ended in the last hour."
    ]
    if waiting:
        lines += ["", "Waiting for you:"]
        lines += [_waiting(each) for each in waiting[-MOST:]]
    if shown or waiting:
        lines += ["", USAGE]
    return "\n".join(lines)


def _waiting(each: Message) -> str:
    # The text alone is cut, so what `always` allows is shown whole.
    shown = replace(each, text=cut_middle(each.text, MAX_ASK)[0])
    return on_one_line(f"{each.id} · {sentences.asks(shown)} · {sentences.since(each.queued)}")


def _line(intent: Intent, now_ms: int) -> str:
    ran = rough_span(intent.ran(now_ms)) if intent.started is not None else ""
    cost = money(intent.cost) if intent.cost else ""
    parts = (intent.id, sentences.state_of(intent), ran, cost, sentences.work(intent))
    return one_line(" · ".join(filter(None, parts)))[:MAX_LINE]
