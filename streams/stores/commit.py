"""Group commit: many appends, one writer thread, one sync.

There is no timer: while a commit runs, what arrives waits, and all of it forms
the next one, up to ``MAX_COMMIT_BYTES``. A lone append is committed at once.
The event loop never waits for the disk; only the caller of ``append`` does.

A commit that fails with an ``OSError`` is fail-stop: its appends and all later
ones raise ``StoreFailed``, nothing is retried, nothing more is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread

from streams.errors import StoreClosed, StoreFailed, StoreUnavailable
from streams.store import Record
from streams.stores.plan import Request

MAX_COMMIT_BYTES = 4 * 1024 * 1024
"""What one commit writes at most, so that a burst does not hold every ack; one larger append goes alone."""


@dataclass(slots=True)
class Pending:
    """An append on its way; ``outcome`` is set by the writer thread, the future by the loop."""

    request: Request
    size: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Record]]
    outcome: list[Record] | BaseException | None = None

    def settle(self) -> None:
        """Hand the outcome to the waiting caller, who may have been cancelled meanwhile."""
        if self.future.done():
            return
        if isinstance(self.outcome, BaseException):
            self.future.set_exception(self.outcome)
        elif self.outcome is not None:
            self.future.set_result(self.outcome)


class GroupCommit:
    """One writer thread in front of a backend's ``commit``.

    ``commit(pendings)`` runs on the writer thread. It sets every ``outcome``
    (records, or the ``StreamError`` that refuses that append) and returns only
    when all of them are durable. An ``OSError`` from it stops the writer.
    ``settled`` runs on the loop after the callers were answered.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Pending]], None],
        settled: Callable[[], None],
        abandon: Callable[[], None],
        name: str,
    ) -> None:
        self._commit, self._settled, self._abandon = commit, settled, abandon
        self._queue: deque[Pending] = deque()
        self._wake = Condition()
        self._stop: StoreUnavailable | None = None
        self._thread = Thread(target=self._run, name=f"log-writer-{name}", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> StoreFailed | None:
        """Why the writer stopped for good, or ``None``."""
        return self._stop if isinstance(self._stop, StoreFailed) else None

    async def submit(self, request: Request) -> list[Record]:
        """Queue an append and wait until it is durable.

        Cancelling stops the waiting, not the write.

        Raises:
            StoreFailed, StoreClosed: nothing was written.
            Conflict: the plan was refused.
        """
        loop = asyncio.get_running_loop()
        size = sum(len(encoded.canonical) for encoded in request.batch)
        pending = Pending(request, size, loop, loop.create_future())
        with self._wake:
            if self._stop is not None:
                raise self._refusal()
            self._queue.append(pending)
            self._wake.notify()
        return await pending.future

    async def close(self) -> None:
        """Finish what was submitted, then end the thread. Idempotent."""
        with self._wake:
            if self._stop is None:
                self._stop = StoreClosed("the store is closed", "open it again to write")
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _take(self) -> list[Pending]:
        """Everything that waits, up to the size limit; empty when the writer must end."""
        with self._wake:
            while not self._queue and self._stop is None:
                self._wake.wait()
            group: list[Pending] = []
            size = 0
            while self._queue and (not group or size + self._queue[0].size <= MAX_COMMIT_BYTES):
                group.append(self._queue.popleft())
                size += group[-1].size
            return group

    def _run(self) -> None:
        while group := self._take():
            try:
                self._commit(group)
            except OSError as error:
                self._fail(group, error)
            except Exception as error:  # noqa: BLE001 - a planned but unwritten state must not live on
                self._fail(group, error)
            self._hand_back(group)

    def _fail(self, group: list[Pending], error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
        failure = StoreFailed(
            f"the log could not be written ({reason}) and has stopped",
            "free disk space or repair the disk, then start again: nothing that was acknowledged is lost",
        )
        with self._wake:
            self._stop = failure
            group.extend(self._queue)
            self._queue.clear()
        for pending in group:
            pending.outcome = self._refusal()
        self._abandon()

    def _refusal(self) -> StoreUnavailable:
        """A new exception each time: one raised for many callers would collect all their tracebacks."""
        assert self._stop is not None
        return type(self._stop)(self._stop.reason, self._stop.hint)

    def _hand_back(self, group: list[Pending]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Pending]] = {}
        for pending in group:
            by_loop.setdefault(pending.loop, []).append(pending)
        for loop, pendings in by_loop.items():
            # A loop that was closed has no callers left, and closing it must not end this thread.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._settle, pendings)

    def _settle(self, pendings: list[Pending]) -> None:
        for pending in pendings:
            pending.settle()
        self._settled()
