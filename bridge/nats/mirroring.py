"""Records → the server: a run of records is made into messages, published, and known to be stored.

The messages of a run leave in this order: first what its records mean in the
L0 protocol, then, when all of that is stored, the records' own. So whoever
sees a record can find its L0 messages. Each stream's part leaves as atomic
batches where the stream takes them and enough is there, else in a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bridge.nats import headers as h
from bridge.nats.errors import BatchRefused, NatsUnavailable
from bridge.nats.jetstream import JetStream
from bridge.nats.keeping import Found, StreamFacts, last_message, purge
from bridge.nats.messages import Message, Mirror, mirrored
from bridge.nats.mirror_state import MirrorState
from bridge.nats.publishing import MAX_BATCH, Expect, PublishStopped, Stored, publish_all, publish_batch
from bridge.nats.stream_plan import EVENTS
from bridge.nats.subjects import log_pattern
from streams.store import NOTHING, Record

ATOMIC_FROM: Final = 8
"""Pending messages from which an atomic batch is worth it."""

MAX_RUN: Final = 500
"""Most records of a run: so many may be published again, as duplicates, after a crash."""


class Vanished(NatsUnavailable):
    """The server calls a message a duplicate that is not in the stream: it was purged. A new rebuild number is needed."""


@dataclass(slots=True)
class Run:
    """The messages of records that follow each other in the log, and the last of these records' positions."""

    position: int
    l0: list[Message] = field(default_factory=list)
    own: list[Message] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunStored:
    """What became of a run: messages that were stored now, and those that were there already."""

    published: int
    duplicates: int
    sequence: int
    """Of the last record's own message."""


def make_run(records: Sequence[Record], state: MirrorState, mirror: Mirror) -> Run:
    """The messages of records that follow on what ``state.places`` holds; applies them to it. No I/O."""
    mirror = replace(mirror, rebuild=state.rebuild)
    run = Run(state.position)
    for record in records:
        state.places.apply(record)
        made = mirrored(record, state.places.of(record.event), mirror)
        run.l0 += made.messages[:-1]
        run.own.append(made.messages[-1])
        run.notes += made.notes
        run.position = record.position
    return run


async def publish_records(
    session: JetStream,
    streams: Mapping[str, StreamFacts],
    records: Sequence[Record],
    state: MirrorState,
    mirror: Mirror,
) -> RunStored:
    """Publish records that follow ``state.position``, at best ``MAX_RUN`` of them; ``state`` is then after them.

    ``streams`` are the facts that ``ensure_streams`` gave. ``mirror.max_payload`` must be the server's
    (``session.server.max_payload``); its rebuild number is not looked at, the state's counts.

    Raises:
        NatsError: not all is known to be stored. ``state`` is spoiled then: load it anew, and ask the stream how far
            it is, before anything is published again.
    """
    run = make_run(records, state, mirror)
    stored = await publish_run(session, streams, run, mirror.log)
    advance(state, run, stored)
    return stored


def advance(state: MirrorState, run: Run, stored: RunStored) -> None:
    """Note that a run is stored."""
    state.position, state.sequence = run.position, stored.sequence
    state.notes.update(run.notes)


async def publish_run(session: JetStream, streams: Mapping[str, StreamFacts], run: Run, log_id: str) -> RunStored:
    """Publish a run.

    Raises:
        Vanished: the server takes messages for stored that are not.
        NatsError: not all is known to be stored.
    """
    duplicates = 0
    for messages in (run.l0, run.own):
        for part in _parts(messages):
            duplicates += await _publish(session, streams, part)
    sequence = 0
    last = await last_message(session, EVENTS, log_pattern(log_id)) if duplicates else None
    if duplicates and (last is None or position_of(last) != run.position):
        raise Vanished("the mirror's stream was purged a moment ago", "its records are published again under new ids")
    if last is not None:
        sequence = last.sequence
    return RunStored(len(run.l0) + len(run.own) - duplicates, duplicates, sequence)


def _parts(messages: Sequence[Message]) -> list[Sequence[Message]]:
    return [messages[first : first + MAX_BATCH] for first in range(0, len(messages), MAX_BATCH)]


async def _publish(session: JetStream, streams: Mapping[str, StreamFacts], messages: Sequence[Message]) -> int:
    """How many of them were there already."""
    raise NotImplementedError


def position_of(found: Found) -> int:
    """Where the record of a message stands in its log; ``NOTHING`` when the message does not say it."""
    value = found.headers.get(h.POSITION, "")
    return int(value) if value.isdecimal() and value.isascii() and len(value) < 20 else NOTHING


async def last_mirrored(session: JetStream, log_id: str) -> int:
    """Position of the last record of this log that the server has; ``NOTHING`` for none."""
    found = await last_message(session, EVENTS, log_pattern(log_id))
    return NOTHING if found is None else position_of(found)


async def begin_anew(session: JetStream, log_id: str, state: MirrorState) -> MirrorState:
    """Purge this log's part of ``MESHFORGE_EVENTS``, nobody else's; the state to publish everything from.

    L0 messages stay: those that are there are not published a second time.
    """
    last = await last_message(session, EVENTS, log_pattern(log_id))
    number = max(state.rebuild, rebuild_of(last) if last is not None else 0)
    await purge(session, EVENTS, subject=log_pattern(log_id))
    return replace(state, rebuild=number).anew()


def rebuild_of(found: Found) -> int:
    """The rebuild number in a record's message id: 0 where there is none."""
    number = found.headers.get(h.MESSAGE_ID, "").rpartition(":")[2]
    return int(number) if number.isdecimal() and number.isascii() and len(number) < 10 else 0
