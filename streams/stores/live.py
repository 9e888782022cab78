"""The live tail shared by all backends: replay from the log, then wait for the next commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from streams.store import NOTHING, Record


class LiveTail:
    """Wakes subscribers after each commit; they read new records from the log itself."""

    def __init__(self, read_all: Callable[[int], AsyncIterator[Record]]) -> None:
        self._read_all = read_all
        self._waiting: set[asyncio.Event] = set()
        self._closed = False

    def notify(self) -> None:
        """Signal new durable records; call on the loop."""
        for event in self._waiting:
            event.set()

    def close(self) -> None:
        """End every subscription once it has all durable records."""
        self._closed = True
        self.notify()

    async def follow(self, after: int = NOTHING) -> AsyncIterator[Record]:
        """Yield those after ``after``, then new ones, until the store closes."""
        news = asyncio.Event()
        self._waiting.add(news)
        try:
            while True:
                news.clear()
                closed = self._closed
                async for record in self._read_all(after):
                    yield record
                    after = record.position
                if closed:
                    return
                await news.wait()
        finally:
            self._waiting.discard(news)
