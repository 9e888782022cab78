"""Creates, updates and reads streams, and reads and deletes their messages."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Any, Final

from bridge.nats.jetstream.connection import API, JetStream, decoded, waited
from bridge.nats.jetstream.errors import (
    NatsRefused,
    NatsUnavailable,
    NotFound,
    ServerBusy,
    ServerRefused,
    StreamRefused,
)
from bridge.nats.jetstream.stream_plan import OLDEST, StreamDefinition, StreamPlan, plan, server_version
from bridge.nats.jetstream.wire import HeaderBlock, Received
from streams.system.retry import Retry

READ_BATCH: Final = 256
"""How many messages one request asks for; the next request is sent while these messages are still arriving."""

_NS: Final = 1_000_000_000
_DELETIONS: Final = 128
"""Maximum number of deletions in flight at a time."""

DELETE_SECONDS: Final = 10.0

_CREATE_FAILED: Final = 10049
"""The server's number for an internal failure while it creates a stream."""
_CREATE: Final = Retry(0.05, 0.4, attempts=5)


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A stream as the server describes it: configuration and state are the server's JSON (times in nanoseconds)."""

    name: str
    config: Mapping[str, Any] = field(repr=False)
    state: Mapping[str, Any]
    created: str = ""
    """When the server created the stream, as reported by the server. A different time means a different stream."""

    @property
    def messages(self) -> int:
        return int(self.state["messages"])

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest message ever stored; 0 if none was ever stored."""
        return int(self.state["last_seq"])


@dataclass(frozen=True, slots=True)
class StreamMessage:
    subject: str
    sequence: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    time: str = ""
    """When the server stored it, in ISO 8601; empty if it was read with others."""


async def facts(session: JetStream, name: str) -> StreamFacts:
    """One stream as it is now.

    Raises:
        NotFound: no stream has that name.
        NatsUnavailable: no answer.
    """
    return _facts(await session.api(f"STREAM.INFO.{name}"))


async def all_facts(session: JetStream) -> list[StreamFacts]:
    return sorted(
        [_facts(each) for each in await listed(session, "STREAM.LIST", "streams")], key=lambda each: each.name
    )


async def listed(session: JetStream, method: str, key: str) -> list[dict[str, Any]]:
    """All pages of a list of the JetStream API, whose entries are under ``key``. Raises the same as ``api``."""
    found: list[dict[str, Any]] = []
    while True:
        page = await session.api(method, {"offset": len(found)})
        entries = page.get(key) or []
        found += entries
        if not entries or len(found) >= int(page.get("total") or 0):
            return found


async def ensure_streams(session: JetStream, definitions: Iterable[StreamDefinition]) -> dict[str, StreamFacts]:
    """Create missing streams and update streams that differ; return the facts of all these streams, by name, as read
    back from the server.

    If one stream is refused, no stream is changed. Idempotent.

    Raises:
        NatsRefused: the server is older than ``OLDEST``.
        StreamRefused: an existing stream with the same name or subjects is unsuitable; the text says what to do.
        NatsUnavailable: no answer came. It is safe to call this again.
    """
    wanted = list(definitions)
    if server_version(session.server.version) < OLDEST:
        reason = f"the NATS server has version {session.server.version}, which is too old"
        raise NatsRefused(reason, f"use nats-server {'.'.join(map(str, OLDEST))} or newer")
    plans = plan(wanted, [each.config for each in await all_facts(session)])
    for each in plans:
        if each.action == "refuse":
            raise StreamRefused(f"stream {each.name}", 0, "; ".join(each.reasons))
    for each in plans:
        await _carry_out(session, each)
    read = {each.name: await facts(session, each.name) for each in wanted}
    # Read the settings back, because the server silently ignores changes to some settings.
    for each in plan(wanted, [one.config for one in read.values()]):
        if each.action != "keep":
            raise StreamRefused(f"stream {each.name}", 0, f"the server did not apply the settings: {each}")
    return read


async def _carry_out(session: JetStream, wanted: StreamPlan) -> None:
    if wanted.action not in ("create", "update"):
        return
    # Try again if the server is busy: it confirms the deletion of a stream before it removes the stream's directory,
    # which can break a new stream of the same name.
    for attempt in count(1):
        try:
            await session.api(f"STREAM.{wanted.action.upper()}.{wanted.name}", wanted.config)
            return
        except ServerBusy:
            if _CREATE.is_last(attempt):
                raise
        except ServerRefused as error:
            if error.server_code != _CREATE_FAILED or _CREATE.is_last(attempt):
                raise StreamRefused(f"stream {wanted.name}", error.server_code, error.description) from None
        await asyncio.sleep(_CREATE.pause(attempt))


async def purge(session: JetStream, stream: str, *, subject: str) -> int:
    """Remove the messages on a subject or pattern; return how many were removed.

    Raises:
        NotFound: there is no such stream.
        ServerRefused: the server does not allow purging.
    """
    answer = await session.api(f"STREAM.PURGE.{stream}", {"filter": subject})
    return int(answer.get("purged") or 0)


async def last_message(session: JetStream, stream: str, subject: str) -> StreamMessage | None:
    """The newest message on a subject or pattern; None if there is none.

    Raises:
        NatsUnavailable: no answer.
    """
    return await _found(session, stream, {"last_by_subj": subject})


async def message_at(session: JetStream, stream: str, sequence: int) -> StreamMessage:
    """The message with a sequence.

    Raises:
        NotFound: there is none, or it was removed.
        NatsUnavailable: no answer.
    """
    return _stream_message(await session.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence}))


async def next_message(
    session: JetStream, stream: str, subject: str, *, from_sequence: int = 1
) -> StreamMessage | None:
    """The oldest message on a subject or pattern, starting with ``from_sequence``; None if there is none.

    Raises:
        NatsUnavailable: no answer.
    """
    return await _found(session, stream, {"seq": max(from_sequence, 1), "next_by_subj": subject})


async def _found(session: JetStream, stream: str, request: dict[str, Any]) -> StreamMessage | None:
    try:
        return _stream_message(await session.api(f"STREAM.MSG.GET.{stream}", request))
    except NotFound:
        return None


async def _consumer(
    session: JetStream,
    stream: str,
    subject: str,
    from_sequence: int,
    idle_seconds: float,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """A new consumer of the messages on a subject, as the server describes it; an idle one is removed by itself."""
    config: dict[str, Any] = {
        "ack_policy": "none",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": max(from_sequence, 1),
        "inactive_threshold": int(idle_seconds * _NS),
        "mem_storage": True,
        "num_replicas": 1,
        "max_deliver": 1,
        **({"filter_subject": subject} if subject else {}),
        **more,
    }
    if "opt_start_time" in more:
        del config["opt_start_seq"]
    return await session.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})


async def delete_messages(session: JetStream, stream: str, sequences: Sequence[int], *, erase: bool) -> int:
    """Delete messages by sequence; return how many existed. ``erase`` overwrites their bytes on the server's disk.

    Raises:
        NatsError: perhaps some messages were not deleted. It is safe to call this again.
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
    session: JetStream,
    stream: str,
    *,
    subject: str = "",
    from_sequence: int = 1,
    since: str = "",
    headers_only: bool = False,
    silence_seconds: float = 10.0,
) -> AsyncIterator[StreamMessage]:
    """Read a stream in order, from ``from_sequence`` to the message that was the last one when this was called.

    ``since``: begin with the first message that was stored at this time (ISO 8601) or later, instead.
    ``headers_only``: leave the bodies on the server.

    Only messages on ``subject``, a subject or pattern, are read. Reading changes nothing on the server, and any number
    of readers can run at a time.

    Raises:
        NotFound: there is no such stream.
        NatsUnavailable: the connection ended, or nothing arrived for ``silence_seconds``. To continue, call this again
            with the sequence after the last message.
    """
    last = (await facts(session, stream)).last_sequence
    more: dict[str, Any] = {"headers_only": True} if headers_only else {}
    if since:
        more |= {"deliver_policy": "by_start_time", "opt_start_time": since}
    made = await _consumer(session, stream, subject, from_sequence, silence_seconds + 20, more)
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
                    why = message.description or "a message in the sequence is missing"
                    raise NatsUnavailable(f"reading {stream} was interrupted: {why}")
                taken += 1
                left = place.pending if place.stream_sequence < last else 0
                if place.stream_sequence > last:
                    return
                yield StreamMessage(message.subject, place.stream_sequence, message.headers, message.body)
    finally:
        if session.is_open:
            await _delete_consumer(session, stream, name)


async def arriving(session: JetStream, arrived: asyncio.Queue[Received], seconds: float) -> Received:
    """The next message of a subscription's queue.

    Raises:
        NatsUnavailable: the connection ended, or nothing arrived in ``seconds``.
    """
    if not arrived.empty():
        return arrived.get_nowait()
    try:
        async with asyncio.timeout(seconds):
            return await session.while_open(arrived.get())
    except TimeoutError:
        raise NatsUnavailable(f"the NATS server sent nothing for {seconds:g} s") from None


async def _delete_consumer(session: JetStream, stream: str, name: str) -> None:
    try:
        await session.api(f"CONSUMER.DELETE.{stream}.{name}")
    except (NatsUnavailable, ServerRefused):
        return  # the server removes an idle consumer automatically


@dataclass(frozen=True, slots=True)
class Delivered:
    """A delivery, as described by its acknowledgement subject; ``count`` is 1 for the first delivery."""

    stream: str
    consumer: str
    count: int
    stream_sequence: int
    consumer_sequence: int
    pending: int

    @classmethod
    def of(cls, reply: str) -> Delivered | None:
        """Parse ``$JS.ACK.…`` in its old or new form; ``None`` if ``reply`` has neither form."""
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


def _stream_message(answer: Mapping[str, Any]) -> StreamMessage:
    message = answer["message"]
    return StreamMessage(
        str(message["subject"]),
        int(message["seq"]),
        HeaderBlock(base64.b64decode(message.get("hdrs") or "")),
        base64.b64decode(message.get("data") or ""),
        str(message.get("time") or ""),
    )
