"""Where the time of a session went: a tree of spans for its turns, model calls, tools, waits and child sessions. Pure.

A ``wait`` is for a person, and a ``pause`` for the next attempt of a model call that failed.

The same spans are the page's timeline and the exported traces. Times are ms since 1970; the end of a span that has not
ended is ``None``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SpanKind = Literal["session", "turn", "model", "tool", "wait", "pause"]


@dataclass(slots=True)
class Span:
    """One stretch of time. ``event`` is the record that tells most about it, and ``parent`` the ``id`` of the span
    around it; a session's parent is the tool call, or else the session, that started it.

    ``state`` is ``running``, ``completed``, ``error`` or ``waiting``; it is ``over`` if its own end was not
    recorded, so that it ends with its turn, or as the next one begins. A session that rests is ``completed``.
    """

    id: str
    kind: SpanKind
    name: str
    start: int
    session: str
    parent: str = ""
    end: int | None = None
    state: str = "running"
    event: str = ""
    trace: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
