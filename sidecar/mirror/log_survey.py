"""Surveys the log before the mirror resumes."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.nats.l0.captured import MEANINGS
from bridge.nats.mirror.resuming import LogSurvey
from streams.store import NOTHING, StreamReader


async def log_survey(store: StreamReader, last: int) -> LogSurvey:
    """Survey the log. ``last`` is the position of the stream's last message, or ``NOTHING`` if the stream has none."""
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


async def l0_event_ids(store: StreamReader, below: Mapping[str, int]) -> set[str]:
    """The ids of events that may have L0 messages and whose offsets are below the given offset of their stream."""
    found = set()
    for stream, offset in below.items():
        async for record in store.read(stream):
            if record.offset >= offset:
                break
            if record.event.type in MEANINGS:
                found.add(record.event.id)
    return found


async def end_of(store: StreamReader, after: int) -> int:
    """``after``, or the log's head if all records after ``after`` were pruned."""
    head = store.head
    async for _ in store.read_all(after=after):
        return after
    return max(head, after)
