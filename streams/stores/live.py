"""The live tail: replay from the log, then wait for the next commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from streams.store import NOTHING, Record, Wanted, every_event
from streams.stores.plan import Placed
from streams.stores.recent import Recent, as_appended, as_read

PAUSE_EVERY: Final = 64
"""After this many records from memory, a subscriber lets other tasks run."""

REST_SECONDS: Final = 0.005
"""How long a subscriber rests after it found nothing that it wants. Waking it after each of many single commits would
cost about 6 % of the hooks that can be captured in a second."""


class LiveTail:
    """Wakes subscribers after each commit; subscribers read new records from ``recent`` or, if ``recent`` no longer has
    the records, from the log itself."""

    def __init__(
        self,
        read_all: Callable[[int], AsyncIterator[Record]],
        recent: Callable[[], Recent] | None = None,
    ) -> None:
        self._read_all, self._recent = read_all, recent
        self._waiting: dict[asyncio.Event, int] = {}
        """Maps the event that wakes a subscriber to the position of the last record that the subscriber has got."""
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
        self._waiting[news] = after
        try:
            while True:
                news.clear()
                closed = self._closed
                yielded, useful = 0, False
                while found := self._recent_after(after):
                    for placed in found:
                        # Ask before decoding, which costs much more, and ask only now, because what the subscriber does
                        # with one record may change what it wants next.
                        if wanted(placed.encoded.event):
                            useful = True
                            yield as_read(placed)
                        elif placed is found[-1]:
                            yield as_appended(placed)
                        else:
                            continue
                        yielded += 1
                        if yielded % PAUSE_EVERY == 0:
                            await asyncio.sleep(0)
                    after = self._waiting[news] = found[-1].position
                if found is None:
                    useful = True
                    async for record in self._read_all(after):
                        yield record
                        after = self._waiting[news] = record.position
                if closed:
                    return
                if not useful:
                    await asyncio.sleep(REST_SECONDS)
                await news.wait()
        finally:
            del self._waiting[news]

    def _recent_after(self, position: int) -> Sequence[Placed] | None:
        if self._recent is None:
            return None
        recent = self._recent()
        recent.forget(min(self._waiting.values()))
        return recent.after(position)
