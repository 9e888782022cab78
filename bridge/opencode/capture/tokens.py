"""Sums of token counts. Imports nothing heavy, because shell completion needs it."""

from __future__ import annotations

from typing import Any


def add_tokens(total: dict[str, int | float], tokens: Any, prefix: str = "") -> None:
    """Add a step's token counts to ``total``; nested counts get names such as ``cache_read``."""
    if not isinstance(tokens, dict):
        return
    for name, value in tokens.items():
        if isinstance(value, dict):
            add_tokens(total, value, f"{prefix}{name}_")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            total[prefix + name] = total.get(prefix + name, 0) + value
