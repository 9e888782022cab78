"""Sums of token counts and costs. Imports nothing heavy, because shell completion needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

MOST_TOKENS: Final = 1e12
"""More tokens than any model reads or writes in a step."""
MOST_COST: Final = 1e6
"""More US dollars than any step costs."""


def add_tokens(total: dict[str, int | float], tokens: Any, prefix: str = "") -> None:
    """Add a step's token counts to ``total``; nested counts get names such as ``cache_read``.

    Counts that no provider can mean are left out, because one of them makes the sum worthless.
    """
    if not isinstance(tokens, dict):
        return
    for name, value in tokens.items():
        if isinstance(value, dict):
            add_tokens(total, value, f"{prefix}{name}_")
        elif can_be(value, MOST_TOKENS):
            total[prefix + name] = total.get(prefix + name, 0) + value


def total_of(tokens: Mapping[str, int | float]) -> int:
    """How many tokens counts are together. OpenCode 1 names their sum as ``total`` beside them, OpenCode 2 does not."""
    return int(tokens.get("total") or sum(tokens.values()))


def can_be(value: Any, most: float) -> TypeGuard[int | float]:
    """True for a number from 0 to ``most``."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most
