"""The sessions that the page has open: each is read once, beside the answers, and kept while somebody looks at it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.read.past.newest import Part, newest_part
from sidecar.read.past.records import Past
from sidecar.read.select import family_of, find_session
from streams.errors import StreamError
from streams.log.reader import LogReader
from streams.store import NOTHING

MOST_RECORDS: Final = 150_000
"""How many records of all sessions together stay in memory; the session that is looked at always does."""

SHORT: Final = 2000
"""A session with at most so many records is read before the first answer."""

IDLE_SECONDS: Final = 300.0
"""How long a session stays in memory that nobody looks at."""

REST_SECONDS: Final = 0.3
"""How long a session is not read after it was asked for, so that the first answers go first."""


@dataclass(slots=True)
class _Kept:
    past: Past
    reading: asyncio.Task[None]
    wanted: asyncio.Event
    """Set once an answer waits until the session is read."""
    part: Part | None = None
    """The newest part, as of the position ``head``, while the session is being read."""
    head: int = NOTHING
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Pasts:
    """The open sessions of one log. ``read`` counts the sessions that were read as a whole."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._sweep: asyncio.TimerHandle | None = None
        self.read = 0
        self.made: dict[Any, Any] = {}
        """What was made of them for an answer, to be used again."""

    async def whole(self, given: str) -> Past:
        """The session that ``given`` names, with all that it started. Raises ``SelectError``."""
        kept = await self._find(given)
        kept.wanted.set()
        await asyncio.shield(kept.reading)
        kept.part = None
        async with kept.lock:
            await kept.past.catch_up(self._reader)
        return kept.past

    async def newest(self, given: str) -> Past:
        """As ``whole``; but of a long session that is still being read, only the newest part (``Past.before``)."""
        kept = await self._find(given)
        if not kept.reading.done():
            family = kept.past.family
            if family.count > SHORT:
                async with kept.lock:
                    if (head := self._reader.head) != kept.head:
                        kept.part, kept.head = await newest_part(self._reader, kept.past), head
                    if kept.part is not None:
                        return kept.part
        return await self.whole(given)

    async def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        tasks = [kept.reading for kept in self._kept.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find(self, given: str) -> _Kept:
        loop = asyncio.get_running_loop()
        kept, key = self._kept.get(given), given
        if kept is None:
            stream, session = await find_session(self._reader, given)
            key = session or stream
            family = await family_of(self._reader, stream, session=session)
            kept = self._kept.get(key)
        if kept is None:
            past, wanted = Past(stream, key, family), asyncio.Event()
            kept = self._kept[key] = _Kept(past, loop.create_task(self._read(past, wanted)), wanted)
        self._kept.move_to_end(key)
        self._tidy()
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = loop.call_later(IDLE_SECONDS, self._drop)
        return kept

    def _drop(self) -> None:
        self._kept.clear()
        self.made.clear()

    def _tidy(self) -> None:
        """Forget the sessions that nobody has looked at for longest, if there are too many records."""
        while len(self._kept) > 1 and sum(len(kept.past.records) for kept in self._kept.values()) > MOST_RECORDS:
            _, kept = self._kept.popitem(last=False)
            if not kept.wanted.is_set():
                kept.reading.cancel()

    async def _read(self, past: Past, wanted: asyncio.Event) -> None:
        if past.family.count > SHORT:
            with suppress(TimeoutError):
                await asyncio.wait_for(wanted.wait(), REST_SECONDS)
        try:
            await past.catch_up(self._reader, lambda: asyncio.sleep(0))
        except StreamError:
            self._kept.pop(past.session, None)  # whoever asks next tries again
            raise
        self.read += 1
        self._tidy()
