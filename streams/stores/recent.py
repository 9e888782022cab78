"""The newest records in memory, so that following the log does not read back what was just written."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import islice
from threading import Lock
from typing import Final

import orjson

from streams.event import StreamEvent
from streams.store import Record
from streams.stores.plan import Placed

RECENT_BYTES: Final = 1024 * 1024
"""How many bytes of records are kept. A follower that is further behind reads the log itself."""

AT_ONCE: Final = 64
"""Maximum number of records that ``after`` returns. A slow follower holds no more than these, so it reads nearly all
records after a ``clear`` from the log, as they are then."""


class Recent:
    """The log's last records up to ``RECENT_BYTES``, without a gap. Any thread may call its methods."""

    def __init__(self) -> None:
        self._placed: deque[Placed] = deque()
        self._bytes = 0
        self._lock = Lock()

    def add(self, written: Collection[Placed]) -> None:
        """Keep the durable records of one commit, in the order of their positions, which have no gap."""
        with self._lock:
            for placed in islice(written, 1):
                if self._placed and placed.position != self._placed[-1].position + 1:
                    self._clear()
            self._placed.extend(written)
            self._bytes += sum([len(placed.encoded.canonical) for placed in written])
            while self._bytes > RECENT_BYTES:
                self._bytes -= len(self._placed.popleft().encoded.canonical)

    def forget(self, position: int) -> None:
        """Drop the records before a position, because every follower has got them."""
        with self._lock:
            while self._placed and self._placed[0].position < position:
                self._bytes -= len(self._placed.popleft().encoded.canonical)

    def clear(self) -> None:
        """Drop everything, because stored records were changed or removed."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        self._placed.clear()
        self._bytes = 0

    def after(self, position: int) -> list[Placed] | None:
        """The next records after a position, not yet decoded (see ``as_read``); empty if ``position`` is the last one.

        ``None`` if the next record is no longer in memory, so that the log must be read.
        """
        with self._lock:
            begin = position + 1 - self._placed[0].position if self._placed else -1
            if not 0 <= begin <= len(self._placed):
                return None
            return list(islice(self._placed, begin, begin + AT_ONCE))


def as_read(placed: Placed) -> Record:
    # Build the event from its stored form: the appended object may hold values that read back differently, and its
    # caller may still use it.
    event = StreamEvent.trusted(orjson.loads(placed.encoded.canonical), placed.encoded.canonical)
    return Record(event, placed.offset, placed.position, placed.hash.hex())


def as_appended(placed: Placed) -> Record:
    """The record with the event as it was appended. Costs little, for readers that look only at the position."""
    return Record(placed.encoded.event, placed.offset, placed.position, placed.hash.hex())
