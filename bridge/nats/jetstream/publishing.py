"""Publishes one message, many messages with a limited number in flight (a window), or an atomic batch.

When a function returns, the messages are stored; otherwise the function raises an error.

Every message has a ``Nats-Msg-Id``, so after an error every call here can be repeated within the stream's duplicate
window without storing a message twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from bridge.nats.jetstream.connection import NO_RESPONDERS, JetStream, decoded, waited
from bridge.nats.jetstream.errors import BatchRefused, NatsError, NoStream
from bridge.nats.jetstream.wire import Message, Received

MAX_BATCH: Final = 1000
"""Maximum number of messages in an atomic batch: the server's limit."""

PUBLISH_SECONDS: Final = 10.0
"""How many seconds to wait for the confirmation of a message."""

WINDOW: Final = 256

BATCH_ID: Final = "Nats-Batch-Id"
BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
BATCH_COMMIT: Final = "Nats-Batch-Commit"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Sequence"
EXPECTED_SUBJECT_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_ID: Final = "Nats-Expected-Last-Msg-Id"


@dataclass(frozen=True, slots=True)
class Expect:
    """The state that a stream must have to accept a message; ``None`` fields are not checked.

    ``sequence`` is the sequence of the stream's last message, ``subject_sequence`` is the sequence of the last message
    on the same subject (0: none), and ``id`` is the last message's ``Nats-Msg-Id``.
    """

    stream: str | None = None
    sequence: int | None = None
    subject_sequence: int | None = None
    id: str | None = None

    def headers(self) -> dict[str, str]:
        asked = {
            EXPECTED_STREAM: self.stream,
            EXPECTED_SEQUENCE: self.sequence,
            EXPECTED_SUBJECT_SEQUENCE: self.subject_sequence,
            EXPECTED_ID: self.id,
        }
        return {name: str(value) for name, value in asked.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a message is stored. ``duplicate``: a message with the same id was already stored, so the new message was
    not."""

    stream: str
    sequence: int
    duplicate: bool = False


class PublishStopped(Exception):
    """Publishing stopped with ``error``. The messages before the failed one are stored; ``stored`` says where.

    Some of the later messages may also be stored. Publish again, starting with the failed message; the ids prevent
    duplicates.
    """

    code: ClassVar[str] = "nats-publish-stopped"

    def __init__(self, stored: list[Stored], error: NatsError) -> None:
        super().__init__(stored, error)
        self.stored, self.error = stored, error

    def __str__(self) -> str:
        return f"publishing stopped after {len(self.stored)} messages: {self.error}"


async def publish(session: JetStream, message: Message, expect: Expect | None = None) -> Stored:
    """Publish one message and wait until its stream has stored it.

    Raises:
        WrongExpectation: the stream is not in the state that ``expect`` describes.
        NoStream: no stream stores the subject.
        NatsUnavailable: no answer came; the message may be stored.
    """
    headers = {**message.headers, **(expect.headers() if expect is not None else {})}
    answer = await session.begin(message.subject, message.body, headers)
    return _stored(message, await waited(answer, PUBLISH_SECONDS))


async def publish_all(
    session: JetStream, messages: Sequence[Message], *, window: int = WINDOW, expect: Expect | None = None
) -> list[Stored]:
    """Publish messages in order, up to ``window`` of them at a time; return one ``Stored`` for each message, in order.

    After a failure no further message is sent. ``expect`` applies to every
    message, so only its ``stream`` makes sense here.

    Raises:
        PublishStopped: a message failed; the messages before it are stored.
    """
    more = expect.headers() if expect is not None else {}
    stored: list[Stored] = []
    in_flight: list[asyncio.Future[Received]] = []
    try:
        for sent, message in enumerate(messages):
            if len(in_flight) - len(stored) >= window:
                # Wait for half of the window at once, because waking up for every answer costs more than it gains.
                await _take(messages, in_flight, stored, sent - window // 2)
            in_flight.append(await session.begin(message.subject, message.body, {**message.headers, **more}))
        await _take(messages, in_flight, stored, len(messages))
    except NatsError as error:
        raise PublishStopped(stored, error) from None
    return stored


async def _take(
    messages: Sequence[Message], in_flight: list[asyncio.Future[Received]], stored: list[Stored], until: int
) -> None:
    while len(stored) < until:
        place = len(stored)
        stored.append(_stored(messages[place], await waited(in_flight[place], PUBLISH_SECONDS)))


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
    expect: Expect | None

    async def commit(self) -> Stored:
        """Send the last message, which stores all consecutively or none; return where the last is stored.

        Raises:
            BatchDuplicate: one of the ids is already stored. Publish the messages one by one.
            BatchRefused: the server did not store the messages as a batch. Publish them one by one; their ids prevent
                duplicates.
            NatsUnavailable: no answer came; either all messages are stored or none is.
        """
        last = len(self.messages)
        what = f"a batch to {self.messages[0].subject}"
        headers = _in_batch(self.messages[-1], self.batch_id, last, self.expect)
        headers[BATCH_COMMIT] = "1"
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


async def stage_batch(
    session: JetStream, messages: Sequence[Message], *, batch_id: str, expect: Expect | None = None
) -> StagedBatch:
    """Send all messages of an atomic batch except the last.

    The stream must support atomic batches (``StreamFacts.atomic``). ``batch_id`` must be unique and at most 64
    characters. ``expect`` is checked with the first message.

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
        begun = await session.begin(first.subject, first.body, _in_batch(first, batch_id, 1, expect))
        await session.send_all(
            [
                (each.subject, each.headers, f"{BATCH_ID}: {batch_id}\r\n{BATCH_SEQUENCE}: {place}\r\n", each.body)
                for place, each in enumerate(messages[1:-1], 2)
            ]
        )
    return StagedBatch(session, messages, batch_id, begun, expect)


def _in_batch(message: Message, batch_id: str, number: int, expect: Expect | None) -> dict[str, str]:
    headers = {**message.headers, BATCH_ID: batch_id, BATCH_SEQUENCE: str(number)}
    return headers | expect.headers() if number == 1 and expect is not None else headers


def _stored(message: Message, answer: Received) -> Stored:
    if answer.status == NO_RESPONDERS:
        raise NoStream(f"no stream stores {message.subject}", "the stream is missing, or the server is still starting")
    found = decoded(f"publishing to {message.subject}", answer)
    return Stored(str(found["stream"]), int(found["seq"]), found.get("duplicate") is True)
