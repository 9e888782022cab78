"""Sums of what steps used: costs and tokens. Pure."""

from __future__ import annotations

from typing import Any

from bridge.opencode.capture.tokens import MOST_COST, can_be, total_of

__all__ = ["add_cost", "total_of"]


def add_cost(total: float, payload: dict[str, Any]) -> float:
    """``total`` plus the cost of a step, unless it is a number that no step can cost."""
    cost = payload.get("cost")
    # Round the sum, so that it does not depend on the order in which the costs are added.
    return round(total + cost, 9) if can_be(cost, MOST_COST) else total
