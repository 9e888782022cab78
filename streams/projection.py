"""A projection is a pure fold over records: state in, record in, state out.

A projection's state is plain JSON, so its canonical bytes and hash are the same wherever the same records are replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from streams.store import NOTHING, Snapshot

T = TypeVar("T")


class KeepsSnapshots(Protocol):
    """Where snapshots are stored: a ``StreamStore``, or a reader."""

    async def snapshot(self, name: str, version: int) -> Snapshot | None: ...


async def resume(
    source: KeepsSnapshots, name: str, version: int, load: Callable[[bytes], T], fresh: Callable[[], T]
) -> tuple[T, int]:
    """Return a projection restored from its last snapshot, and the position after which to apply records to it.

    If there is no snapshot of this version, or ``load`` refuses it (``ValueError``), returns ``fresh()`` and
    ``NOTHING``.
    """
    snapshot = await source.snapshot(name, version)
    if snapshot is not None:
        try:
            return load(snapshot.state), snapshot.position
        except ValueError:
            # A snapshot is only a hint, so an unreadable one costs nothing but the time of a full replay.
            return fresh(), NOTHING
    return fresh(), NOTHING
