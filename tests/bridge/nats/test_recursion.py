"""How deep a chain may go: every case of the decision table."""

from __future__ import annotations

import pytest

from bridge.nats.headers import depth_header
from bridge.nats.l0.recursion import MAX_DEPTH, Decision, Operation, failed_task, judge
from streams.trace import next_depth

ACCEPT, EXCEEDED, VIOLATION = "accept", "recursion_depth_exceeded", "protocol_violation"


def headers(depth: int | str | None) -> dict[str, str]:
    return {} if depth is None else {"CG-Recursion-Depth": str(depth)}


LAST = MAX_DEPTH - 1
TABLE: dict[Operation, tuple[tuple[int | str | None, int | None, str, int | None], ...]] = {
    # A user's entry begins at 0.
    "entry": (
        *((None, None, ACCEPT, 0), (0, None, ACCEPT, 0), (0, 0, ACCEPT, 0), (None, 0, ACCEPT, 0)),
        *((1, None, VIOLATION, None), (None, 1, VIOLATION, None), ("x", None, VIOLATION, None)),
    ),
    # Enqueue fills in from the chain, verifies against it, and adds nothing; nothing of the limit or more continues.
    "enqueue": (
        *((3, None, ACCEPT, 3), (None, 3, ACCEPT, 3), (3, 3, ACCEPT, 3), (0, 0, ACCEPT, 0), (LAST, None, ACCEPT, LAST)),
        *((3, 4, VIOLATION, None), (0, 1, VIOLATION, None), (None, None, VIOLATION, None), ("-1", 3, VIOLATION, None)),
        *(("3.0", 3, VIOLATION, None), (3, -1, VIOLATION, None)),
        *((MAX_DEPTH, None, EXCEEDED, None), (None, MAX_DEPTH, EXCEEDED, None)),
    ),
    # A report needs both, equal. A lie about a depth that is too great is first of all a lie.
    "report": (
        *((3, 3, ACCEPT, 3), (3, 4, VIOLATION, None), (None, 3, VIOLATION, None), (3, None, VIOLATION, None)),
        *((None, None, VIOLATION, None), ("", 3, VIOLATION, None), (MAX_DEPTH, 3, VIOLATION, None)),
        *((MAX_DEPTH, MAX_DEPTH, EXCEEDED, None),),
    ),
    # So does a join.
    "join_response": (
        *((3, 3, ACCEPT, 3), (4, 3, VIOLATION, None), (None, 3, VIOLATION, None), (3, None, VIOLATION, None)),
        *((999_999, 999_999, EXCEEDED, None),),
    ),
}


@pytest.mark.parametrize("operation", TABLE)
def test_the_table(operation: Operation) -> None:
    for given_, recorded, verdict, depth in TABLE[operation]:
        decision = judge(operation, headers(given_), recorded=recorded)
        assert (decision.verdict, decision.depth) == (verdict, depth), (given_, recorded)
        assert decision.accepted == (verdict == ACCEPT) == (decision.reason == "")


@pytest.mark.parametrize("mode", ["transfer", "notify", "", "CALL", "call\r\n"])
def test_enqueue_knows_one_mode(mode: str) -> None:
    decision = judge("enqueue", headers(0), recorded=None, mode=mode)
    assert decision.verdict == VIOLATION and "mode" in decision.reason and "\r" not in decision.reason


def test_a_chain_that_spawns_itself_ends() -> None:
    """The parent computes each hop and enqueues it; the child reports it."""
    depth, hops = 0, 0
    while True:
        enqueued = judge("enqueue", depth_header(depth), recorded=None)
        if not enqueued.accepted:
            break
        assert judge("report", depth_header(depth), recorded=enqueued.depth).accepted
        depth, hops = next_depth(depth), hops + 1
    assert hops == MAX_DEPTH == 20
    task = failed_task(enqueued, "turn")
    assert (task.status, task.error_code) == ("failed", "recursion_depth_exceeded")
    assert "20" in (task.error or "")


def test_a_refusal_is_told_as_a_failed_task() -> None:
    decision = judge("report", {}, recorded=3)
    assert failed_task(decision, "t").fields() == {
        "agent_turn_id": "t",
        "status": "failed",
        "error_code": "protocol_violation",
        "error": "report: the header CG-Recursion-Depth is missing",
    }
    with pytest.raises(ValueError):
        failed_task(Decision("accept", 0), "t")
    with pytest.raises(ValueError):
        next_depth(-1)
