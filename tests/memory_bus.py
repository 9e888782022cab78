"""The event bus in memory, for tests that need no server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from streams.bus.contract import Again, Delivery, Handler, Outcome, Poison, dead_letter, settled
from streams.bus.headers import MESSAGE_ID, check_headers
from streams.bus.subjects import check_pattern, check_subject, matches
from streams.system.retry import Retry

STREAM = "memory"
"""The only queue."""


class MemoryEventBus:
    """``EventBus`` in memory: its messages are lost when the process ends. A message that nobody subscribes to waits in
    ``queue``, by sequence.
    """

    def __init__(self, retry: Retry = Retry(0.01, 0.01, attempts=5), *, max_inflight: int = 64) -> None:  # noqa: B008
        self.retry, self.max_inflight = retry, max_inflight
        self.queue: dict[int, Delivery] = {}
        self.free: set[int] = set()
        """Messages that no handler has and whose back-off is over."""
        self.news = asyncio.Condition()
        self._ids: dict[str, int] = {}
        self._last = 0

    async def publish(self, subject: str, headers: Mapping[str, str], body: bytes) -> int:
        known = self._ids.get(headers.get(MESSAGE_ID, ""))
        if known is not None:
            return known
        self._last += 1
        message = Delivery(check_subject(subject), check_headers(headers), body, STREAM, self._last, 1)
        self._ids |= {headers[MESSAGE_ID]: self._last} if MESSAGE_ID in headers else {}
        self.queue[self._last] = message
        await self.give_back(message)
        return message.sequence

    def subscribe(
        self,
        durable: str,
        patterns: Sequence[str],
        handle: Handler,
        retry: Retry | None = None,
        *,
        exclusive: bool = False,
    ) -> MemorySubscription:
        return MemorySubscription(self, durable, [check_pattern(each) for each in patterns], handle, retry)

    def stored(self, pattern: str) -> list[Delivery]:
        """The messages that nobody has handled, oldest first."""
        return [each for _, each in sorted(self.queue.items()) if matches(pattern, each.subject)]

    async def until_stored(self, pattern: str, count: int) -> list[Delivery]:
        """The messages that nobody has handled, once there are so many."""
        async with asyncio.timeout(20):
            while len(found := self.stored(pattern)) != count:
                await asyncio.sleep(0.001)
        return found

    async def give_back(self, message: Delivery) -> None:
        self.queue[message.sequence] = message
        self.free.add(message.sequence)
        async with self.news:
            self.news.notify_all()


class MemorySubscription:
    def __init__(
        self, bus: MemoryEventBus, durable: str, patterns: list[str], handle: Handler, retry: Retry | None
    ) -> None:
        self._bus, self._durable, self._patterns, self._handle = bus, durable, patterns, handle
        self._retry = retry or bus.retry
        self._tasks: set[asyncio.Task[None]] = set()
        self._taking: asyncio.Task[None] | None = None
        self._finishing = False
        self.is_ready, self.pending, self.problem = False, 0, ""
        self.counts: Counter[str] = Counter()

    @property
    def working(self) -> int:
        return len(self._tasks)

    async def run(self) -> None:
        try:
            self.is_ready = not self._finishing
            self._taking = asyncio.create_task(self._take_on())
            if self._finishing:
                self._taking.cancel()
            await asyncio.wait((self._taking,))
            while self._tasks:
                await asyncio.wait(list(self._tasks))
        finally:
            self.is_ready = False
            for task in (self._taking, *self._tasks):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def finish(self) -> None:
        self._finishing = True
        if self._taking is not None:
            self._taking.cancel()

    async def _take_on(self) -> None:
        while True:
            async with self._bus.news:
                await self._bus.news.wait_for(lambda: self._waiting() and len(self._tasks) < self._bus.max_inflight)
            sequence, *rest = self._waiting()
            self._bus.free.discard(sequence)
            self.pending = len(rest)
            self.counts["delivered"] += 1
            task = asyncio.create_task(self._work(self._bus.queue[sequence]))
            self._tasks.add(task)

    def _waiting(self) -> list[int]:
        queue = self._bus.queue
        return sorted(
            each for each in self._bus.free if any(matches(one, queue[each].subject) for one in self._patterns)
        )

    async def _work(self, delivery: Delivery) -> None:
        again = 0.0
        try:
            outcome = settled(await self._outcome(delivery), delivery, self._retry)
            self.counts[type(outcome).__name__.lower()] += 1
            if isinstance(outcome, Again):
                again = outcome.delay_s or 0.0
            else:
                if isinstance(outcome, Poison):
                    await self._bus.publish(*dead_letter(delivery, self._durable, outcome), delivery.body)
                del self._bus.queue[delivery.sequence]
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.discard(task)
            if delivery.sequence in self._bus.queue:
                tried = replace(delivery, attempt=delivery.attempt + 1)
                asyncio.get_running_loop().call_later(again, lambda: asyncio.ensure_future(self._bus.give_back(tried)))
            async with self._bus.news:
                self._bus.news.notify_all()

    async def _outcome(self, delivery: Delivery) -> Outcome:
        try:
            return await self._handle(delivery)
        except Exception:  # noqa: BLE001 - any error in a handler is a failed attempt
            return Again()
