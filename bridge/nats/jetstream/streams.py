"""Creates, updates and reads streams, and reads and deletes their messages."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.nats.jetstream.connection import API, JetStream
from bridge.nats.jetstream.errors import NatsError, NatsRefused, NatsUnavailable, NotFound, ServerRefused, StreamRefused
from bridge.nats.jetstream.stream_plan import OLDEST, StreamDefinition, different, server_version
from bridge.nats.jetstream.wire import HeaderBlock

READ_BATCH: Final = 256
"""How many messages one request asks for; the next request is sent while these messages are still arriving."""

_NS: Final = 1_000_000_000
_DELETIONS: Final = 128
"""Maximum number of deletions in flight at a time."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A stream as the server describes it: configuration and state are the server's JSON (times in nanoseconds)."""

    name: str
    config: Mapping[str, Any] = field(repr=False)
    state: Mapping[str, Any]

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
    answer = await session.api(f"STREAM.INFO.{name}")
    return StreamFacts(name, answer["config"], answer["state"])


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
    back from the server. Idempotent.

    Raises:
        NatsRefused: the server is older than ``OLDEST``.
        StreamRefused: an existing stream with the same name or subjects is unsuitable; the text says what to do.
        NatsUnavailable: no answer came, or the server is busy. It is safe to call this again.
    """
    if server_version(session.server.version) < OLDEST:
        reason = f"the NATS server has version {session.server.version}, which is too old"
        raise NatsRefused(reason, f"use nats-server {'.'.join(map(str, OLDEST))} or newer")
    return {each.name: await _ensured(session, each) for each in definitions}


async def _ensured(session: JetStream, definition: StreamDefinition) -> StreamFacts:
    name, method, config = definition.name, "CREATE", definition.config()
    with suppress(NotFound):
        found = await facts(session, name)
        if not different(definition, found.config):
            return found
        method, config = "UPDATE", {**found.config, **config}
    remedy = f"move its messages elsewhere and remove the stream {name}, or use another NATS account"
    try:
        await session.api(f"STREAM.{method}.{name}", config)
    except ServerRefused as error:
        raise StreamRefused(f"stream {name}", error.server_code, f"{error.description}; {remedy}") from None
    # Read the settings back, because the server silently ignores changes to some settings.
    found = await facts(session, name)
    if names := different(definition, found.config):
        raise StreamRefused(f"stream {name}", 0, f"the server did not apply {', '.join(names)}; {remedy}")
    return found


async def purge(session: JetStream, stream: str, *, subject: str) -> int:
    """Remove the messages on a subject or pattern; return how many were removed.

    Raises:
        NotFound: there is no such stream.
        ServerRefused: the server does not allow purging.
    """
    answer = await session.api(f"STREAM.PURGE.{stream}", {"filter": subject})
    return int(answer.get("purged") or 0)


async def last_message(session: JetStream, stream: str, subject: str) -> StreamMessage | None:
    """The newest message on a subject or pattern; None if there is none. Raises ``NatsUnavailable``."""
    return await _found(session, stream, {"last_by_subj": subject})


async def next_message(session: JetStream, stream: str, subject: str = ">", *, since: int = 1) -> StreamMessage | None:
    """The oldest message on a subject or pattern whose sequence is at least ``since``; None if there is none.

    Raises ``NatsUnavailable``.
    """
    return await _found(session, stream, {"seq": max(since, 1), "next_by_subj": subject})


async def _found(session: JetStream, stream: str, request: dict[str, Any]) -> StreamMessage | None:
    try:
        found = (await session.api(f"STREAM.MSG.GET.{stream}", request))["message"]
    except NotFound:
        return None
    headers = HeaderBlock(base64.b64decode(found.get("hdrs") or ""))
    body, time = base64.b64decode(found.get("data") or ""), str(found.get("time") or "")
    return StreamMessage(str(found["subject"]), int(found["seq"]), headers, body, time)


async def delete_messages(session: JetStream, stream: str, sequences: Sequence[int], *, erase: bool) -> int:
    """Delete messages by sequence; return how many existed. ``erase`` overwrites their bytes on the server's disk.

    Raises:
        NatsError: perhaps some messages were not deleted. It is safe to call this again.
    """
    deleted, method, how = 0, f"STREAM.MSG.DELETE.{stream}", b"false" if erase else b"true"
    for first in range(0, len(sequences), _DELETIONS):
        part = sequences[first : first + _DELETIONS]
        asked = [await session.begin(API + method, b'{"seq":%d,"no_erase":%s}' % (each, how)) for each in part]
        for each in asked:
            with suppress(NotFound):
                await session.answered(method, each)
                deleted += 1
    return deleted


async def read_back(
    session: JetStream,
    stream: str,
    *,
    subject: str = "",
    since: str = "",
    headers_only: bool = False,
    silence_seconds: float = 10.0,
) -> AsyncIterator[StreamMessage]:
    """Read a stream in order, to the message that was the last one when this was called.

    ``since``: begin with the first message that was stored at this time (ISO 8601) or later. ``headers_only``: leave
    the bodies on the server.

    Only messages on ``subject``, a subject or pattern, are read. Reading changes nothing on the server, and any number
    of readers can run at a time.

    Raises:
        NotFound: there is no such stream.
        NatsUnavailable: the connection ended, or nothing arrived for ``silence_seconds``.
    """
    last = (await facts(session, stream)).last_sequence
    # The server removes this consumer if nobody uses it any more.
    config = {
        "ack_policy": "none",
        "inactive_threshold": int((silence_seconds + 20) * _NS),
        "mem_storage": True,
        "num_replicas": 1,
        "max_deliver": 1,
        "headers_only": headers_only,
        **({"filter_subject": subject} if subject else {}),
        **({"deliver_policy": "by_start_time", "opt_start_time": since} if since else {}),
    }
    made = await session.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
    name, left = str(made["name"]), int(made.get("num_pending") or 0)
    inbox = session.new_inbox()
    taken = asked = 0
    try:
        async with session.hearing(inbox) as arrived:
            while left > 0:
                if asked - taken <= READ_BATCH < left or asked == taken:
                    request = b'{"batch": %d, "expires": %d}' % (READ_BATCH, int(silence_seconds * _NS))
                    await session.send(f"{API}CONSUMER.MSG.NEXT.{stream}.{name}", request, reply=inbox)
                    asked += READ_BATCH
                message = await arrived.next(silence_seconds + 1)
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
        with suppress(NatsError):
            await session.api(f"CONSUMER.DELETE.{stream}.{name}")


@dataclass(frozen=True, slots=True)
class Delivered:
    """A delivery, as described by its acknowledgement subject; ``count`` is 1 for the first delivery."""

    stream: str
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
            stream, _, count, stream_sequence, consumer_sequence, _, pending = body[:7]
            return cls(stream, int(count), int(stream_sequence), int(consumer_sequence), int(pending))
        except ValueError:
            return None
