"""How deep a chain of calls may go: one decision table, no I/O.

A user's task has depth 0, and what it spawns is one deeper. The depth is computed
at the one place that spawns (``next_depth``) and verified by both sides of
every hop, always: a message without one is a violation, not a 0. What is known
of a chain is kept under its ``correlation_id``; where that and the message
disagree, nothing is done. Depth alone does not bound cost: budgets do.

===============  ==================  ====================  =======================
operation        header              recorded              then
===============  ==================  ====================  =======================
entry            absent or 0         absent or 0           depth 0
enqueue          given, or recorded  given: the same       that depth, not one more
report           given               given, the same       that depth
join_response    given               given, the same       that depth
===============  ==================  ====================  =======================

and for any operation, a depth at or above the limit ends the chain.

Source: seed 002, 3 ("Recursion depth"); FEATURES C15, C18-C25 and corrections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from bridge.nats.headers import RECURSION_DEPTH, ProtocolViolation, read_depth
from bridge.nats.l0.payloads import Task

MAX_DEPTH: Final = 20
"""The default of ``[worker] max_recursion_depth``: a chain of this depth is refused."""

EXCEEDED: Final = "recursion_depth_exceeded"
VIOLATION: Final = "protocol_violation"

Operation = Literal["entry", "enqueue", "report", "join_response"]
Verdict = Literal["accept", "recursion_depth_exceeded", "protocol_violation"]
Need = Literal["must", "may", "zero"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What an operation needs: its header's depth and the recorded one; ``zero`` is "absent or 0"."""

    header: Need
    recorded: Need


RULES: Final[dict[Operation, Rule]] = {
    "entry": Rule(header="zero", recorded="zero"),
    "enqueue": Rule(header="may", recorded="may"),
    "report": Rule(header="must", recorded="must"),
    "join_response": Rule(header="must", recorded="must"),
}

MODES: Final = frozenset({"call"})
"""How ``enqueue`` may be used; ``transfer`` and ``notify`` are violations."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Verdict on a message. ``depth`` is the depth to record for its chain; ``None`` unless accepted.

    Refused by the publisher, nothing is sent; refused by the consumer, nothing
    is started. Either way the chain ends, and ``failed_task`` reports it.
    """

    verdict: Verdict
    depth: int | None = None
    reason: str = ""

    @property
    def accepted(self) -> bool:
        return self.verdict == "accept"


def judge(
    operation: Operation,
    headers: Mapping[str, str],
    *,
    recorded: int | None,
    mode: str = "call",
    limit: int = MAX_DEPTH,
) -> Decision:
    """Decide about one message. ``recorded`` is the depth kept under its ``correlation_id``, ``None`` if none is."""
    if operation == "enqueue" and mode not in MODES:
        return Decision(VIOLATION, reason=f"enqueue knows the mode `call` only, not {mode[:40]!a}")
    try:
        given = read_depth(headers) if RECURSION_DEPTH in headers else None
        rule = RULES[operation]
        _require(rule.header, given, f"{operation}: the header {RECURSION_DEPTH}")
        _require(rule.recorded, recorded, f"{operation}: the depth recorded for the chain")
    except ProtocolViolation as error:
        return Decision(VIOLATION, reason=error.reason)
    if given is not None and recorded is not None and given != recorded:
        return Decision(VIOLATION, reason=f"{operation}: the message says depth {given}, its chain has {recorded}")
    depth = given if given is not None else recorded
    if depth is None:
        if rule.header != "zero":
            return Decision(VIOLATION, reason=f"{operation}: neither {RECURSION_DEPTH} nor the chain says a depth")
        depth = 0
    if depth >= limit:
        return Decision(EXCEEDED, reason=f"{operation}: depth {depth} is not below the limit of {limit}")
    return Decision("accept", depth)


def next_depth(depth: int) -> int:
    """The depth of what is spawned from ``depth``. Only who spawns calls this, once, before ``enqueue``.

    Raises:
        ProtocolViolation: ``depth`` is negative.
    """
    if depth < 0:
        raise ProtocolViolation(f"a depth of {depth} does not exist")
    return depth + 1


def failed_task(decision: Decision, agent_turn_id: str) -> Task:
    """The payload for ``evt.agent.{agent}.task`` that reports a refused chain. Raises ``ValueError`` if accepted."""
    if decision.accepted:
        raise ValueError("an accepted message is not a failed task")
    return Task(agent_turn_id=agent_turn_id, status="failed", error_code=decision.verdict, error=decision.reason)


def _require(need: Need, depth: int | None, what: str) -> None:
    if need == "must" and depth is None:
        raise ProtocolViolation(f"{what} is missing")
    if need == "zero" and depth:
        raise ProtocolViolation(f"{what} is {depth}; what a user begins has depth 0")
    if depth is not None and depth < 0:
        raise ProtocolViolation(f"{what} is negative")
