"""Publishes one message, many messages with a limited number in flight, or an atomic batch.

When a function returns, the messages are stored; otherwise the function raises an error.

Every message has a ``Nats-Msg-Id``, so after an error every call here can be repeated within the stream's duplicate
window without storing a message twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final, NamedTuple

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import BatchRefused, WrongExpectation
from bridge.nats.jetstream.wire import Message

MAX_BATCH: Final = 1000
"""Maximum number of messages in an atomic batch: the server's limit."""

WINDOW: Final = 256
"""How many messages are in flight at a time."""

EXPECTED_REVISION: Final = "Nats-Expected-Last-Subject-Sequence"
"""The header of a message that is stored only after the message with this sequence on its subject; 0: as the first."""

EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
"""The header with the pattern whose last message is meant, instead of that of the message's own subject."""


class Stored(NamedTuple):
    """Where a message is stored. ``duplicate``: a message with the same id was already stored, so the new message was
    not."""

    sequence: int
    duplicate: bool = False


async def publish(session: JetStream, message: Message) -> Stored:
    """Publish one message and wait until its stream has stored it.

    Raises:
        WrongExpectation: the last message of the subject is not the one that a header expects.
        NoStream: no stream stores the subject.
        NatsUnavailable: no answer came; the message may be stored.
    """
    return (await publish_all(session, [message]))[0]


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
            found = await session.answered(f"publishing to {each.subject}", answer)
            stored.append(Stored(int(found["seq"]), found.get("duplicate") is True))
    return stored


async def settle(session: JetStream, subject: str) -> None:
    """Return when the stream of a subject has handled every message that reached the server before this call.

    The server answers requests beside the streams' queues, so a request can overtake a message whose answer is lost.
    The message that this sends waits in the queue behind it, and is then refused.

    Raises:
        NatsError: the server did not answer, or no stream stores the subject.
    """
    with suppress(WrongExpectation):
        await publish(session, Message(subject, {"Nats-Expected-Stream": "-"}, b""))


async def publish_batch(
    session: JetStream, messages: Sequence[Message], guard: Mapping[str, str] = MappingProxyType({})
) -> Stored:
    """Publish 1 to ``MAX_BATCH`` messages as an atomic batch: the stream stores all consecutively or none. Return where
    the last is stored.

    ``guard`` are more headers of the last message, which commits the batch.

    Raises:
        WrongExpectation: the stream is not as ``guard`` expects it; nothing was stored.
        BatchRefused: the server did not store the messages as a batch. Publish them one by one; their ids prevent
            duplicates.
        NatsUnavailable: no answer came; either all messages are stored or none is.
    """
    batch = session.new_inbox().rpartition(".")[2]
    await session.send_all(
        [
            (each.subject, each.headers, f"Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {number}\r\n", each.body)
            for number, each in enumerate(messages[:-1], 1)
        ]
    )
    subject, headers, body = messages[-1]
    count, what = len(messages), f"a batch to {subject}"
    place = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(count), "Nats-Batch-Commit": "1"}
    found = await session.answered(what, await session.begin(subject, body, {**headers, **place, **guard}))
    if found.get("count") != count:
        raise BatchRefused(what, 0, "the server stored the messages individually, not as one batch")
    return Stored(int(found["seq"]))
