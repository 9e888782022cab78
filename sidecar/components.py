"""The interface of a running sidecar's parts, so that ``app.py`` can start and stop a list of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol

POLL_SECONDS: Final = 0.05

LOOK_SECONDS: Final = 1.0
"""How often, in seconds, ``wait_idle`` asks the components whether they have work."""


class Component(Protocol):
    """A part of a running sidecar."""

    async def start(self, stack: AsyncExitStack) -> None:
        """Start the component; ``stack`` stops it, after everything that was started later."""
        ...

    def owes(self) -> bool:
        """True while the component has work that keeps an idle sidecar running."""
        ...


class Tasks(set[asyncio.Task[Any]]):
    """Tasks that run beside each other until they end or are cancelled."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    async def cancel(self, *more: asyncio.Task[Any]) -> None:
        """Cancel all of them, and ``more``, and wait for their ends."""
        tasks = (*more, *self)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def in_background(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` in a task until ``stack`` closes, which cancels the task and waits for its end."""
    task = asyncio.create_task(work)

    async def stop() -> None:
        task.cancel()
        await asyncio.wait((task,))

    stack.push_async_callback(stop)


async def until(condition: Callable[[], Any], seconds: float) -> bool:
    """Wait until ``condition()`` is true; return false if that did not happen within ``seconds``."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not condition():
        if loop.time() > end:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


async def wait_idle(
    components: Sequence[Component], idle_seconds: float, last_look: Callable[[], Awaitable[int]]
) -> None:
    """Return after ``idle_seconds`` in which no component owed anything.

    ``last_look`` is called just before returning. If ``last_look`` returns a number above 0, it found work, and the
    idle time starts again.
    """
    loop = asyncio.get_running_loop()
    idle_since = loop.time()

    def owing() -> bool:
        return any(component.owes() for component in components)

    while True:
        await asyncio.sleep(max(0.0, min(idle_since + idle_seconds - loop.time(), LOOK_SECONDS)))
        # Call `owing` again after the last look, because a peer may have connected during the look.
        if owing() or (loop.time() - idle_since >= idle_seconds and (await last_look() or owing())):
            idle_since = loop.time()
        elif loop.time() - idle_since >= idle_seconds:
            return
