"""The live tail shared by all backends: replay from the log, then wait for the next commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from streams.store import NOTHING, Record, Wanted, every_event
from streams.stores.plan import Placed
from streams.stores.recent import as_read

PAUSE_EVERY: Final = 64
"""After this many records from memory, a subscriber lets other tasks run."""


class LiveTail:
    """Wakes subscribers after each commit; subscribers read new records from ``recent`` or, if ``recent`` no longer has
    the records, from the log itself."""

    def __init__(
        self,
        read_all: Callable[[int], AsyncIterator[Record]],
        recent: Callable[[int], Sequence[Placed] | None] = lambda after: None,
    ) -> None:
        self._read_all, self._recent = read_all, recent
        self._waiting: set[asyncio.Event] = set()
        self._closed = False

    def notify(self) -> None:
        """Signal that there are new durable records. Call this on the event loop."""
        for event in self._waiting:
            event.set()

    def close(self) -> None:
        """End every subscription once it has all durable records."""
        self._closed = True
        self.notify()

    async def follow(self, after: int = NOTHING, wanted: Wanted = every_event) -> AsyncIterator[Record]:
        """Yield the records after ``after``, then new ones, until the store closes. See ``StreamStore.subscribe``."""
        news = asyncio.Event()
        self._waiting.add(news)
        try:
            while True:
                news.clear()
                closed = self._closed
                yielded = 0
                while found := self._recent(after):
                    for placed in found:
                        # Ask before decoding, which costs much more, and ask only now, because what the subscriber does
                        # with one record may change what it wants next.
                        if placed is found[-1] or wanted(placed.encoded.event):
                            yield as_read(placed)
                            yielded += 1
                            if yielded % PAUSE_EVERY == 0:
                                await asyncio.sleep(0)
                    after = found[-1].position
                if found is None:
                    async for record in self._read_all(after):
                        yield record
                        after = record.position
                if closed:
                    return
                await news.wait()
        finally:
            self._waiting.discard(news)
