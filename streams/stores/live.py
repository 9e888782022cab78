"""The live tail shared by all backends: replay from the log, then wait for the next commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from streams.store import NOTHING, Record


class LiveTail:
    """Wakes subscribers after each commit; subscribers read new records from ``recent`` or, if ``recent`` no longer has
    the records, from the log itself."""

    def __init__(
        self,
        read_all: Callable[[int], AsyncIterator[Record]],
        recent: Callable[[int], Sequence[Record] | None] = lambda after: None,
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

    async def follow(self, after: int = NOTHING) -> AsyncIterator[Record]:
        """Yield the records after ``after``, then new ones, until the store closes."""
        news = asyncio.Event()
        self._waiting.add(news)
        try:
            while True:
                news.clear()
                closed = self._closed
                while found := self._recent(after):
                    for record in found:
                        yield record
                    after = found[-1].position
                    await asyncio.sleep(0)
                if found is None:
                    async for record in self._read_all(after):
                        yield record
                        after = record.position
                if closed:
                    return
                await news.wait()
        finally:
            self._waiting.discard(news)
