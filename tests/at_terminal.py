"""Runs commands as a person does: in the foreground of a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def at_terminal() -> Iterator[dict[str, Any]]:
    """Options of ``subprocess`` for a command that has a terminal of its own until the block ends. Its standard input
    is what the caller says."""
    ours, theirs = pty.openpty()
    try:
        yield {"start_new_session": True, "preexec_fn": partial(fcntl.ioctl, theirs, termios.TIOCSCTTY, 0)}
    finally:
        os.close(ours)
        os.close(theirs)
