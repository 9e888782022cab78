"""Runs commands as a person does: in the foreground of a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def at_terminal(typed: str = "") -> Iterator[dict[str, Any]]:
    """Options of ``subprocess`` for a command that has a terminal of its own until the block ends. It reads what was
    typed there, or else nothing."""
    ours, theirs = pty.openpty()
    os.write(ours, typed.encode())
    options = {"start_new_session": True, "preexec_fn": partial(fcntl.ioctl, theirs, termios.TIOCSCTTY, 0)}
    try:
        yield {**options, "stdin": theirs if typed else subprocess.DEVNULL}
    finally:
        os.close(ours)
        os.close(theirs)
