"""Publishes runs of records: turns records into messages and returns when the server has stored them.

A run first publishes the L0 messages of its records. When all L0 messages are stored, the run publishes the commands
for agents elsewhere with their wakeups, and then the records' own messages. So a consumer that sees a record can find
its L0 messages, and a stored record means that its command was sent. Messages are sent in atomic batches if the stream
accepts them and enough are pending, otherwise in a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bridge.nats import headers as h
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import BatchRefused, NatsUnavailable
from bridge.nats.jetstream.publishing import MAX_BATCH, PublishStopped, StagedBatch, Stored, publish_all, stage_batch
from bridge.nats.jetstream.stream_plan import EVENTS, L0_EVENTS
from bridge.nats.jetstream.streams import StreamFacts, last_message, read_back
from bridge.nats.jetstream.wire import Message
from bridge.nats.subjects import log_pattern

ATOMIC_FROM: Final = 8
"""Minimum number of pending messages for which an atomic batch pays off."""

MAX_RUN: Final = MAX_BATCH
"""Maximum number of records in a run. After a crash, at most this many are published again and recognised as
duplicates."""

MAX_RUN_BYTES: Final = 4 * 1024 * 1024
"""A run of this size accepts no more records. The limit bounds the sidecar's memory and the server's staging area."""


class Vanished(NatsUnavailable):
    """The stream lost messages that the server had confirmed as stored. The mirror then surveys the stream again."""

    code = "nats-vanished"


@dataclass(slots=True)
class Run:
    """The messages of consecutive records of the log; ``position`` is the position of the last record."""

    position: int
    l0: list[Message] = field(default_factory=list)
    commands: list[Message] = field(default_factory=list)
    own: list[Message] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    size: int = 0
    """Total size of the bodies, in bytes."""

    contexts: bytes | None = None
    """The dumped context projection after the last record, if a snapshot is due then."""

    @property
    def is_full(self) -> bool:
        return len(self.own) >= MAX_RUN or self.size >= MAX_RUN_BYTES


@dataclass(frozen=True, slots=True)
class RunStored:
    published: int
    duplicates: int
    sequence: int
    """Sequence of the last record's own message."""


class KnownL0:
    """The L0 messages on the server, by event and part, regardless of rebuild number."""

    def __init__(self) -> None:
        self._subjects: dict[str, set[tuple[str, str]]] = {}

    async def missing(self, session: JetStream, messages: Sequence[Message]) -> list[Message]:
        left = []
        for message in messages:
            known = self._subjects.get(message.subject)
            if known is None:
                known = self._subjects[message.subject] = await self._read(session, message.subject)
            if h.read_message_id(message.headers)[:2] not in known:
                left.append(message)
        return left

    async def _read(self, session: JetStream, subject: str) -> set[tuple[str, str]]:
        if await last_message(session, L0_EVENTS, subject) is None:
            return set()
        there = read_back(session, L0_EVENTS, subject=subject)
        return {h.read_message_id(found.headers)[:2] async for found in there}


@dataclass(frozen=True, slots=True)
class BegunRun:
    """A run that is mostly sent. Nothing of it is stored before ``finish_run``, so it may be dropped."""

    session: JetStream
    run: Run
    l0: list[_Part]
    own: list[_Part]


@dataclass(frozen=True, slots=True)
class _Part:
    messages: Sequence[Message]
    staged: StagedBatch | None


async def begin_run(
    session: JetStream, streams: Mapping[str, StreamFacts], run: Run, *, known: KnownL0 | None = None
) -> BegunRun:
    """Send as much of a run as is possible without storing any of it.

    Raises:
        NatsError: sending failed.
    """
    l0 = run.l0 if known is None else await known.missing(session, run.l0)
    l0_parts = await _staged(session, streams[L0_EVENTS], l0)
    return BegunRun(session, run, l0_parts, await _staged(session, streams[EVENTS], run.own))


async def finish_run(begun: BegunRun, log_id: str) -> RunStored:
    """Store a begun run. No other run of the log may be in flight.

    Raises:
        Vanished: the server confirms messages that it no longer has.
        NatsError: some messages may not be stored.
    """
    session, run = begun.session, begun.run
    l0 = await _publish(session, begun.l0)
    # Publish commands one by one, because a work queue accepts no atomic batches. A message that is sent again is
    # recognised by its id.
    l0 += await _publish(session, [_Part(run.commands, None)] if run.commands else [])
    own = await _publish(session, begun.own)
    duplicates = sum(stored.duplicate for stored in own)
    sequence = own[-1].sequence if own else 0
    if duplicates:
        last = await last_message(session, EVENTS, log_pattern(log_id))
        if last is None or h.read_position(last.headers) != run.position:
            raise Vanished("the mirror's stream lost messages that it had stored", "the mirror will publish them again")
        sequence = last.sequence
    sent = sum(len(part.messages) for part in (*begun.l0, *begun.own)) + len(run.commands)
    known = len(run.l0) + len(run.own) + len(run.commands) - sent
    duplicates += sum(stored.duplicate for stored in l0)
    return RunStored(sent - duplicates, duplicates + known, sequence)


async def _staged(session: JetStream, stream: StreamFacts, messages: Sequence[Message]) -> list[_Part]:
    """Split messages of one stream into parts of a size that the server accepts."""
    parts = []
    for first in range(0, len(messages), MAX_BATCH):
        part = messages[first : first + MAX_BATCH]
        staged = None
        if len(part) >= ATOMIC_FROM and stream.atomic:
            staged = await stage_batch(session, part, batch_id=session.new_inbox().rpartition(".")[2])
        parts.append(_Part(part, staged))
    return parts


async def _publish(session: JetStream, parts: Sequence[_Part]) -> list[Stored]:
    stored: list[Stored] = []
    for part in parts:
        if part.staged is not None:
            try:
                stored.append(await part.staged.commit())
                continue
            except BatchRefused:
                pass  # publishing the messages one by one shows which of them are already stored
        try:
            stored += await publish_all(session, part.messages)
        except PublishStopped as stopped:
            raise stopped.error from None
    return stored
