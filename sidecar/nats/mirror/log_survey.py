"""What the mirror asks the log before it goes on."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.nats.l0.captured import MEANINGS
from bridge.nats.mirror.resuming import LogSurvey
from streams.store import NOTHING, StreamReader


async def log_survey(store: StreamReader, last: int) -> LogSurvey:
    """The log as it is now; ``last`` is the position of the last message in the stream, ``NOTHING`` without one."""
    first, at_last = NOTHING, None
    async for record in store.read_all():
        first = record.position
        break
    if NOTHING < last <= store.head:
        async for record in store.read_all(after=last - 1):
            at_last = record if record.position == last else None
            break
    pruned = sum(gone.first_offset for gone in (await store.removed()).values())
    return LogSurvey(first, store.head, at_last, pruned)


async def told_events(store: StreamReader, below: Mapping[str, int]) -> set[str]:
    """The ids of events below these offsets of their streams that may have been told in the L0 protocol."""
    found = set()
    for stream, offset in below.items():
        async for record in store.read(stream):
            if record.offset >= offset:
                break
            if record.event.type in MEANINGS:
                found.add(record.event.id)
    return found


async def end_of(store: StreamReader, after: int) -> int:
    """How far the log goes without another record after ``after``: its head, if all that follows was pruned."""
    head = store.head
    async for _ in store.read_all(after=after):
        return after
    return max(head, after)
