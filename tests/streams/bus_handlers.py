"""Handlers for the tests of event buses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streams.bus.contract import Delivery, Redelivery

HANG_S = 20
"""When a test is taken to hang."""

AT_ONCE = Redelivery(max_deliver=3, backoff_s=())


class Inbox:
    """A handler that keeps its messages; ``fails`` says which attempt raises which error."""

    def __init__(self, fails: Callable[[Delivery], BaseException | None] = lambda delivery: None) -> None:
        self.got: list[Delivery] = []
        self.ended = 0
        self._fails = fails
        self._changed = asyncio.Condition()

    async def __call__(self, delivery: Delivery) -> None:
        self.got.append(delivery)
        error = self._fails(delivery)
        async with self._changed:
            self._changed.notify_all()
        self.ended += 1
        if error is not None:
            raise error

    async def wait(self, count: int) -> list[Delivery]:
        """Wait for ``count`` deliveries."""
        async with asyncio.timeout(HANG_S), self._changed:
            await self._changed.wait_for(lambda: len(self.got) >= count)
        return self.got

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.got]


class Gate:
    """A handler that blocks until it is released."""

    def __init__(self) -> None:
        self.inside: list[bytes] = []
        self.left: list[bytes] = []
        self.open = asyncio.Event()
        self._entered = asyncio.Event()
        self._leaving = asyncio.Condition()

    async def __call__(self, delivery: Delivery) -> None:
        self.inside.append(delivery.body)
        self._entered.set()
        await self.open.wait()
        self.left.append(delivery.body)
        async with self._leaving:
            self._leaving.notify_all()

    async def wait(self) -> None:
        """Wait until a message is inside."""
        async with asyncio.timeout(HANG_S):
            await self._entered.wait()

    async def wait_left(self, count: int) -> None:
        """Wait until ``count`` messages are through."""
        async with asyncio.timeout(HANG_S), self._leaving:
            await self._leaving.wait_for(lambda: len(self.left) >= count)
