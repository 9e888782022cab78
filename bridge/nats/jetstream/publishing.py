"""Publishing to streams: one message, many in a window, or an atomic batch; each is stored or an error says that not.

A message's ``Nats-Msg-Id`` makes publishing it again harmless within the
stream's duplicate window, so everything here may be repeated after an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bridge.nats.jetstream.connection import NO_RESPONDERS, JetStream, decoded, waited
from bridge.nats.jetstream.errors import BatchRefused, NatsError, NoStream
from bridge.nats.jetstream.wire import Received

MAX_BATCH: Final = 1000
"""Most messages of an atomic batch, by the server's limit."""

PUBLISH_SECONDS: Final = 10.0
"""How long a stored message's confirmation may take."""

WINDOW: Final = 256

BATCH_ID: Final = "Nats-Batch-Id"
BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
BATCH_COMMIT: Final = "Nats-Batch-Commit"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Sequence"
EXPECTED_SUBJECT_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_ID: Final = "Nats-Expected-Last-Msg-Id"


class Publishable(Protocol):
    """What can be published; ``messages.Message`` is one. The id is among the headers."""

    @property
    def subject(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Expect:
    """Where the stream must be for a message to be taken; what is None is not asked.

    ``sequence`` is of the stream's last message, ``subject_sequence`` of the last on
    the same subject (0: none), ``id`` the last message's ``Nats-Msg-Id``.
    """

    stream: str | None = None
    sequence: int | None = None
    subject_sequence: int | None = None
    id: str | None = None

    def headers(self) -> dict[str, str]:
        """As the server is told it."""
        asked = {
            EXPECTED_STREAM: self.stream,
            EXPECTED_SEQUENCE: self.sequence,
            EXPECTED_SUBJECT_SEQUENCE: self.subject_sequence,
            EXPECTED_ID: self.id,
        }
        return {name: str(value) for name, value in asked.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a message is. ``duplicate``: it was there before, by its id, and was not stored again."""

    stream: str
    sequence: int
    duplicate: bool = False


class PublishStopped(Exception):
    """A window ended at its first failure, ``error``; the messages before it are stored, as ``stored`` says.

    Of those after it some may be stored as well. Publish all from there again: ids make them one.
    """

    def __init__(self, stored: list[Stored], error: NatsError) -> None:
        super().__init__(stored, error)
        self.stored, self.error = stored, error

    def __str__(self) -> str:
        return f"after {len(self.stored)} messages: {self.error}"


async def publish(session: JetStream, message: Publishable, expect: Expect | None = None) -> Stored:
    """Publish one message and wait until its stream has it.

    Raises:
        WrongExpectation: the stream is elsewhere.
        NoStream: no stream takes it in.
        NatsUnavailable: no answer; it may be stored.
    """
    headers = {**message.headers, **(expect.headers() if expect is not None else {})}
    answer = await session.begin(message.subject, message.body, headers)
    return _stored(message, await waited(answer, PUBLISH_SECONDS))


async def publish_all(
    session: JetStream, messages: Sequence[Publishable], *, window: int = WINDOW, expect: Expect | None = None
) -> list[Stored]:
    """Publish messages in order, ``window`` of them on their way at a time; one ``Stored`` each, in order.

    After a failure none that was not sent yet is sent. ``expect`` holds for
    every one of them, so only its ``stream`` makes sense here.

    Raises:
        PublishStopped: one failed; those before it are stored.
    """
    more = expect.headers() if expect is not None else {}
    stored: list[Stored] = []
    under_way: list[asyncio.Future[Received]] = []
    try:
        for sent, message in enumerate(messages):
            if len(under_way) - len(stored) >= window:
                # Half of the window at once: waking up for every single answer costs more than it brings.
                await _take(messages, under_way, stored, sent - window // 2)
            under_way.append(await session.begin(message.subject, message.body, {**message.headers, **more}))
        await _take(messages, under_way, stored, len(messages))
    except NatsError as error:
        raise PublishStopped(stored, error) from None
    return stored


async def _take(
    messages: Sequence[Publishable], under_way: list[asyncio.Future[Received]], stored: list[Stored], until: int
) -> None:
    while len(stored) < until:
        place = len(stored)
        stored.append(_stored(messages[place], await waited(under_way[place], PUBLISH_SECONDS)))


async def publish_batch(
    session: JetStream, messages: Sequence[Publishable], *, batch_id: str, expect: Expect | None = None
) -> Stored:
    """Publish messages so that all are stored, next to each other, or none; where the last one is.

    Only for a stream that reads back that it allows it (``StreamFacts.atomic``).
    ``batch_id`` is at most 64 characters and nobody else's. ``expect`` is checked
    with the first message.

    Raises:
        ValueError: there are none, or over ``MAX_BATCH``.
        BatchDuplicate: one of the ids is stored already. Publish them one by one.
        BatchRefused: the server took none; as above.
        NatsUnavailable: no answer; all or none are stored.
    """
    return await (await stage_batch(session, messages, batch_id=batch_id, expect=expect)).commit()


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """An atomic batch of which all but the last message was sent. Nothing of it is stored before ``commit``.

    One that is never committed is forgotten by the server after some seconds.
    """

    session: JetStream
    messages: Sequence[Publishable]
    batch_id: str
    begun: asyncio.Future[Received] | None
    """The answer to the first message, where that is not the last."""
    expect: Expect | None

    async def commit(self) -> Stored:
        """Send the last message; where it is. Raises as ``publish_batch``."""
        last = len(self.messages)
        what = f"a batch to {self.messages[0].subject}"
        headers = _in_batch(self.messages[-1], self.batch_id, last, self.expect)
        headers[BATCH_COMMIT] = "1"
        committed = await self.session.begin(self.messages[-1].subject, self.messages[-1].body, headers)
        if self.begun is not None:
            first = await waited(self.begun, PUBLISH_SECONDS)
            if first.body or first.status:
                _stored(self.messages[0], first)
                raise BatchRefused(what, 0, "its messages were taken one by one")
        found = decoded(what, await waited(committed, PUBLISH_SECONDS))
        if found.get("count") != last:
            raise BatchRefused(what, 0, "its messages were taken one by one")
        return Stored(str(found["stream"]), int(found["seq"]))


async def stage_batch(
    session: JetStream, messages: Sequence[Publishable], *, batch_id: str, expect: Expect | None = None
) -> StagedBatch:
    """Send all of an atomic batch but its last message; see ``publish_batch``.

    Raises:
        ValueError: there are none, or over ``MAX_BATCH``.
        NatsError: it could not be sent.
    """
    if not 0 < len(messages) <= MAX_BATCH:
        raise ValueError(f"a batch has 1 to {MAX_BATCH} messages, not {len(messages)}")
    begun = None
    if len(messages) > 1:
        # Those between are answered by nobody. The first is answered with nothing, or with why there is no batch.
        first = messages[0]
        begun = await session.begin(first.subject, first.body, _in_batch(first, batch_id, 1, expect))
        await session.send_all(
            [
                (each.subject, each.headers, f"{BATCH_ID}: {batch_id}\r\n{BATCH_SEQUENCE}: {place}\r\n", each.body)
                for place, each in enumerate(messages[1:-1], 2)
            ]
        )
    return StagedBatch(session, messages, batch_id, begun, expect)


def _in_batch(message: Publishable, batch_id: str, number: int, expect: Expect | None) -> dict[str, str]:
    headers = {**message.headers, BATCH_ID: batch_id, BATCH_SEQUENCE: str(number)}
    return headers | expect.headers() if number == 1 and expect is not None else headers


def _stored(message: Publishable, answer: Received) -> Stored:
    if answer.status == NO_RESPONDERS:
        raise NoStream(f"no stream takes in {message.subject}", "it is missing, or the server is still starting")
    found = decoded(f"publishing to {message.subject}", answer)
    return Stored(str(found["stream"]), int(found["seq"]), found.get("duplicate") is True)
