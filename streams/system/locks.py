"""The one kind of lock between processes: ``flock`` on an open file, which ends with the process that holds it.

A process that only asks whether the lock is held takes it shared for an instant. The holder-to-be retries, so that such
a question never makes it fail.
"""

from __future__ import annotations

import fcntl
import time
from contextlib import suppress
from typing import Final

_TRIES: Final = 5
_PAUSE_SECONDS: Final = 0.02


def take(descriptor: int) -> bool:
    """Lock the open file until the descriptor is closed; false if another process, or another open file of this one,
    holds the lock. Waits at most a tenth of a second.

    Raises:
        OSError: the file system cannot lock this file.
    """
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def is_held(descriptor: int) -> bool:
    """True if another open file holds the lock now. If none does, take a shared lock, which lasts until the caller
    closes the descriptor.

    Raises:
        OSError: the file system cannot lock this file.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
