"""The version of this program, and a comparison of versions."""

from __future__ import annotations

import re
from typing import Final

VERSION = "0.1.0"

_RELEASE: Final = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")


def is_newer(one: str, other: str) -> bool:
    """True if ``one`` is a later release than ``other``; false if one of the two does not begin with three numbers.

    Only these numbers count: a shim and a sidecar of the same release work together, whatever follows the numbers.
    """
    first, second = _RELEASE.match(one), _RELEASE.match(other)
    if first is None or second is None:
        return False
    return tuple(map(int, first.groups())) > tuple(map(int, second.groups()))
