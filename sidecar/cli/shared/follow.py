"""Follow new records by watching the log's files, without a link to the sidecar.

Following continues while the sidecar is being killed and restarted, and may begin before the log exists.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, current_thread, main_thread
from types import FrameType

from sidecar.cli.shared.command import note
from streams.log.reader import LogReader
from streams.store import NOTHING, Record

POLL_S = 0.25
"""How often to look for changes, in seconds, while the system cannot report any."""

LOOK_AGAIN_MS = 2000
"""How often to look for changes, in ms, if the system reports none (network disks, a replaced directory)."""

STEP_MS = 50
"""How often the watcher's thread wakes, in ms. Waking every millisecond would take two percent of a processor."""


async def follow(store: Path, *, after: int = NOTHING) -> AsyncIterator[Record]:
    """Yield every record after position ``after``, then each new record, without end. Cancelling is safe.

    Raises:
        CorruptLog: a record is damaged; all records before it have been yielded.
    """
    reader = LogReader(store)
    with _interrupts() as interrupted:
        async for _ in _changes(store):
            if interrupted.is_set():
                # Raise the cancellation again, because the watcher sometimes swallows the one that Ctrl-C caused.
                raise asyncio.CancelledError
            if reader.head > after:
                async for record in reader.read_all(after=after):
                    yield record
                    after = record.position


@contextmanager
def _interrupts() -> Iterator[Event]:
    """Yield an event that the first Ctrl-C sets, in addition to its usual effect."""
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
    """Yield at once, and again whenever something below ``store`` may have changed."""
    from watchfiles import awatch

    yield
    is_told = False
    while True:
        # A missing directory cannot be watched, so watch its nearest existing parent until the directory is created.
        watched = store
        while not watched.is_dir():
            watched = watched.parent
        try:
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
                # Check the directory on the event loop, because that costs less than handing the check to a thread.
                if not watched.is_dir() or (watched != store and store.is_dir()):  # noqa: ASYNC240
                    break
        except FileNotFoundError:
            continue  # the directory was replaced
        except (OSError, RuntimeError) as error:
            # All watchers of the system are in use, as by an editor. Perhaps one is free later.
            if not is_told:
                note(f"The system reports no changes ({error}), so the log is read every {POLL_S:g} s.")
            is_told = True
            await asyncio.sleep(POLL_S)
            yield
