"""``sidecar.log``: the sidecar's own log, rotated, the user's alone, never payloads.

Only the process that holds the home's lock rotates it. Others, which could not
start, append a line: two that rotate the same file would overwrite each other's.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from contextlib import ExitStack, suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import Final, NamedTuple

from sidecar.config import LogConfig
from sidecar.home import Home


def log_to(home: Home, stack: ExitStack, config: LogConfig) -> None:
    """Log to the home's ``sidecar.log`` until ``stack`` is closed. The caller holds the home's lock.

    Raises:
        OSError: the file cannot be written, or is a symbolic link.
    """
    _attach(RotatedLog(home.log_path, maxBytes=config.max_bytes, backupCount=config.older_files), stack)


def note_failure(home: Home, error: Exception) -> None:
    """Write why a sidecar could not start or continue into its log, if there is a home to write into."""
    with suppress(OSError), ExitStack() as stack:
        _attach(_Appending(home.log_path), stack)
        logging.getLogger("sidecar").error("could not serve: %s", error if str(error) else type(error).__name__)


class FailedStart(NamedTuple):
    """A start of a sidecar that came to nothing: when, in the log's own words, and why."""

    when: str
    reason: str


_OUTCOME: Final = re.compile(
    r"^(\S+ [\d:]+)\S* (?:ERROR sidecar: could not serve: (.*)|INFO sidecar: serving on port .*)$", re.MULTILINE
)
_LOOKED_AT: Final = 256 * 1024
"""Bytes at the end of the log in which the last start is looked for: after a failed one hardly a line follows."""


def failed_start(home: Home) -> FailedStart | None:
    """The last start in the log, if it failed; ``None`` once a later one served, or without one."""
    try:
        # O_NONBLOCK: a pipe put in its place must not hang us.
        descriptor = os.open(home.log_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _LOOKED_AT, 0))
            text = file.read(_LOOKED_AT).decode("utf-8", "replace")
    except OSError:
        return None
    outcomes = _OUTCOME.findall(text)
    return FailedStart(*outcomes[-1]) if outcomes and outcomes[-1][1] else None


class _Private:
    """Opens the file with mode 0600 regardless of the umask, and never through a link; also after a rotation."""

    baseFilename: str  # noqa: N815 - the name that logging gave it

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", errors="backslashreplace", opener=_private)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """A line that finds no room is not told on stderr, with a traceback: who ends for that reason says it there."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)  # type: ignore[misc] # of the handler that this is mixed into

    def close(self) -> None:
        """What is left of a line that found no room is not a failure of what is being ended."""
        with suppress(OSError):
            super().close()  # type: ignore[misc] # of the handler that this is mixed into


class OneLine(logging.Formatter):
    """A peer's words (a version, a name) can neither forge a line nor drive the terminal that shows the file."""

    def format(self, record: logging.LogRecord) -> str:
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in super().format(record))


def _private(path: str, flags: int) -> int:
    # O_NONBLOCK: a pipe put in its place must not hang us.
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    os.fchmod(fd, 0o600)
    return fd


class _Appending(_Private, logging.FileHandler):
    pass


class RotatedLog(_Private, RotatingFileHandler):
    """The log of the process that holds the lock."""


def _attach(handler: logging.Handler, stack: ExitStack) -> None:
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("sidecar")
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    stack.callback(handler.close)
    stack.callback(root.removeHandler, handler)
