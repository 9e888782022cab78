"""What each version of OpenCode cannot do for background work, and what that means for the user."""

from __future__ import annotations

from typing import Final

MEANINGS: Final = {
    "children": "background sessions are listed next to the session that started them, not below it",
    "reasons": "the model does not read why you refuse a permission",
    "toasts": "OpenCode shows no toast when background work starts or ends",
    "worktree_children": "background sessions with a worktree are listed next to the session that started them",
}
"""Everything that a host may lack, and what that means for the user."""

ONE: Final[frozenset[str]] = frozenset()
TWO: Final = frozenset({"children", "reasons", "toasts"})
"""What preview next-16350 lacks. Measured by ``tests/real/host_contract.py``."""
RELEASED: Final = frozenset({"toasts", "worktree_children"})
"""What the released versions of OpenCode 2 lack. These entries come from the source, because no program was available
to try."""


def lacks_of(version: str) -> frozenset[str]:
    """What a version of OpenCode lacks. The version of an OpenCode 2 preview begins with ``0.0.0-``."""
    if version.startswith("0.0.0-"):
        return TWO
    return ONE if version.partition(".")[0] in ("0", "1") else RELEASED


def is_only_read(version: str) -> bool:
    """Whether the entry for a version comes only from its source and was never tried."""
    return lacks_of(version) is RELEASED
