"""New records as they become durable, by watching the log's files: no link to the sidecar is needed.

So it continues while the sidecar is killed and comes back, and begins before
the log exists.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, current_thread, main_thread
from types import FrameType

from streams.log.reader import LogReader
from streams.store import NOTHING, Record

LOOK_AGAIN_MS = 2000
"""Where the system tells of no change (network disks, a directory that was replaced), look this often."""

STEP_MS = 50
"""The watcher's own thread wakes this often: at every millisecond it takes two percent of a processor."""


async def follow(store: Path, *, after: int = NOTHING) -> AsyncIterator[Record]:
    """Every record after position ``after``, then each new one, without end; cancelling it is safe.

    Raises:
        CorruptLog: a record is damaged; what came before was yielded.
    """
    reader = LogReader(store)
    with _interrupts() as interrupted:
        async for _ in _changes(store):
            if interrupted.is_set():
                # The watcher sometimes takes the cancelling that Ctrl-C brings for its own, and continues.
                raise asyncio.CancelledError
            if reader.head > after:
                async for record in reader.read_all(after=after):
                    yield record
                    after = record.position


@contextmanager
def _interrupts() -> Iterator[Event]:
    """Set from the first Ctrl-C on, next to what that does anyway."""
    came, before = Event(), signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(before):
        yield came
        return

    def note(number: int, frame: FrameType | None) -> None:
        came.set()
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


async def _changes(store: Path) -> AsyncIterator[None]:
    """Says when to look: at once, and whenever something below ``store`` may have changed."""
    from watchfiles import awatch

    yield
    while True:
        # A directory that is not there cannot be watched: its nearest parent tells of its making.
        watched = store
        while not watched.is_dir():
            watched = watched.parent
        async for _ in awatch(
            watched,
            debounce=STEP_MS,
            step=STEP_MS,
            rust_timeout=LOOK_AGAIN_MS,
            yield_on_timeout=True,
            recursive=watched == store,
            watch_filter=None,
        ):
            yield
            # One look at a directory costs less than the hop to a thread that would make it "async".
            if not watched.is_dir() or (watched != store and store.is_dir()):  # noqa: ASYNC240
                break
