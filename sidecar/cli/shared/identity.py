"""The command line's clock and randomness, which are created here once and passed on."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams.identity import Identity


@cache
def own_identity() -> Identity:
    from streams.identity import system_identity

    return system_identity()
