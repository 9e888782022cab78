"""New records as they become durable, by watching the log's files: no link to the sidecar is needed.

So it goes on while the sidecar is killed and comes back, and begins before
the log exists.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from streams.log import LogReader
from streams.store import NOTHING, Record

LOOK_AGAIN_MS = 500
"""Where the system tells of no change (network disks, a directory that was replaced), look this often."""


async def follow(store: Path, *, after: int = NOTHING) -> AsyncIterator[Record]:
    """Every record after position ``after``, then each new one, without end; cancelling it is safe.

    Raises:
        CorruptLog: a record is damaged; what came before was yielded.
    """
    reader = LogReader(store)
    async for _ in _changes(store):
        if reader.head > after:
            async for record in reader.read_all(after=after):
                yield record
                after = record.position


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
            debounce=1,
            step=1,
            rust_timeout=LOOK_AGAIN_MS,
            yield_on_timeout=True,
            recursive=watched == store,
            watch_filter=None,
        ):
            yield
            # One look at a directory costs less than the hop to a thread that would make it "async".
            if not watched.is_dir() or (watched != store and store.is_dir()):  # noqa: ASYNC240
                break
