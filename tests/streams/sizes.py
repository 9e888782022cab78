"""How large a test is: small in ``make test``, larger where ``TORTURE_{name}`` says so."""

from __future__ import annotations

import os


def size(name: str, small: int) -> int:
    return int(os.environ.get(f"TORTURE_{name}", small))


def is_set(name: str) -> bool:
    """Whether this is torture: then what is random may be random."""
    return f"TORTURE_{name}" in os.environ
