"""This version, in one place, and which of two is newer."""

from __future__ import annotations

import re
from typing import Final

VERSION = "0.1.0"

_RELEASE: Final = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")


def is_newer(one: str, other: str) -> bool:
    """Whether ``one`` is a later release than ``other``. What does not begin with three numbers is never newer.

    Only the three numbers count: a shim and a sidecar of one release get on, whatever follows them.
    """
    first, second = _RELEASE.match(one), _RELEASE.match(other)
    if first is None or second is None:
        return False
    return tuple(map(int, first.groups())) > tuple(map(int, second.groups()))
