"""W3C trace context: reading, deriving child spans, making one where none came. Pure.

Spans are derived from names by ``streams.lineage``, never drawn at random: a
message that is published again, or by another home, has the same trace. A
causation chain keeps its trace id; each hop is a span of its own.

Source: W3C Trace Context, level 1, 3.2; seed 002, 3 ("Trace"); FEATURES C12, C26-C29.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from streams.lineage import span_id, trace_id

MAX_TRACESTATE: Final = 512
"""Characters that every system must pass on (W3C, 3.3.1.5); longer ones are dropped, as the standard allows."""

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_FORBIDDEN_VERSION = "ff"
_SAMPLED = "01"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where a message stands in a trace: 32 hex digits of trace, 16 of the span that sent it, 2 of flags."""

    trace_id: str
    span_id: str
    flags: str = _SAMPLED

    def __str__(self) -> str:
        """As a ``traceparent`` of version 00, which is what we speak."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"

    def child(self, name: str) -> TraceContext:
        """The span of ``name`` below this one, in the same trace with the same flags.

        The same name below the same span is the same child: a call that is sent
        again has one span. Names are ids: of a call, a command, a session.
        """
        return TraceContext(self.trace_id, span_id(f"{self.trace_id}:{self.span_id}:{name}"), self.flags)


def parse_traceparent(text: str) -> TraceContext | None:
    """Parse a ``traceparent``; ``None`` if ``text`` is invalid and a new trace must start.

    A later version than 00 is read by its first four fields, and sent on as 00.
    What is longer than ``MAX_TRACESTATE`` is none: it is remembered, and foreign.
    """
    return _parse(text) if len(text) <= MAX_TRACESTATE else None


@lru_cache(maxsize=4096)
def _parse(text: str) -> TraceContext | None:
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == _FORBIDDEN_VERSION or (version == "00" and more) or trace == _NO_TRACE or span == _NO_SPAN:
        return None
    # Of the flags only "sampled" has a meaning that we may pass on.
    return TraceContext(trace, span, flags if version == "00" else f"{int(flags, 16) & 1:02x}")


def session_trace(root: str, session: str) -> TraceContext:
    """Where a session stands: the trace of its root, a span of its own; as ``streams.lineage.traceparent``."""
    return TraceContext(trace_id(root), span_id(session))


def made_trace(origin: str) -> TraceContext:
    """A trace for what came without one; ``origin`` names it (a stream, a message id), so a resend has the same."""
    return session_trace(origin, origin)
