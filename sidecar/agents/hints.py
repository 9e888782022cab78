"""Stores hints, which only save time: snapshots, and positions in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from streams.errors import StreamError

log = logging.getLogger("sidecar.agents")


@contextmanager
def hinted(what: str) -> Iterator[None]:
    """Run a block that stores a hint. Because the log can do without, a disk error is only logged."""
    try:
        yield
    except (OSError, StreamError) as error:
        log.warning("%s was not saved: %s", what, error)
