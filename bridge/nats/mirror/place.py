"""Where a mirror is: the last message under the log's subjects says so, and nothing else does.

The message names the position and the hash of its record. If the log has that record, the mirror goes on behind it.
Otherwise the mirror empties the log's part of the stream and publishes everything again, so that the stream equals the
log without a person's help. A message that was deleted from the middle is not seen here: ``mirror verify`` finds it.

The server knows message ids for two minutes, also of messages that were purged. So the ids of an emptied stream get a
number that no message had: the sum of the last sequences of both streams. A mirror that goes on uses the number of the
last message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from bridge.nats import headers as h
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NotFound
from bridge.nats.jetstream.publishing import settle
from bridge.nats.jetstream.stream_plan import EVENTS, L0_EVENTS
from bridge.nats.jetstream.streams import (
    StreamFacts,
    StreamMessage,
    delete_messages,
    last_message,
    next_message,
    purge,
    read_back,
)
from bridge.nats.mirror.messages import is_forgotten
from bridge.nats.subjects import L0Subject, RecordSubject, agent_events_pattern, log_pattern
from streams.retention import StreamRemoval
from streams.store import NOTHING, Record, StreamReader

FULL_FROM: Final = 0.5
"""From this share of its size limit on, the stream may have removed its oldest messages itself."""

SKEW: Final = timedelta(minutes=1)
"""How far the clocks of two servers of a cluster may differ."""


class Place(NamedTuple):
    """``position`` of the last mirrored record (or ``NOTHING``), ``sequence`` of its message (or 0), the ``number`` for
    message ids, and the time of the last message (``""`` if there is none)."""

    position: int
    sequence: int
    number: int
    time: str = ""


class Wrong(NamedTuple):
    """Why a mirror cannot go on: ``note`` is one word for the counters, ``why`` a sentence for people."""

    note: str
    why: str


async def settled(session: JetStream, log_id: str) -> None:
    """Wait until nothing that was published under the log's name is on its way, such as a batch whose answer was lost.

    It could come behind the last message that is there, or into the emptied stream. Raises ``NatsError``.
    """
    await settle(session, str(RecordSubject("", log_id, "", "settled")))
    await settle(session, str(L0Subject("", "evt", "agent", log_id, "settled")))


async def find_place(
    session: JetStream, log_id: str, store: StreamReader, stream: StreamFacts, fresh: int, *, fresh_ids: bool = False
) -> Place | Wrong:
    """Where the mirror goes on. ``fresh``: a number that no message id has. ``fresh_ids``: the server refused ids that
    it knows, so they need this number.

    Raises:
        NatsError: the server did not answer.
        StreamError: the log cannot be read.
    """
    last = await last_message(session, EVENTS, log_pattern(log_id))
    if last is None:
        return Place(NOTHING, 0, fresh)
    position = h.read_position(last.headers)
    if position is None:
        return Wrong("foreign", "another program published a message under this log's name")
    if position > store.head or not _is_same(await record_at(store, position), last):
        return Wrong("diverged", f"the stream and the log have different records at position {position}")
    if await lacks_beginning(session, log_id, store, stream):
        return Wrong("beginning_lost", "the beginning of the log is missing from the stream")
    number = fresh if fresh_ids else h.read_message_id(last.headers).rebuild
    return Place(position, last.sequence, number, last.time)


async def lacks_beginning(session: JetStream, log_id: str, store: StreamReader, stream: StreamFacts) -> bool:
    """Whether the log's first record is missing from the stream, and the stream's own limit cannot be the reason."""
    if may_have_removed(stream):
        return False
    first = await next_message(session, EVENTS, log_pattern(log_id))
    begins = h.read_position(first.headers) if first is not None else None
    async for record in store.read_all():
        return begins is None or begins > record.position
    return False


async def record_at(store: StreamReader, position: int) -> Record | None:
    """The record at a position; ``None`` if it was pruned."""
    async for record in store.read_all(after=position - 1):
        return record if record.position == position else None
    return None


def _is_same(record: Record | None, message: StreamMessage) -> bool:
    # A position below the head without a record was pruned from the log, and the mirror keeps its message.
    if record is None:
        return True
    return (record.event.id, record.hash) == (
        h.read_message_id(message.headers).event,
        message.headers.get(h.HASH),
    )


def may_have_removed(stream: StreamFacts) -> bool:
    """Whether the stream's own size limit may have removed its oldest messages."""
    limit = int(stream.config.get("max_bytes") or 0)
    return limit > 0 and int(stream.state.get("bytes") or 0) >= FULL_FROM * limit


async def empty(session: JetStream, log_id: str) -> None:
    """Remove all messages of a log's records. Raises ``NatsError`` if that failed; it may be repeated."""
    await purge(session, EVENTS, subject=log_pattern(log_id))


# --- L0 messages: one stream has those of all homes ---


async def l0_behind(session: JetStream, log_id: str, place: Place) -> set[tuple[str, str]]:
    """Event and part of each L0 message of a record behind ``place`` that is there already.

    A mirror that ended between the L0 messages of a batch and its records leaves such messages.
    """
    since = (datetime.fromisoformat(place.time) - SKEW).isoformat() if place.time else ""
    return {
        h.read_message_id(found.headers)[:2]
        async for found in _l0_of(session, log_id, since)
        if (h.read_position(found.headers) or 0) > place.position
    }


async def erase_l0(session: JetStream, log_id: str, positions: Collection[int] | None = None) -> int:
    """Delete a log's L0 messages, or erase those of the records at some positions; return how many there were.

    To erase takes the server twenty times as long, because it overwrites the bytes of each message on its disk.

    Raises:
        NatsError: some may still be there; it is safe to call this again.
    """
    sequences = [
        found.sequence
        async for found in _l0_of(session, log_id)
        if positions is None or h.read_position(found.headers) in positions
    ]
    return await delete_messages(session, L0_EVENTS, sequences, erase=positions is not None)


async def _l0_of(session: JetStream, log_id: str, since: str = "") -> AsyncIterator[StreamMessage]:
    mine = h.header_text(log_id)
    try:
        async for found in read_back(
            session, L0_EVENTS, subject=agent_events_pattern(), since=since, headers_only=True
        ):
            if found.headers.get(h.LOG) == mine:
                yield found
    except NotFound:
        return


# --- forgetting ---


async def forget(
    session: JetStream, log_id: str, store: StreamReader, removed: Mapping[str, StreamRemoval], asked: Collection[str]
) -> bool:
    """Erase the L0 messages of the records that the log has forgotten; true if a message of the log still has such a
    payload. In the ``asked`` streams, this includes what was pruned before.

    Raises ``NatsError`` or ``StreamError``; it may be repeated.
    """
    forgotten, parts = set[int](), []
    for stream, gone in removed.items():
        below = max(gone.forgotten_to, gone.first_offset if stream in asked else 0)
        if below:
            whole = set[int]()
            async for record in store.read(stream):
                if record.offset >= below:
                    break
                (forgotten if is_forgotten(record.event) else whole).add(record.position)
            parts.append((stream, below, whole))
    if forgotten:
        await erase_l0(session, log_id, forgotten)
    for stream, below, whole in parts:
        async for found in read_back(session, EVENTS, subject=log_pattern(log_id, stream), headers_only=True):
            offset = found.headers.get(h.OFFSET, "")
            is_below = not offset.isdecimal() or int(offset) < below
            if is_below and found.headers.get(h.FORM) != "forgotten" and h.read_position(found.headers) not in whole:
                return True
    return False
