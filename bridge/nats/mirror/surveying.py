"""Surveys a log's part of the stream, and removes messages from it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from bridge.nats import headers as h
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsUnavailable, NotFound
from bridge.nats.jetstream.stream_plan import EVENTS, L0_EVENTS
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
from bridge.nats.mirror.resuming import MirroredRecord, StreamSurvey, may_have_removed
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
                _mirrored_record(first),
                _mirrored_record(last),
                count,
                may_have_removed(found.config, found.state),
            )
        before = last
        await asyncio.sleep(AGAIN_SECONDS)
    raise NatsUnavailable(
        f"another publisher is publishing records of the log {log_id}",
        "check whether a copy of this home is in use elsewhere",
    )


def _mirrored_record(found: StreamMessage | None) -> MirroredRecord | None:
    if found is None:
        return None
    event, _, rebuild = h.read_message_id(found.headers)
    return MirroredRecord(_position(found), event, found.headers.get(h.HASH, ""), rebuild)


def _position(found: StreamMessage) -> int:
    position = h.read_position(found.headers)
    return NOTHING if position is None else position


def _sequence(found: StreamMessage | None) -> int:
    return 0 if found is None else found.sequence


async def erase_records(session: JetStream, log_id: str, stream_id: str, *, below: int) -> tuple[int, int] | None:
    """Erase the messages with payloads of a stream's records at offsets less than ``below``.

    Returns the position and the sequence of the first of them; ``None`` if there were none.
    """
    sequences, positions = [], []
    async for found in read_back(session, EVENTS, subject=log_pattern(log_id, stream_id)):
        offset = found.headers.get(h.OFFSET, "")
        if found.headers.get(h.FORM) != "forgotten" and (not offset.isdecimal() or int(offset) < below):
            sequences.append(found.sequence)
            positions.append(_position(found))
    await delete_messages(session, EVENTS, sequences, erase=True)
    return (min(positions), min(sequences)) if positions else None


async def erase_l0(session: JetStream, log_id: str, event_ids: Collection[str] | None = None) -> int:
    """Remove a log's L0 messages, or erase those of some events; return how many were removed.

    Raises:
        NatsError: some L0 messages may still be there; it is safe to call this again.
    """
    mine = h.header_text(log_id)
    try:
        sequences = [
            found.sequence
            async for found in read_back(session, L0_EVENTS, subject=agent_events_pattern())
            if (
                found.headers.get(h.LOG) == mine
                if event_ids is None
                else h.read_message_id(found.headers).event in event_ids
            )
        ]
    except NotFound:
        return 0
    return await delete_messages(session, L0_EVENTS, sequences, erase=event_ids is not None)


async def cut(session: JetStream, log_id: str, *, after: int, from_sequence: int) -> int:
    """Remove a log's messages after a position, or all of them; return the position after which to resume."""
    pattern = log_pattern(log_id)
    count = await count_messages(session, EVENTS, pattern)
    there = read_back(session, EVENTS, subject=pattern, from_sequence=from_sequence)
    sequences = [found.sequence async for found in there]
    if after > NOTHING and 2 * len(sequences) <= count:
        await delete_messages(session, EVENTS, sequences, erase=False)
        return after
    await purge(session, EVENTS, subject=pattern)
    return NOTHING
