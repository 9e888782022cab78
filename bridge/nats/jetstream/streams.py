"""What is on the server: streams made as they must be, their facts as they read back, and their messages."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.nats.jetstream.connection import API, JetStream, decoded, waited
from bridge.nats.jetstream.errors import NatsUnavailable, NotFound, NotNow, ServerRefused, StreamRefused
from bridge.nats.jetstream.stream_plan import StreamDefinition, StreamPlan, plan, server_version
from bridge.nats.jetstream.wire import HeaderBlock, Received

READ_BATCH: Final = 256
"""Messages that are asked for at once; while those come, the next are asked for."""

_PAGE: Final = 256
"""Streams in one answer of the server."""

_NS: Final = 1_000_000_000
_DELETIONS: Final = 128
"""Deletions that are on their way at a time."""

DELETE_SECONDS: Final = 10.0

_CREATE_FAILED: Final = 10049
"""The server's number for any failure of its own while it makes a stream."""
_CREATE_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4)


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A stream as the server describes it, configuration and state in its own JSON (times in nanoseconds)."""

    name: str
    config: Mapping[str, Any] = field(repr=False)
    state: Mapping[str, Any]
    created: str = ""
    """When it was made, in the server's words: where it is another time, it is another stream."""

    @property
    def atomic(self) -> bool:
        """Whether it takes atomic batches: what it reads back, whatever was asked for."""
        return self.config.get("allow_atomic") is True

    @property
    def messages(self) -> int:
        return int(self.state["messages"])

    @property
    def first_sequence(self) -> int:
        """Of the oldest message; one past ``last_sequence`` when there is none."""
        return int(self.state["first_seq"])

    @property
    def last_sequence(self) -> int:
        """Of the newest message there ever was; 0 before the first."""
        return int(self.state["last_seq"])


@dataclass(frozen=True, slots=True)
class Found:
    """A message that is kept in a stream."""

    subject: str
    sequence: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


async def facts(session: JetStream, name: str) -> StreamFacts:
    """One stream as it is now.

    Raises:
        NotFound: there is none of that name.
        NatsUnavailable: no answer.
    """
    return _facts(await session.api(f"STREAM.INFO.{name}"))


async def all_facts(session: JetStream) -> list[StreamFacts]:
    """All streams of the account, by name."""
    found: list[StreamFacts] = []
    while True:
        page = await session.api("STREAM.LIST", {"offset": len(found)})
        streams = page.get("streams") or []
        found += [_facts(each) for each in streams]
        if not streams or len(found) >= int(page.get("total") or 0):
            return sorted(found, key=lambda each: each.name)


async def ensure_streams(session: JetStream, definitions: Iterable[StreamDefinition]) -> dict[str, StreamFacts]:
    """Make every stream that is missing, change those that differ; all of them as they then read back, by name.

    Nothing is changed when one of them is refused. Idempotent. What a server does
    not know is left out by its version, so look at the facts, not at the definitions.

    Raises:
        StreamRefused: a stream of that name, or on its subjects, is in the way; the text says what to do.
        NatsUnavailable: no answer. Safe to repeat.
    """
    wanted = list(definitions)
    version = server_version(session.server.version)
    there = [dict(each.config) for each in await all_facts(session)]
    plans = plan(wanted, there, server=version)
    for each in plans:
        if each.action == "refuse":
            raise StreamRefused(f"stream {each.name}", 0, "; ".join(each.reasons))
    for each in plans:
        await _carry_out(session, each)
    read = {each.name: await facts(session, each.name) for each in wanted}
    # What the server silently left as it was shows now, and only now.
    for each in plan(wanted, [dict(one.config) for one in read.values()], server=version):
        if each.action != "keep" and any(change.setting not in _OPTIONAL for change in each.changes):
            raise StreamRefused(f"stream {each.name}", 0, f"the server keeps it otherwise: {each}")
    return read


_OPTIONAL: Final = frozenset({"allow_atomic", "allow_direct", "description"})
"""Settings without which a stream does what it must, only more slowly."""


async def _carry_out(session: JetStream, wanted: StreamPlan) -> None:
    if wanted.action not in ("create", "update"):
        return
    # A server removes the directories of a deleted stream after it answered, at times from under the next one.
    pauses = iter(_CREATE_PAUSES_S)
    while True:
        try:
            await session.api(f"STREAM.{wanted.action.upper()}.{wanted.name}", wanted.config)
            return
        except NotNow:
            if (pause := next(pauses, None)) is None:
                raise
        except ServerRefused as error:
            pause = next(pauses, None) if error.code == _CREATE_FAILED else None
            if pause is None:
                raise StreamRefused(f"stream {wanted.name}", error.code, error.description) from None
        await asyncio.sleep(pause)


async def purge(session: JetStream, stream: str, *, subject: str) -> int:
    """Remove the messages on a subject or pattern; how many there were.

    Raises:
        NotFound: there is no such stream.
        ServerRefused: it does not allow it.
    """
    answer = await session.api(f"STREAM.PURGE.{stream}", {"filter": subject})
    return int(answer.get("purged") or 0)


async def message_at(session: JetStream, stream: str, sequence: int) -> Found:
    """The message at a place of a stream.

    Raises:
        NotFound: none is there, or no more.
    """
    return _found(await session.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence}))


async def last_message(session: JetStream, stream: str, subject: str) -> Found | None:
    """The newest message on a subject or pattern; None when there is none.

    Raises:
        NatsUnavailable: no answer.
    """
    try:
        return _found(await session.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject}))
    except NotFound:
        return None


async def next_message(session: JetStream, stream: str, subject: str, *, from_sequence: int = 1) -> Found | None:
    """The oldest message on a subject or pattern from ``from_sequence`` on; None when there is none.

    Raises:
        NatsUnavailable: no answer.
    """
    request = {"seq": max(from_sequence, 1), "next_by_subj": subject}
    try:
        return _found(await session.api(f"STREAM.MSG.GET.{stream}", request))
    except NotFound:
        return None


async def count_messages(session: JetStream, stream: str, subject: str) -> int:
    """How many messages on a subject or pattern the stream holds.

    Raises:
        NotFound: there is no such stream.
        NatsUnavailable: no answer.
    """
    config = {
        "ack_policy": "none",
        "deliver_policy": "all",
        "filter_subject": subject,
        "inactive_threshold": 5 * _NS,
        "mem_storage": True,
        "num_replicas": 1,
        "max_deliver": 1,
    }
    made = await session.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
    await _forget_consumer(session, stream, str(made["name"]))
    return int(made.get("num_pending") or 0)


async def delete_messages(session: JetStream, stream: str, sequences: Sequence[int], *, erase: bool) -> int:
    """Delete messages by their places; how many were there. ``erase`` overwrites their bytes on the server's disk.

    Raises:
        NatsError: not all are known to be deleted; safe to repeat.
    """
    deleted = 0
    for first in range(0, len(sequences), _DELETIONS):
        asked = [
            await session.begin(
                f"{API}STREAM.MSG.DELETE.{stream}",
                b'{"seq":%d,"no_erase":%s}' % (sequence, b"false" if erase else b"true"),
            )
            for sequence in sequences[first : first + _DELETIONS]
        ]
        for each in asked:
            try:
                decoded("deleting a message", await waited(each, DELETE_SECONDS))
            except NotFound:
                continue
            deleted += 1
    return deleted


async def read_back(
    session: JetStream, stream: str, *, subject: str = "", from_sequence: int = 1, silence_seconds: float = 10.0
) -> AsyncIterator[Found]:
    """The messages of a stream in order, from ``from_sequence`` to the last one that was there at the call.

    ``subject`` (a subject or pattern) leaves others out. Nothing is acknowledged
    or kept on the server; any number may read at a time.

    Raises:
        NotFound: there is no such stream.
        NatsUnavailable: the connection ended, or nothing came for ``silence_seconds``; go on after the last one.
    """
    last = (await facts(session, stream)).last_sequence
    config: dict[str, Any] = {
        "ack_policy": "none",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": max(from_sequence, 1),
        "inactive_threshold": int((silence_seconds + 20) * _NS),
        "mem_storage": True,
        "num_replicas": 1,
        "max_deliver": 1,
    }
    if subject:
        config["filter_subject"] = subject
    made = await session.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
    name, left = str(made["name"]), int(made.get("num_pending") or 0)
    inbox = session.new_inbox()
    arrived: asyncio.Queue[Received] = asyncio.Queue()
    taken = asked = 0
    try:
        async with session.hearing(inbox, arrived.put_nowait):
            while left > 0:
                if asked - taken <= READ_BATCH < left or asked == taken:
                    request = b'{"batch": %d, "expires": %d}' % (READ_BATCH, int(silence_seconds * _NS))
                    await session.send(f"{API}CONSUMER.MSG.NEXT.{stream}.{name}", request, reply=inbox)
                    asked += READ_BATCH
                message = await arriving(session, arrived, silence_seconds + 1)
                place = Delivered.of(message.reply) if not message.status else None
                if place is None or place.consumer_sequence != taken + 1:
                    why = message.description or "a message is missing between two"
                    raise NatsUnavailable(f"reading {stream} was interrupted: {why}")
                taken += 1
                left = place.pending if place.stream_sequence < last else 0
                if place.stream_sequence > last:
                    return
                yield Found(message.subject, place.stream_sequence, message.headers, message.body)
    finally:
        if session.is_open:
            await _forget_consumer(session, stream, name)


async def arriving(session: JetStream, arrived: asyncio.Queue[Received], seconds: float) -> Received:
    """The next message of a subscription's queue.

    Raises:
        NatsUnavailable: the connection ended, or nothing came for so long.
    """
    if not arrived.empty():
        return arrived.get_nowait()
    try:
        async with asyncio.timeout(seconds):
            return await session.while_open(arrived.get())
    except TimeoutError:
        raise NatsUnavailable(f"the NATS server sent nothing for {seconds:g} s") from None


async def _forget_consumer(session: JetStream, stream: str, name: str) -> None:
    try:
        await session.api(f"CONSUMER.DELETE.{stream}.{name}")
    except (NatsUnavailable, ServerRefused):
        return  # it goes by itself when nobody has asked it for a while


@dataclass(frozen=True, slots=True)
class Delivered:
    """What the subject for acknowledgements says of a delivery; ``count`` is 1 at the first."""

    stream: str
    consumer: str
    count: int
    stream_sequence: int
    consumer_sequence: int
    pending: int

    @classmethod
    def of(cls, reply: str) -> Delivered | None:
        """Parse ``$JS.ACK.…``, in its old and its new form; None when it is something else."""
        tokens = reply.split(".")
        if tokens[:2] != ["$JS", "ACK"]:
            return None
        body = tokens[2:] if len(tokens) == 9 else tokens[4:]
        try:
            stream, consumer, count, stream_sequence, consumer_sequence, _, pending = body[:7]
            return cls(stream, consumer, int(count), int(stream_sequence), int(consumer_sequence), int(pending))
        except ValueError:
            return None


def _facts(answer: Mapping[str, Any]) -> StreamFacts:
    return StreamFacts(
        str(answer["config"]["name"]), answer["config"], answer["state"], str(answer.get("created") or "")
    )


def _found(answer: Mapping[str, Any]) -> Found:
    message = answer["message"]
    return Found(
        str(message["subject"]),
        int(message["seq"]),
        HeaderBlock(base64.b64decode(message.get("hdrs") or "")),
        base64.b64decode(message.get("data") or ""),
    )
