"""Tracks which items of a link are finished, for the sidecar's cumulative acks. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

from bridge.opencode.link.protocol import WindowError

DEFAULT_WINDOW: Final = 512
"""Maximum number of unacknowledged items that a shim keeps in flight."""


class AckWindow:
    """Which received items are finished, and up to which seq all received items are finished.

    ``acked`` is the highest received seq up to which everything received is
    finished. A gap in the sequence numbers means that the shim lost items; the next
    item reports it. ``acked`` moves past the gap once that item is finished, never before.
    """

    def __init__(self, acked: int = 0, window: int = DEFAULT_WINDOW) -> None:
        self.acked = acked
        self.received = acked
        self.window = window
        self._order: deque[int] = deque()  # received seqs above ``acked``, in ascending order
        self._done: set[int] = set()  # the seqs in ``_order`` that are finished

    @property
    def unacked(self) -> int:
        return len(self._order)

    def begin(self, seq: int, count: int = 1) -> int:
        """Take ``count`` items, starting at ``seq``; return how many of the first items were already finished.

        Raises:
            WindowError: a seq is neither new nor finished (``protocol``), or more than twice the window would be
                unacknowledged (``window``). Nothing was taken.
        """
        known = min(count, max(0, self.received - seq + 1))
        for again in range(max(seq, self.acked + 1), seq + known):
            if again not in self._done:
                raise WindowError("protocol", f"seq {again} came after seq {self.received}")
        unacked = len(self._order) + count - known
        if unacked > 2 * self.window:
            raise WindowError("window", f"{unacked} items would be unacknowledged; the window is {self.window}")
        if known < count:
            self._order.extend(range(seq + known, seq + count))
            self.received = seq + count - 1
        return known

    def finish(self, seq: int) -> None:
        """Mark ``seq`` as durable or as producing no event. Idempotent.

        Raises:
            ValueError: ``seq`` was never begun.
        """
        if seq <= self.acked:
            return
        if seq > self.received:
            raise ValueError(f"seq {seq} was never received (last: {self.received})")
        self._done.add(seq)
        while self._order and self._order[0] in self._done:
            self.acked = self._order.popleft()
            self._done.discard(self.acked)
