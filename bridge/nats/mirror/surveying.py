"""Surveys a log's part of the stream, and removes messages from it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from bridge.nats import headers as h
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsUnavailable
from bridge.nats.jetstream.stream_plan import EVENTS
from bridge.nats.jetstream.streams import (
    StreamMessage,
    count_messages,
    delete_messages,
    facts,
    last_message,
    next_message,
    purge,
    read_back,
)
from bridge.nats.mirror.publish import id_before_rebuild, mirrored_record, position_of, stream_of
from bridge.nats.mirror.resuming import StreamSurvey, may_have_removed
from bridge.nats.subjects import agent_events_pattern, log_pattern
from streams.store import NOTHING

TRIES: Final = 20
AGAIN_SECONDS: Final = 0.05
"""How many seconds to wait before the next attempt, if messages that were already sent arrived during a survey."""


async def survey(session: JetStream, log_id: str) -> StreamSurvey:
    """Which messages of a log the stream holds at one point in time.

    Raises:
        NatsUnavailable: no answer came, or another publisher keeps publishing under the log's name.
    """
    pattern = log_pattern(log_id)
    before = await last_message(session, EVENTS, pattern)
    for _ in range(TRIES):
        count = await count_messages(session, EVENTS, pattern)
        first = await next_message(session, EVENTS, pattern)
        found = await facts(session, EVENTS)
        last = await last_message(session, EVENTS, pattern)
        if _sequence(before) == _sequence(last) and (first is None) == (last is None):
            return StreamSurvey(
                found.created,
                mirrored_record(first) if first is not None else None,
                mirrored_record(last) if last is not None else None,
                count,
                may_have_removed(found.config, found.state),
            )
        before = last
        await asyncio.sleep(AGAIN_SECONDS)
    raise NatsUnavailable(
        f"another publisher is publishing records of the log {log_id}",
        "check whether a copy of this home is in use elsewhere",
    )


def _sequence(found: StreamMessage | None) -> int:
    return 0 if found is None else found.sequence


async def erase_records(session: JetStream, log_id: str, stream_id: str, *, below: int) -> int | None:
    """Erase the messages with payloads of a stream's records at offsets less than ``below``.

    Returns the lowest position of the erased messages; ``None`` if there were none.
    """
    sequences, positions = [], []
    async for found in read_back(session, EVENTS, subject=log_pattern(log_id, stream_id)):
        offset = found.headers.get(h.OFFSET, "")
        if found.headers.get(h.FORM) != "forgotten" and (not offset.isdecimal() or int(offset) < below):
            sequences.append(found.sequence)
            positions.append(position_of(found.headers))
    await delete_messages(session, EVENTS, sequences, erase=True)
    return min(positions) if positions else None


async def erase_l0(session: JetStream, event_ids: Collection[str], version: str, channel: str) -> int:
    """Erase the L0 messages of events; return how many messages were erased."""
    pattern = agent_events_pattern(channel, version)
    stream = stream_of(pattern)
    sequences = [
        found.sequence
        async for found in read_back(session, stream, subject=pattern)
        if id_before_rebuild(found.headers).partition(":")[0] in event_ids
    ]
    return await delete_messages(session, stream, sequences, erase=True)


async def cut(session: JetStream, log_id: str, *, after: int) -> int:
    """Remove a log's messages after position ``after``, or all of them; return the position after which to resume."""
    pattern = log_pattern(log_id)
    if after > NOTHING:
        first = await _first_beyond(session, pattern, after)
        if first is None:
            return after
        count = await count_messages(session, EVENTS, pattern)
        there = read_back(session, EVENTS, subject=pattern, from_sequence=first.sequence)
        sequences = [found.sequence async for found in there]
        if 2 * len(sequences) <= count:
            await delete_messages(session, EVENTS, sequences, erase=False)
            return after
    await purge(session, EVENTS, subject=pattern)
    return NOTHING


async def _first_beyond(session: JetStream, pattern: str, after: int) -> StreamMessage | None:
    last = await last_message(session, EVENTS, pattern)
    if last is None or position_of(last.headers) <= after:
        return None
    low, high, found = 1, last.sequence, last
    while low < high:
        middle = (low + high) // 2
        there = await next_message(session, EVENTS, pattern, from_sequence=middle)
        if there is None or position_of(there.headers) > after:
            high = middle
            found = there or found
        else:
            low = there.sequence + 1
    return await next_message(session, EVENTS, pattern, from_sequence=low) or found
