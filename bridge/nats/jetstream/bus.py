"""The event bus on JetStream. It connects processes and machines, and its messages are durable.

The stream definitions say which stream stores a subject. A stream that is missing is created when it is used, and each
durable name is a durable pull consumer of one stream.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from bridge.nats.headers import MESSAGE_ID
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NoStream
from bridge.nats.jetstream.options import PullSettings
from bridge.nats.jetstream.publishing import publish
from bridge.nats.jetstream.pulling import JetStreamSubscription, Step, consumer_config
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import DEAD, StreamDefinition, keeps, wanted
from bridge.nats.jetstream.streams import ensure_streams, read_back
from bridge.nats.jetstream.wire import Message, wire_size
from bridge.nats.subjects import exclusive_name
from streams.bus.contract import Delivery, Handler, Poison, dead_letter
from streams.bus.subjects import DEAD_LETTERS, REST
from streams.system.retry import Retry

Record = Callable[[str, Delivery, Poison], Awaitable[Poison]]


class JetStreamEventBus:
    """``EventBus`` on a server's streams. The caller closes ``sessions``. ``log_id`` names the home's log in the names
    of its exclusive consumers. ``stop`` is for tests.

    ``record`` records a message that its durable name did not handle, before the bus stores the dead letter that
    ``record`` returns.
    """

    def __init__(
        self,
        sessions: Sessions,
        settings: PullSettings | None = None,
        definitions: Iterable[StreamDefinition] | None = None,
        *,
        log_id: str = "",
        record: Record | None = None,
        stop: Callable[[Step], None] = lambda step: None,
    ) -> None:
        self.sessions, self.log_id, self._record = sessions, log_id, record
        self._settings, self._stop = settings or PullSettings(), stop
        self._definitions = tuple(wanted() if definitions is None else definitions)

    @property
    def retry(self) -> Retry:
        return self._settings.retry

    async def publish(self, subject: str, headers: Mapping[str, str], body: bytes) -> int:
        self._stream_of(subject)
        message = Message(subject, headers, body)
        try:
            return (await publish(await self.sessions.get(), message)).sequence
        except NoStream:
            return (await publish(await self.prepared(subject), message)).sequence

    def subscribe(
        self,
        durable: str,
        patterns: Sequence[str],
        handle: Handler,
        retry: Retry | None = None,
        *,
        exclusive: bool = False,
    ) -> JetStreamSubscription:
        name = exclusive_name(self.log_id, durable) if exclusive else durable
        return JetStreamSubscription(
            self.sessions,
            self._stream_of(patterns[0]).name,
            consumer_config(name, patterns, self._settings),
            handle,
            self._settings,
            retry or self.retry,
            prepare=partial(self.prepared, patterns[0], f"{DEAD_LETTERS}.{REST}"),
            bury=partial(self._bury, durable),
            stop=self._stop,
        )

    def exclusive(self, durable: str, pattern: str) -> tuple[str, dict[str, Any]]:
        """Stream and configuration of the consumer of an exclusive subscription to one pattern."""
        name = exclusive_name(self.log_id, durable)
        return self._stream_of(pattern).name, consumer_config(name, [pattern], self._settings)

    async def prepared(self, *subjects: str) -> JetStream:
        """A connection to a server on which the streams of these subjects are as they must be now."""
        session = await self.sessions.get()
        await ensure_streams(session, map(self._stream_of, subjects))
        return session

    def _stream_of(self, subject: str) -> StreamDefinition:
        found = keeps(self._definitions, subject)
        if found is None:
            raise NoStream(f"no stream stores {subject}", "no message with this subject can be published")
        return found

    async def _bury(self, durable: str, delivery: Delivery, poison: Poison) -> None:
        """Store a dead letter once. Without the body, if the server does not accept both together."""
        if self._record is not None:
            poison = await self._record(durable, delivery, poison)
        subject, headers = dead_letter(delivery, durable, poison)
        session = await self.sessions.get()
        if poison.is_known:
            # Look for it, because the server forgets message ids after a while.
            async for found in read_back(session, DEAD, subject=subject):
                if found.headers.get(MESSAGE_ID) == headers[MESSAGE_ID]:
                    return
        fits = wire_size(headers, len(delivery.body)) <= session.server.max_payload
        await self.publish(subject, headers, delivery.body if fits else b"")
