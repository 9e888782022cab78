"""Publishes one message, many messages with a limited number in flight, or an atomic batch.

When a function returns, the messages are stored; otherwise the function raises an error.

Every message has a ``Nats-Msg-Id``, so after an error every call here can be repeated within the stream's duplicate
window without storing a message twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from bridge.nats.jetstream.connection import NO_RESPONDERS, JetStream, decoded, waited
from bridge.nats.jetstream.errors import BatchRefused, NoStream, WrongExpectation
from bridge.nats.jetstream.wire import Message, Received

MAX_BATCH: Final = 1000
"""Maximum number of messages in an atomic batch: the server's limit."""

PUBLISH_SECONDS: Final = 10.0
"""How many seconds to wait for the confirmation of a message."""

WINDOW: Final = 256
"""How many messages are in flight at a time."""

BATCH_ID: Final = "Nats-Batch-Id"
BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
BATCH_COMMIT: Final = "Nats-Batch-Commit"
EXPECTED_REVISION: Final = "Nats-Expected-Last-Subject-Sequence"
"""The header of a message that is stored only after the message with this sequence on its subject; 0: as the first."""

EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
"""The header with the pattern whose last message is meant, instead of that of the message's own subject."""

_EXPECTED_STREAM: Final = "Nats-Expected-Stream"


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a message is stored. ``duplicate``: a message with the same id was already stored, so the new message was
    not."""

    stream: str
    sequence: int
    duplicate: bool = False


async def publish(session: JetStream, message: Message) -> Stored:
    """Publish one message and wait until its stream has stored it.

    Raises:
        WrongExpectation: the last message of the subject is not the one that a header expects.
        NoStream: no stream stores the subject.
        NatsUnavailable: no answer came; the message may be stored.
    """
    answer = await session.begin(message.subject, message.body, message.headers)
    return _stored(message, await waited(answer, PUBLISH_SECONDS))


async def settle(session: JetStream, subject: str) -> None:
    """Return when the stream of a subject has handled every message that reached the server before this call.

    The server answers requests beside the streams' queues, so a request can overtake a message whose answer is lost.
    The message that this sends waits in the queue behind it, and is then refused.

    Raises:
        NatsError: the server did not answer, or no stream stores the subject.
    """
    answer = await session.begin(subject, b"", {_EXPECTED_STREAM: "-"})
    with suppress(WrongExpectation):
        _stored(Message(subject, {}, b""), await waited(answer, PUBLISH_SECONDS))


async def publish_all(session: JetStream, messages: Sequence[Message], *, window: int = WINDOW) -> list[Stored]:
    """Publish messages in order, ``window`` of them at a time; return one ``Stored`` for each message, in order.

    Raises:
        NatsError: of the first message that failed. Those before its window are stored, others may be.
    """
    stored: list[Stored] = []
    for first in range(0, len(messages), window):
        part = messages[first : first + window]
        answers = [await session.begin(each.subject, each.body, each.headers) for each in part]
        for each, answer in zip(part, answers, strict=True):
            stored.append(_stored(each, await waited(answer, PUBLISH_SECONDS)))
    return stored


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """An atomic batch whose messages have all been sent except the last one. Nothing is stored before ``commit``.

    The server drops a batch that is not committed within some seconds.
    """

    session: JetStream
    messages: Sequence[Message]
    batch_id: str
    begun: asyncio.Future[Received] | None
    """The answer to the first message; ``None`` if the batch has only one message."""

    async def commit(self, guard: Mapping[str, str] = MappingProxyType({})) -> Stored:
        """Send the last message, which stores all consecutively or none; return where the last is stored.

        ``guard`` are more headers of the last message.

        Raises:
            WrongExpectation: the stream is not as ``guard`` expects it; nothing was stored.
            BatchRefused: the server did not store the messages as a batch. Publish them one by one; their ids prevent
                duplicates.
            NatsUnavailable: no answer came; either all messages are stored or none is.
        """
        last = len(self.messages)
        what = f"a batch to {self.messages[0].subject}"
        headers = {**_in_batch(self.messages[-1], self.batch_id, last), **guard, BATCH_COMMIT: "1"}
        committed = await self.session.begin(self.messages[-1].subject, self.messages[-1].body, headers)
        if self.begun is not None:
            first = await waited(self.begun, PUBLISH_SECONDS)
            if first.body or first.status:
                _stored(self.messages[0], first)
                raise BatchRefused(what, 0, "the server stored the messages individually, not as one batch")
        found = decoded(what, await waited(committed, PUBLISH_SECONDS))
        if found.get("count") != last:
            raise BatchRefused(what, 0, "the server stored the messages individually, not as one batch")
        return Stored(str(found["stream"]), int(found["seq"]))


async def stage_batch(session: JetStream, messages: Sequence[Message], *, batch_id: str) -> StagedBatch:
    """Send all messages of an atomic batch except the last.

    The stream must support atomic batches. ``batch_id`` must be unique and at most 64
    characters.

    Raises:
        ValueError: there are no messages, or more than ``MAX_BATCH``.
        NatsError: sending failed.
    """
    if not 0 < len(messages) <= MAX_BATCH:
        raise ValueError(f"a batch must have 1 to {MAX_BATCH} messages, not {len(messages)}")
    begun = None
    if len(messages) > 1:
        # Begin the first message on its own: the server answers it (with an empty body or an error), but no message
        # between the first and the last.
        first = messages[0]
        begun = await session.begin(first.subject, first.body, _in_batch(first, batch_id, 1))
        await session.send_all(
            [
                (each.subject, each.headers, f"{BATCH_ID}: {batch_id}\r\n{BATCH_SEQUENCE}: {place}\r\n", each.body)
                for place, each in enumerate(messages[1:-1], 2)
            ]
        )
    return StagedBatch(session, messages, batch_id, begun)


def _in_batch(message: Message, batch_id: str, number: int) -> dict[str, str]:
    return {**message.headers, BATCH_ID: batch_id, BATCH_SEQUENCE: str(number)}


def _stored(message: Message, answer: Received) -> Stored:
    if answer.status == NO_RESPONDERS:
        raise NoStream(f"no stream stores {message.subject}", "the stream is missing, or the server is still starting")
    found = decoded(f"publishing to {message.subject}", answer)
    return Stored(str(found["stream"]), int(found["seq"]), found.get("duplicate") is True)
