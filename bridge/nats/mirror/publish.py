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
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import BatchRefused, NatsUnavailable
from bridge.nats.jetstream.publishing import MAX_BATCH, PublishStopped, StagedBatch, Stored, publish_all, stage_batch
from bridge.nats.jetstream.stream_plan import EVENTS, keeps, wanted
from bridge.nats.jetstream.streams import Found, StreamFacts, last_message, purge, read_back
from bridge.nats.mirror.messages import Message, Mirror, mirrored
from bridge.nats.mirror.resuming import Mirrored
from bridge.nats.mirror.state import MirrorState
from bridge.nats.subjects import log_pattern
from streams.store import NOTHING, Record

ATOMIC_FROM: Final = 8
"""Pending messages from which an atomic batch is worth it."""

MAX_RUN: Final = MAX_BATCH
"""Most records of a run: so many may be published again after a crash, to be found out as duplicates."""

MAX_RUN_BYTES: Final = 4 * 1024 * 1024
"""A run that is as large takes no more records; it bounds what is in memory, and what the server must stage."""

DAY_MS: Final = 24 * 3600 * 1000
L0_DAYS: Final = 7
"""How long the L0 protocol's events are kept: older ones are not published any more."""


class Vanished(NatsUnavailable):
    """The stream is not what it was: what the server calls stored is not there. It is looked at anew."""


@dataclass(slots=True)
class Run:
    """The messages of records that follow each other in the log; ``position`` is the last of these records'."""

    position: int
    l0: list[Message] = field(default_factory=list)
    own: list[Message] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    size: int = 0
    """Bytes of the messages' bodies."""

    @property
    def is_full(self) -> bool:
        """Whether it takes no more records."""
        return len(self.own) >= MAX_RUN or self.size >= MAX_RUN_BYTES

    def add(self, record: Record, state: MirrorState, mirror: Mirror, *, l0_after_ms: int = 0) -> None:
        """Take the next record, and apply it to ``state.places``.

        Of a record from before ``l0_after_ms`` no L0 message is made: their stream would not keep it any more.
        """
        state.places.apply(record)
        made = mirrored(record, state.places.of(record.event), mirror)
        messages = made.messages
        if len(messages) > 1:
            if record.event.ts >= l0_after_ms:
                self.l0 += messages[:-1]
            else:
                self.notes.append("l0_old")
        self.own.append(messages[-1])
        self.notes += made.notes
        self.size += sum([len(message.body) for message in messages])
        self.position = record.position


@dataclass(frozen=True, slots=True)
class RunStored:
    """What became of a run: messages that were stored now, and those that were there already."""

    published: int
    duplicates: int
    sequence: int
    """Of the last record's own message."""


class KnownL0:
    """Which L0 messages the server has, by event and part, whatever their rebuild number: for records that may have
    been told before. A subject is read back when it is first asked for."""

    def __init__(self) -> None:
        self._subjects: dict[str, set[str]] = {}

    async def missing(self, session: JetStream, messages: Sequence[Message]) -> list[Message]:
        """Those of the messages that the server does not have."""
        left = []
        for message in messages:
            known = self._subjects.get(message.subject)
            if known is None:
                known = self._subjects[message.subject] = await self._read(session, message.subject)
            if told_id(message.headers) not in known:
                left.append(message)
        return left

    async def _read(self, session: JetStream, subject: str) -> set[str]:
        stream = stream_of(subject)
        if await last_message(session, stream, subject) is None:
            return set()
        return {told_id(found.headers) async for found in read_back(session, stream, subject=subject)}


def told_id(headers: Mapping[str, str]) -> str:
    """The id of a message without its rebuild number: ``{event}``, ``{event}:l0`` or ``{event}:l0:{part}``."""
    identity = headers.get(h.MESSAGE_ID, "")
    head, _, last = identity.rpartition(":")
    return head if head and _is_number(last) else identity


def stream_of(subject: str) -> str:
    """The stream that takes in a subject of the mirror's. Raises ``ValueError`` for any other."""
    found = EVENTS if subject.startswith("evt.") else next(iter(_keepers(subject)), None)
    if found is None:
        raise ValueError(f"no stream keeps {subject}")
    return found


def _keepers(subject: str) -> list[str]:
    found = keeps(wanted(), subject)
    return [found.name] if found is not None else []


async def publish_records(
    session: JetStream,
    streams: Mapping[str, StreamFacts],
    records: Sequence[Record],
    state: MirrorState,
    mirror: Mirror,
    *,
    known: KnownL0 | None = None,
    l0_after_ms: int = 0,
) -> RunStored:
    """Publish records that follow ``state.position``, at best ``MAX_RUN`` of them; ``state`` is then after them.

    ``streams`` are the facts that ``ensure_streams`` gave. ``mirror.max_payload`` must be the server's
    (``session.server.max_payload``); its rebuild number is not looked at, the state's counts.
    With ``known``, L0 messages that are on the server already are left out.

    Raises:
        NatsError: not all is known to be stored. ``state`` is spoiled then: load it anew, and ask the stream how far
            it is, before anything is published again.
    """
    run, mirror = Run(state.position), replace(mirror, rebuild=state.rebuild)
    for record in records:
        run.add(record, state, mirror, l0_after_ms=l0_after_ms)
    stored = await publish_run(session, streams, run, mirror.log, known=known)
    state.position, state.sequence = run.position, stored.sequence
    state.notes.update(run.notes)
    return stored


async def publish_run(
    session: JetStream, streams: Mapping[str, StreamFacts], run: Run, log_id: str, *, known: KnownL0 | None = None
) -> RunStored:
    """Publish a run; at its return all is stored.

    Raises:
        Vanished: the server takes messages for stored that are not.
        NatsError: not all is known to be stored.
    """
    return await finish_run(await begin_run(session, streams, run, known=known), log_id)


@dataclass(frozen=True, slots=True)
class BegunRun:
    """A run of which much was sent already, and nothing is stored before ``finish_run``; it may be dropped.

    So the server takes in one run while it still stores the one before.
    """

    session: JetStream
    run: Run
    l0: list[_Part]
    own: list[_Part]


@dataclass(frozen=True, slots=True)
class _Part:
    """Messages that leave together, ``staged`` where the server has nearly all of them."""

    messages: Sequence[Message]
    staged: StagedBatch | None


async def begin_run(
    session: JetStream, streams: Mapping[str, StreamFacts], run: Run, *, known: KnownL0 | None = None
) -> BegunRun:
    """Send what can be sent of a run without anything of it being stored.

    Raises:
        NatsError: it could not be sent.
    """
    l0 = run.l0 if known is None else await known.missing(session, run.l0)
    return BegunRun(session, run, await _staged(session, streams, l0), await _staged(session, streams, run.own))


async def finish_run(begun: BegunRun, log_id: str) -> RunStored:
    """Have a begun run stored. Nothing else of the log may be on its way. Raises as ``publish_run``."""
    session, run = begun.session, begun.run
    told = await _publish(session, begun.l0)
    own = await _publish(session, begun.own)
    duplicates = sum(stored.duplicate for stored in own)
    sequence = own[-1].sequence if own else 0
    if duplicates:
        last = await last_message(session, EVENTS, log_pattern(log_id))
        if last is None or position_of(last.headers) != run.position:
            raise Vanished("messages that were stored are gone from the mirror's stream", "they are published again")
        sequence = last.sequence
    sent = sum(len(part.messages) for part in (*begun.l0, *begun.own))
    known = len(run.l0) + len(run.own) - sent
    duplicates += sum(stored.duplicate for stored in told)
    return RunStored(sent - duplicates, duplicates + known, sequence)


async def _staged(session: JetStream, streams: Mapping[str, StreamFacts], messages: Sequence[Message]) -> list[_Part]:
    """Messages of one stream, as parts that a server takes."""
    parts = []
    for first in range(0, len(messages), MAX_BATCH):
        part = messages[first : first + MAX_BATCH]
        staged = None
        if len(part) >= ATOMIC_FROM and streams[stream_of(part[0].subject)].atomic:
            staged = await stage_batch(session, part, batch_id=_batch_id(session))
        parts.append(_Part(part, staged))
    return parts


async def _publish(session: JetStream, parts: Sequence[_Part]) -> list[Stored]:
    """Of an atomic batch only the last one's place is told."""
    stored: list[Stored] = []
    for part in parts:
        if part.staged is not None:
            try:
                stored.append(await part.staged.commit())
                continue
            except BatchRefused:
                pass  # nothing of it is stored: one by one it is found out which ones are there already
        try:
            stored += await publish_all(session, part.messages)
        except PublishStopped as stopped:
            raise stopped.error from None
    return stored


def _batch_id(session: JetStream) -> str:
    """Nobody else's: the end of a fresh inbox."""
    return session.new_inbox().rpartition(".")[2]


def position_of(headers: Mapping[str, str]) -> int:
    """Where the record of a message stands in its log; ``NOTHING`` when the message does not say it."""
    value = headers.get(h.POSITION, "")
    return int(value) if _is_number(value) else NOTHING


async def last_mirrored(session: JetStream, log_id: str) -> int:
    """Position of the last record of this log that the server has; ``NOTHING`` for none."""
    found = await last_message(session, EVENTS, log_pattern(log_id))
    return NOTHING if found is None else position_of(found.headers)


def mirrored_of(found: Found) -> Mirrored:
    """What a message in the stream says of its record."""
    identity = found.headers.get(h.MESSAGE_ID, "")
    event_id, _, number = identity.partition(":")
    return Mirrored(
        position_of(found.headers),
        event_id,
        found.headers.get(h.HASH, ""),
        int(number) if _is_number(number) else 0,
        found.sequence,
    )


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) < 19


async def begin_anew(session: JetStream, log_id: str, state: MirrorState) -> MirrorState:
    """Purge this log's part of ``MESHFORGE_EVENTS``, nobody else's; the state to publish everything from.

    L0 messages stay: publish with ``KnownL0``, then those that are there are not published a second time.
    """
    last = await last_message(session, EVENTS, log_pattern(log_id))
    number = max(state.rebuild, mirrored_of(last).rebuild if last is not None else 0)
    await purge(session, EVENTS, subject=log_pattern(log_id))
    return replace(state, rebuild=number).anew()
