"""``sidecar.log``: the sidecar's own log file. The file is rotated, is readable only by the user, and never holds
payloads.

Only the process that holds the home's lock rotates the file, because two processes would overwrite each
other's files. A sidecar that could not start only appends a line.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from contextlib import ExitStack, suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import Final

from sidecar.home import Home
from sidecar.private_files import open_unfollowed

MAX_BYTES: Final = 1024 * 1024
"""Size at which the file is renamed to ``sidecar.log.1`` and a new one is started."""

OLDER_FILES: Final = 2
"""How many older files (``sidecar.log.1`` and so on) are kept."""


def log_to(home: Home, stack: ExitStack) -> None:
    """Log to the home's ``sidecar.log`` until ``stack`` is closed. The caller holds the home's lock.

    Raises:
        OSError: the file cannot be written, or is a symbolic link.
    """
    _attach(RotatedLog(home.log_path, maxBytes=MAX_BYTES, backupCount=OLDER_FILES), stack)


def note_failure(home: Home, error: Exception) -> None:
    """Log why a sidecar could not start or continue, if the home can be written."""
    with suppress(OSError), ExitStack() as stack:
        _attach(RotatedLog(home.log_path), stack)  # without a limit, it is not rotated
        logging.getLogger("sidecar").error("could not serve: %s", error if str(error) else type(error).__name__)


_OUTCOME: Final = re.compile(
    r"^(\S+ [\d:]+)\S* "
    r"(?:ERROR sidecar: (?:could not serve|stopped): (.*)|INFO sidecar: (?:serving on port|stopped while starting).*)$",
    re.MULTILINE,
)
_LOOKED_AT: Final = 256 * 1024
"""How many bytes at the end of the log file are searched for the last start. Few lines follow a failure."""


def failure(home: Home) -> tuple[str, str] | None:
    """When and why the last sidecar in ``sidecar.log`` could not start or go on; ``None`` if it could, or is not in the
    file."""
    try:
        with open(home.log_path, "rb", opener=open_unfollowed) as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _LOOKED_AT, 0))
            text = file.read(_LOOKED_AT).decode("utf-8", "replace")
    except OSError:
        return None
    outcomes = _OUTCOME.findall(text)
    return outcomes[-1] if outcomes and outcomes[-1][1] else None


class RotatedLog(RotatingFileHandler):
    """Opens the file with mode 0600 whatever the umask, and never through a symbolic link, even after a rotation."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", errors="backslashreplace", opener=_private)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Print no traceback for a line that cannot be written: a sidecar that exits for this says why on stderr."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        """Ignore the rest of a line that could not be written."""
        with suppress(OSError):
            super().close()


class OneLine(logging.Formatter):
    """Escapes unprintable characters, because text from a peer must neither forge a line nor control a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in super().format(record))


def _private(path: str, flags: int) -> int:
    fd = open_unfollowed(path, flags)
    os.fchmod(fd, 0o600)
    return fd


def _attach(handler: logging.Handler, stack: ExitStack) -> None:
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("sidecar")
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    stack.callback(handler.close)
    stack.callback(root.removeHandler, handler)
