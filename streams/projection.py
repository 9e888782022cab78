"""A projection is a pure fold over records: state in, record in, state out.

A projection's state is plain JSON, so its canonical bytes and hash are the same wherever the same records are replayed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

from streams.store import NOTHING, Record, Snapshot

P = TypeVar("P", bound="Projection")
T = TypeVar("T")


class Projection(Protocol):
    """A fold over records that never does I/O."""

    def apply(self, record: Record) -> None:
        """Apply one record. Records arrive in position order, each once."""


class KeepsSnapshots(Protocol):
    """Where snapshots are kept: a ``StreamStore``, or a reader."""

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


async def fold(projection: P, records: AsyncIterator[Record]) -> P:
    """Apply every record and return the projection; without records it is unchanged."""
    async for record in records:
        projection.apply(record)
    return projection
