"""One event in full, for people: first the content, then the facts, and last the ids. Nothing is shown twice. Pure.

Payloads come from other programs, so any field may be missing or have another type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sidecar.read.fields import is_forgotten, is_number, with_cuts_shown
from sidecar.read.rendering.content import IDS, Part
from sidecar.read.rendering.describe import KINDS
from sidecar.read.wording import UNKNOWN, amount, lasted, local_time, money
from streams.event import StreamEvent


@dataclass(slots=True)
class Detail:
    """``parts`` is the content, ``facts`` are labelled values, and ``rest`` holds all other fields."""

    parts: list[Part] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    rest: dict[str, Any] = field(default_factory=dict)
    ids: list[tuple[str, str]] = field(default_factory=list)


def detail(event: StreamEvent) -> Detail:
    left = with_cuts_shown(event.payload)
    found = Detail()
    kind = KINDS.get(event.type)
    if is_forgotten(left):
        found.parts.append(Part("aside", "(payload forgotten)"))
    elif kind is not None and kind.content is not None:
        found.parts = [part for part in kind.content(left) if part.text.strip()]
    _take_facts(left, found)
    for name in IDS:
        if isinstance(value := left.get(name), str):
            found.ids.append(("answer" if name == "assistant_message" else name, value))
            del left[name]
    said = {part.text.strip() for part in found.parts} | {value for _, value in found.ids} | {event.actor}
    found.rest = {key: rest for key, value in left.items() if (rest := _unsaid(value, said)) is not None}
    return found


def _take_facts(left: dict[str, Any], found: Detail) -> None:
    """Move durations, tokens, cost and model from ``left`` to the facts of ``found``."""
    started, ended = left.pop("started_ms", None), left.pop("ended_ms", None)
    took = left.pop("duration_ms", None)
    if is_number(started):
        found.facts.append(("started", local_time(int(started), "%H:%M:%S") + f".{int(started) % 1000:03}"))
        if is_number(ended) and not is_number(took):
            took = ended - started
    if is_number(took):
        found.facts.append(("took", lasted(took)))
    model = left.get("model")
    if isinstance(model, dict) and set(model) == {"provider", "model"}:
        del left["model"]
        found.facts.append(("model", f"{model['provider']}/{model['model']}"))
    tokens = left.get("tokens")
    if isinstance(tokens, dict) and all(map(is_number, tokens.values())):
        tokens = {name: UNKNOWN if amount(n) == UNKNOWN else n for name, n in left.pop("tokens").items() if n}
        counts = [f"{count} {name.replace('_', ' ')}" for name, count in tokens.items()]
        found.facts.append(("tokens", ", ".join(counts) or "none"))
    if is_number(left.get("cost")) and (cost := left.pop("cost")):
        found.facts.append(("cost", money(cost)))


def _unsaid(value: Any, said: set[str]) -> Any:
    """``value`` without empty values and without the values in ``said``; ``None`` if nothing is left."""
    if isinstance(value, dict):
        rest = {key: inner for key, each in value.items() if (inner := _unsaid(each, said)) is not None}
        return rest or None
    if isinstance(value, list):
        return [inner for each in value if (inner := _unsaid(each, said)) is not None] or None
    if isinstance(value, str):
        return value if value.strip() and value.strip() not in said else None
    return value
