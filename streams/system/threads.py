"""Runs a store's long work on threads: one piece at a time, or each piece to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Event
from typing import Any, TypeVar

from streams.errors import StoreClosed

Result = TypeVar("Result")


class InTurn:
    """Runs blocking work on threads, one piece at a time.

    Cancelling the caller ends the wait, not the work.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[object]] = set()
        self._closing = Event()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` in its turn.

        Raises:
            StoreClosed: the store is closed, or was closed before the work was done.
        """
        self.check()
        task = asyncio.ensure_future(self._locked(work))
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def check(self) -> None:
        """Raise ``StoreClosed`` if the store is closing. Work calls this between its steps, to stop there."""
        if self._closing.is_set():
            raise StoreClosed("the store is closed", "open it again to finish the interrupted work")

    async def close(self) -> None:
        """Stop running work at its next step, and wait until it has stopped. Idempotent."""
        self._closing.set()
        if self._running:
            await asyncio.wait(set(self._running))

    async def _locked(self, work: Callable[[], Result]) -> Result:
        async with self._lock:
            self.check()
            return await asyncio.to_thread(work)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # mark the exception as retrieved, because asyncio would log it if no caller is waiting


async def in_thread(work: Callable[..., Result], *args: Any, interrupt: Callable[[], None] | None = None) -> Result:
    """Like ``asyncio.to_thread``, but a cancelled caller waits for the work to end, and may then close whatever the
    work used.

    Closing a file or a database connection while a thread is using it ends the process or, worse, writes to another
    file. ``interrupt`` makes long work end soon.
    """
    # Use a future instead of a task, because ending the loop cancels every task, while the thread would keep running.
    call = partial(copy_context().run, work, *args)
    return await to_its_end(asyncio.get_running_loop().run_in_executor(None, call), interrupt)


async def to_its_end(work: Awaitable[Result], interrupt: Callable[[], None] | None = None) -> Result:
    """Await short work that returns what it opened; a cancelled caller waits, too."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if interrupt is not None:
            interrupt()
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # mark the exception as retrieved, because no caller is left to receive it
        raise
