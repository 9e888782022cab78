"""Work on threads, whichever task is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from streams.system.threads import in_thread


class Work:
    """Blocks a thread until it is released, and notes the order of events."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.order: list[str] = []

    def run(self) -> str:
        self.begun.set()
        assert self.go_on.wait(30)
        self.order.append("the thread ended")
        return "done"

    async def used(self, interrupt: Callable[[], None] | None = None) -> str:
        try:
            return await in_thread(self.run, interrupt=interrupt)
        finally:
            self.order.append("what it used is closed")


@pytest.mark.parametrize("times", [1, 3])
async def test_who_is_cancelled_waits_for_the_thread(times: int) -> None:
    work = Work()
    task = asyncio.create_task(work.used())
    await asyncio.to_thread(work.begun.wait, 30)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    work.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.order == ["the thread ended", "what it used is closed"]


def test_the_end_of_the_loop_waits_for_the_thread() -> None:
    """It cancels every task, so the wait for a thread must not be a task."""
    work = Work()
    threading.Timer(0.2, work.go_on.set).start()  # after the loop began to end

    async def leave_it_running() -> asyncio.Task[str]:
        task = asyncio.create_task(work.used())
        await asyncio.to_thread(work.begun.wait, 30)
        return task

    asyncio.run(leave_it_running())
    assert work.order == ["the thread ended", "what it used is closed"]
