"""What an event inherits from the input that led to it: the depth and the trace of its chain, and the identity of
whoever began the chain. Pure.

Everything that agents record, the records of their effects included, gets these fields from ``hop``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streams.event import StreamEvent
from streams.trace import is_one_trace, made_trace, parse_traceparent

TRACESTATE: Final = "tracestate"

INHERITED: Final = ("project", "workspace", TRACESTATE, "CG-User-ID", "CG-Channel-ID", "CG-Context-ID")
"""The entries of an event's ``metadata`` that every later event of its chain has, too."""


def depth_of(event: StreamEvent) -> int:
    """An event's distance in steps from a user's action; 0 for captured events."""
    depth = event.metadata.get("depth")
    return depth if isinstance(depth, int) and depth >= 0 else 0


def inherited(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The part of an event's metadata that its chain keeps."""
    return {name: value for name in INHERITED if isinstance(value := metadata.get(name), str)}


def hop(cause: StreamEvent, depth: int | None, span: str = "", *, trace: str | None = None) -> dict[str, Any]:
    """The fields ``traceparent`` and ``metadata`` of an event that follows from ``cause``.

    ``depth`` is ``None`` if it is unknown. ``span`` names the event's span below the cause; without a name, the event
    has the span of its cause. ``trace`` is a ``traceparent`` that replaces the cause's own.
    """
    own = cause.traceparent or ""
    context = parse_traceparent(trace or own) or made_trace(cause.stream_id)
    traceparent = str(context.child(span) if span else context)
    metadata: dict[str, Any] = {"depth": depth} if depth is not None else {}
    metadata |= inherited(cause.metadata)
    if not is_one_trace(traceparent, own):
        metadata.pop(TRACESTATE, None)  # it belongs to the trace that is left here
    return {"traceparent": traceparent, "metadata": metadata}


def trace_headers(event: StreamEvent) -> dict[str, str]:
    """The HTTP headers that continue an event's trace: ``traceparent`` and, if there is one, ``tracestate``."""
    given = {"traceparent": event.traceparent, TRACESTATE: event.metadata.get(TRACESTATE)}
    return {name: value for name, value in given.items() if isinstance(value, str)}
