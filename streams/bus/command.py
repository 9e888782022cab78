"""A command for an agent, in the form in which it comes from a bus, from a person or from the log. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Refusal(NamedTuple):
    """Why an input ends its chain: the protocol's code, the reason in words for people, and the depth of the chain, if
    it is known."""

    code: str
    reason: str
    depth: int | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """``key`` is the command's idempotency key: commands with the same key are handled only once."""

    key: str
    type: str
    payload: dict[str, Any] = field(repr=False)
    actor: str = "user"
    sender: str = "user"
    depth: int = 0
    correlation_id: str | None = None
    causation_id: str | None = None
    traceparent: str | None = None
    ts: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)
    """More metadata to record, such as ``tracestate`` or the subject."""
    refusal: Refusal | None = None
    """Set if the command broke a rule before it arrived. Such a command is recorded as refused, and its depth is
    ignored."""
