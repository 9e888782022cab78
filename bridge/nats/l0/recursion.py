"""Limits how deep a chain of calls may be: one decision table, no I/O.

A user's task has depth 0, and each spawned task is one level deeper than its spawner. Only the spawner computes the
depth (``streams.trace.next_depth``), and both sender and receiver of every hop verify it. A message without a depth is
a violation, not depth 0. A chain's depth is recorded under its ``correlation_id``; a message with a different depth is
refused. Depth alone does not limit cost; budgets do.

===============  ==================  ====================  =======================
operation        header              recorded              then
===============  ==================  ====================  =======================
entry            absent or 0         absent or 0           depth 0
enqueue          given, or recorded  given: the same       that depth, not one more
report           given               given, the same       that depth
join_response    given               given, the same       that depth
===============  ==================  ====================  =======================

For any operation, a depth at or above the limit ends the chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from bridge.nats.headers import RECURSION_DEPTH, ProtocolViolation, read_depth
from bridge.nats.l0.payloads import Task

MAX_DEPTH: Final = 20
"""A chain of this depth is refused."""

EXCEEDED: Final = "recursion_depth_exceeded"
VIOLATION: Final = "protocol_violation"

Operation = Literal["entry", "enqueue", "report", "join_response"]
Verdict = Literal["accept", "recursion_depth_exceeded", "protocol_violation"]
Need = Literal["must", "may", "zero"]


RULES: Final[dict[Operation, Need]] = {"entry": "zero", "enqueue": "may", "report": "must", "join_response": "must"}
"""What an operation requires, both of the header's depth and of the recorded depth; ``zero`` means "absent or 0"."""

CALL: Final = "call"
"""The only mode of ``enqueue``; ``transfer`` and ``notify`` are violations."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on a message. ``depth`` is the depth to record for the message's chain; ``None`` unless the message
    was accepted.

    If the publisher refuses a message, it does not send the message; if the consumer refuses, it starts no work. In
    both cases the chain ends, and ``failed_task`` reports the failure.
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
    mode: str = CALL,
    limit: int = MAX_DEPTH,
) -> Decision:
    """Judge one message. ``recorded`` is the depth recorded under its ``correlation_id``, if any."""
    if operation == "enqueue" and mode != CALL:
        return Decision(VIOLATION, reason=f"enqueue supports only the mode `{CALL}`, not {mode[:40]!a}")
    try:
        given = read_depth(headers) if RECURSION_DEPTH in headers else None
        _require(RULES[operation], given, f"{operation}: the header {RECURSION_DEPTH}")
        _require(RULES[operation], recorded, f"{operation}: the depth recorded for the chain")
    except ProtocolViolation as error:
        return Decision(VIOLATION, reason=error.reason)
    if given is not None and recorded is not None and given != recorded:
        return Decision(
            VIOLATION, reason=f"{operation}: the message says depth {given}, but its chain has depth {recorded}"
        )
    depth = given if given is not None else recorded
    if depth is None:
        if RULES[operation] != "zero":
            return Decision(VIOLATION, reason=f"{operation}: neither {RECURSION_DEPTH} nor the chain gives a depth")
        depth = 0
    if depth >= limit:
        return Decision(EXCEEDED, reason=f"{operation}: depth {depth} is not below the limit of {limit}")
    return Decision("accept", depth)


def failed_task(decision: Decision, agent_turn_id: str) -> Task:
    """The payload that reports a refused chain. Raises ``ValueError`` if the message was accepted."""
    if decision.accepted:
        raise ValueError("this message was accepted, so there is no failure to report")
    return Task(agent_turn_id=agent_turn_id, status="failed", error_code=decision.verdict, error=decision.reason)


def _require(need: Need, depth: int | None, what: str) -> None:
    if need == "must" and depth is None:
        raise ProtocolViolation(f"{what} is missing")
    if need == "zero" and depth:
        raise ProtocolViolation(f"{what} is {depth}, but a chain that a user starts has depth 0")
    if depth is not None and depth < 0:
        raise ProtocolViolation(f"{what} is negative")
