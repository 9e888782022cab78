"""The points at which a test ends the process: every step between a message's arrival and its acknowledgement.

The builder of the runtime injects a ``Stop``, which does nothing outside of tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Point = Literal[
    "pulled",
    "received",
    "before-commit",
    "after-commit",
    "before-publish",
    "after-publish",
    "effect-started",
    "effect-done",
    "effect-recorded",
    "before-ack",
    "after-ack",
]

Stop = Callable[[Point], None]


def never(point: Point) -> None:
    """Do not stop anywhere."""
