"""Parses W3C trace contexts, derives child spans, and makes a context if none was received. Pure.

``streams.lineage`` derives spans from names, never at random, so a message that is published again, or
by another home, has the same trace. A causal chain keeps its trace id; each hop has its own span.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from streams.lineage import span_id, trace_id

MAX_TRACESTATE: Final = 512
"""How many characters of a ``tracestate`` every system must forward (W3C, 3.3.1.5); longer values are dropped, as the
standard allows.
"""

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_FORBIDDEN_VERSION = "ff"
_SAMPLED = "01"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A message's place in a trace: 32 hex digits of trace id, 16 of the sending span's id, 2 of flags."""

    trace_id: str
    span_id: str
    flags: str = _SAMPLED

    def __str__(self) -> str:
        """The ``traceparent``, in version 00, the only version that this program writes."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"

    def child(self, name: str) -> TraceContext:
        """The child span for ``name``, in the same trace and with the same flags.

        The same name below the same span gives the same child, so a resent call
        has one span. A name is the id of a call, a command or a session.
        """
        return TraceContext(self.trace_id, span_id(f"{self.trace_id}:{self.span_id}:{name}"), self.flags)


def parse_traceparent(text: str) -> TraceContext | None:
    """Parse a ``traceparent``; ``None`` if ``text`` is invalid and a new trace must start.

    For versions after 00, only the first four fields are read, and they are forwarded as version 00. Text longer than
    ``MAX_TRACESTATE`` is invalid, because it is external input and results are cached.
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
    # In later versions of the format, only the flag "sampled" has a meaning that we may forward.
    return TraceContext(trace, span, flags if version == "00" else f"{int(flags, 16) & 1:02x}")


class Chain(NamedTuple):
    """What is known of a chain of messages: how many spawns led to it, and a ``traceparent`` of its trace."""

    depth: int
    traceparent: str


def next_depth(depth: int) -> int:
    """The depth of what is spawned at ``depth``. Only the spawner calls this function, once.

    Raises:
        ValueError: ``depth`` is negative.
    """
    if depth < 0:
        raise ValueError(f"a depth must be 0 or more, not {depth}")
    return depth + 1


def is_one_trace(one: str | None, other: str | None) -> bool:
    """Whether two values of ``traceparent`` belong to one trace."""
    found, also = parse_traceparent(one or ""), parse_traceparent(other or "")
    return found is not None and also is not None and found.trace_id == also.trace_id


def made_trace(origin: str) -> TraceContext:
    """A trace for a message without one. The same ``origin`` (a stream or message id) gives the same trace."""
    return TraceContext(trace_id(origin), span_id(origin))
