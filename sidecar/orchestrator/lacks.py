"""What each version of OpenCode cannot do for background work, and what that means for the user."""

from __future__ import annotations

from typing import Final

MEANINGS: Final = {
    "children": "background sessions are listed beside the session that started them, not below it",
    "reasons": "the model does not read why you refuse a permission",
    "toasts": "OpenCode shows no toast when background work starts or ends",
}
"""Everything that a host may lack, and what the user notices of it."""

ONE: Final[frozenset[str]] = frozenset()
TWO: Final = frozenset({"children", "reasons", "toasts"})
"""Measured on preview next-16350, by ``tests/real/host_contract.py``."""


def lacks_of(version: str) -> frozenset[str]:
    """What the host of an OpenCode lacks. A preview of OpenCode 2 has a version that begins with ``0.0.0-``."""
    major = version.partition(".")[0]
    is_one = major == "1" or (major == "0" and not version.startswith("0.0.0-"))
    return ONE if is_one else TWO
