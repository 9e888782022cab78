"""The size of a test: small in ``make test``, larger if ``TORTURE_{name}`` is set."""

from __future__ import annotations

import os


def size(name: str, small: int) -> int:
    return int(os.environ.get(f"TORTURE_{name}", small))


def is_set(name: str) -> bool:
    """True under torture, where random values may differ between runs."""
    return f"TORTURE_{name}" in os.environ
