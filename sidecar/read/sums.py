"""Sums of what steps used: costs and tokens. Pure."""

from __future__ import annotations

from typing import Any, Protocol

from bridge.opencode.capture.tokens import MOST_COST, add_tokens, can_be, total_of

__all__ = ["Used", "add_cost", "add_step", "total_of"]


def add_cost(total: float, payload: dict[str, Any]) -> float:
    """``total`` plus the cost of a step, unless it is a number that no step can cost."""
    cost = payload.get("cost")
    # Round the sum, so that it does not depend on the order in which the costs are added.
    return round(total + cost, 9) if can_be(cost, MOST_COST) else total


class Used(Protocol):
    """Whatever counts steps, with their cost in US dollars and their tokens."""

    steps: int
    cost: float
    tokens: dict[str, int | float]


def add_step(to: Used, payload: dict[str, Any]) -> None:
    to.steps += 1
    to.cost = add_cost(to.cost, payload)
    add_tokens(to.tokens, payload.get("tokens"))
