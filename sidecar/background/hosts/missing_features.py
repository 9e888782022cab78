"""What each version of OpenCode cannot do for background work, and what that means for the user."""

from __future__ import annotations

from typing import Final

MEANINGS: Final = {
    "children": "background sessions are listed next to the session that started them, not below it",
    "toasts": "nobody can tell whether you saw a toast, so alerts go to the channels of `[notify]` at once",
}
"""Everything that a host may lack, and what that means for the user."""

ONE: Final[frozenset[str]] = frozenset()
TWO: Final = frozenset({"children", "toasts"})
"""What OpenCode 2 lacks. Measured on 2.0.15 by ``tests/real/host_contract.py``.

A new session has no parent, whatever the request says. A session can be imported as a child, but then the service does
not continue it after a restart, and it may start no subagents.
"""


def lacks_of(version: str) -> frozenset[str]:
    return ONE if version.partition(".")[0] in ("0", "1") else TWO
