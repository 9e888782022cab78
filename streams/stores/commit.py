"""Group commit: many appends, one sync.

There is no timer: appends that arrive during a commit wait, and together they form the next commit, up to
``MAX_COMMIT_BYTES``. A lone append is committed at once.

A slow disk must not block the event loop, so commits run on a writer thread. But handing work to a thread and back
takes longer than a sync on a fast disk. So while nearly every sync ends within ``FAST_SECONDS``, small commits run on
the loop itself, and the appends of one turn of the loop share a commit. Two slower syncs close together, or one sync
that really blocked the loop, send commits back to the thread until the disk has been fast for a while (``Trust``).

A commit that fails with an ``OSError`` is fail-stop: its appends and all later ones raise ``StoreFailed``, and nothing
more is retried or acknowledged. A writer that lost its lock is stopped in the same way: ``check`` runs before every
write (``StoreFenced``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Lock, Thread
from typing import Final, TypeVar

from streams.errors import StoreClosed, StoreFailed, StoreFenced, StoreUnavailable, StreamError
from streams.store import Record
from streams.stores.plan import Request

MAX_COMMIT_BYTES = 4 * 1024 * 1024
"""Maximum number of bytes that one commit writes, so that a burst does not delay every ack. A larger append is
committed alone."""

Result = TypeVar("Result")

FAST_SECONDS: Final = 0.001
STALL_SECONDS: Final = 0.01

MAX_ON_LOOP_BYTES: Final = 256 * 1024
"""Larger queues go to the thread, because planning and writing them would block the loop, however fast the disk is."""


@dataclass(slots=True)
class Pending:
    """An append in progress; the writer thread sets ``outcome``, and the loop sets the future."""

    request: Request
    size: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Record]]
    outcome: list[Record] | BaseException | None = None

    def settle(self) -> None:
        """Give the outcome to the waiting caller, which may have been cancelled in the meantime."""
        if self.future.done():
            return
        if isinstance(self.outcome, BaseException):
            self.future.set_exception(self.outcome)
        elif self.outcome is not None:
            self.future.set_result(self.outcome)


class Trust:
    """Decides whether the disk is fast enough for the loop to wait for it, using a count of slow syncs that decays over
    time.
    """

    LIMIT = 16
    SLOW, STALL = 8, 48

    def __init__(self) -> None:
        self._doubt = 2 * self.LIMIT

    def note(self, seconds: float) -> None:
        if seconds <= FAST_SECONDS:
            self._doubt = max(0, self._doubt - 1)
        else:
            self._doubt = min(self._doubt + (self.STALL if seconds > STALL_SECONDS else self.SLOW), 4 * self.LIMIT)

    def __bool__(self) -> bool:
        return self._doubt < self.LIMIT


class GroupCommit:
    """One writer thread in front of a store's ``commit``.

    ``commit(pendings)`` runs on the writer thread or on the loop, never on both at once. ``commit`` sets every
    ``outcome`` (records, or the ``StreamError`` that refuses that append). When all records are durable, it returns the
    seconds that the disk took. An ``OSError`` raised by ``commit`` stops the writer.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Pending]], float],
        abandon: Callable[[], None],
        name: str,
    ) -> None:
        self._commit, self._abandon = commit, abandon
        self.check: Callable[[], None] = lambda: None
        """Raises ``StoreFenced`` if this process may no longer write; the owner of the lock sets it."""
        self._queue: deque[Pending] = deque()
        self._waiting_bytes = 0
        self._lock = Lock()
        self._wake = Condition(self._lock)
        self._committing = Lock()
        """Held from the moment when a group is taken until the group is written, so that writes keep the order of
        submission.
        """
        self._turnstile = Lock()
        """Held while waiting for ``_committing`` between two commits. Otherwise, the next commit might always get
        ``_committing`` first."""
        self._stop: StoreUnavailable | None = None
        self._trust = Trust()
        self._last_group = 1
        self._flush_is_due = False
        self._thread = Thread(target=self._run, name=f"log-writer-{name}", daemon=True)
        self._thread.start()

    async def submit(self, request: Request) -> list[Record]:
        """Queue an append and wait until it is durable.

        Cancelling ends the wait, not the write.

        Raises:
            StoreFailed, StoreClosed: nothing was written.
            Conflict: the append contradicts what the log holds.
        """
        loop = asyncio.get_running_loop()
        size = sum([len(encoded.canonical) for encoded in request.batch])
        pending = Pending(request, size, loop, loop.create_future())
        with self._lock:
            if self._stop is not None:
                raise self._refusal()
            self._queue.append(pending)
            self._waiting_bytes += size
        if not self._flush_is_due:
            self._flush_is_due = True
            loop.call_soon(self._flush)
            if self._last_group == 1 and self._is_for_the_loop():
                # No other append shared the last commit, so do not wait for others to share this one.
                self._commit_on_loop()
        return await pending.future

    def _is_for_the_loop(self) -> bool:
        return bool(self._trust) and self._waiting_bytes <= MAX_ON_LOOP_BYTES

    def _flush(self) -> None:
        """Commit the appends that were submitted in this turn of the event loop."""
        self._flush_is_due = False
        if self._is_for_the_loop():
            self._commit_on_loop()
        else:
            with self._wake:
                self._wake.notify()

    def _commit_on_loop(self) -> None:
        if not self._queue:
            return
        if self._turnstile.locked() or not self._committing.acquire(blocking=False):
            with self._wake:
                self._wake.notify()
            return
        group = self._take()
        try:
            self._last_group = len(group)
            self._write(group)
        finally:
            self._committing.release()
        self._hand_back(group, asyncio.get_running_loop())

    def exclusively(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` on the calling thread, not the loop's, while no commit is running; appends wait for it.

        Raises:
            StoreFailed, StoreClosed: the writer has stopped; ``work`` was not run.
        """
        with self._turnstile, self._committing:
            with self._lock:
                if self._stop is not None:
                    raise self._refusal()
            self.check()
            return work()

    async def close(self) -> None:
        """Finish what was submitted, then end the thread. Idempotent."""
        await asyncio.to_thread(self.end)

    def end(self) -> None:
        """``close``, blocking."""
        with self._wake:
            if self._stop is None:
                self._stop = StoreClosed("the store is closed", "open it again to write")
            self._wake.notify()
        self._thread.join()

    def _take(self) -> list[Pending]:
        group: list[Pending] = []
        size = 0
        with self._lock:
            while self._queue and (not group or size + self._queue[0].size <= MAX_COMMIT_BYTES):
                group.append(self._queue.popleft())
                size += group[-1].size
            self._waiting_bytes -= size
        return group

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and self._stop is None:
                    self._wake.wait()
                if not self._queue:
                    return
            with self._turnstile:
                pass
            with self._committing:
                group = self._take()
                self._last_group = len(group)
                if group:
                    self._write(group)
            self._hand_back(group, None)

    def _write(self, group: list[Pending]) -> None:
        try:
            self.check()
            seconds = self._commit(group)
        except OSError as error:
            self._fail(group, error)
        except Exception as error:  # noqa: BLE001 - a planned but unwritten state must not survive
            self._fail(group, error)
        else:
            self._trust.note(seconds)

    def _fail(self, group: list[Pending], error: Exception) -> None:
        hint = "free disk space or repair the disk, then start the sidecar again"
        if isinstance(error, StoreUnavailable) and error.hint:
            reason, hint = error.reason, error.hint  # the error's own hint fits, because the disk is not full
        elif isinstance(error, StreamError):
            reason = str(error)
        else:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
        failure = StoreFailed(
            f"the log could not be written ({reason}) and has stopped",
            f"{hint}: nothing that was acknowledged is lost",
        )
        try:
            self.check()
        except (StoreFenced, OSError) as lost:
            # Do not cut the end of the log, because another process may have written there in the meantime.
            may_abandon = False
            failure = lost if isinstance(lost, StoreFenced) else failure
        else:
            may_abandon = True
        with self._wake:
            self._stop = failure
            group.extend(self._queue)
            self._queue.clear()
            self._waiting_bytes = 0
        for pending in group:
            pending.outcome = self._refusal()
        if may_abandon:
            self._abandon()

    def _refusal(self) -> StoreUnavailable:
        """Make a new exception each time, because a shared one would collect every caller's traceback."""
        assert self._stop is not None
        return type(self._stop)(self._stop.reason, self._stop.hint)

    def _hand_back(self, group: list[Pending], here: asyncio.AbstractEventLoop | None) -> None:
        """Wake the callers, each on its own loop. ``here`` is the loop that is running this method; ``None`` on the
        writer thread."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Pending]] = {}
        for pending in group:
            by_loop.setdefault(pending.loop, []).append(pending)
        for loop, pendings in by_loop.items():
            if loop is here:
                self._settle(pendings)
                continue
            # A closed event loop has no callers left, and its error must not end this thread.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._settle, pendings)

    def _settle(self, pendings: list[Pending]) -> None:
        for pending in pendings:
            pending.settle()
