"""Starting, stopping and idling of components."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from sidecar.components import wait_idle
from tests.sidecar.support import HANG_SECONDS


class Part:
    def __init__(self) -> None:
        self.is_owing = False
        self.asked = asyncio.Event()

    async def start(self, stack: AsyncExitStack) -> None: ...

    def owes(self) -> bool:
        self.asked.set()
        return self.is_owing


async def nothing() -> int:
    return 0


async def test_one_component_that_owes_keeps_the_sidecar() -> None:
    first, second = Part(), Part()
    second.is_owing = True
    idle = asyncio.create_task(wait_idle([first, second], 0.0, nothing))
    async with asyncio.timeout(HANG_SECONDS):
        for _ in range(5):
            second.asked.clear()
            await second.asked.wait()
        assert not idle.done()
        second.is_owing = False
        await idle


async def test_the_last_look_may_find_work_and_the_time_begins_again() -> None:
    found = [2, 1, 0]

    async def look() -> int:
        return found.pop(0)

    async with asyncio.timeout(HANG_SECONDS):
        await wait_idle([Part()], 0.0, look)
    assert found == []
