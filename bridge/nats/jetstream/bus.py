"""The event bus on JetStream. It connects processes and machines, and its messages are durable.

The stream definitions say which stream stores a subject. For each durable name there is one durable pull consumer:
subscriptions with the same durable name compete for messages, and each durable name receives every message. The server
stores the subscribed pattern with the consumer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Final

from bridge.nats.jetstream import pulling
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsError, ServerRefused
from bridge.nats.jetstream.options import PullSettings
from bridge.nats.jetstream.publishing import publish
from bridge.nats.jetstream.pulling import Again, ConsumerDefinition, Done, PullLoop, consumer_config, ensure_consumer
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import StreamDefinition, keeps, wanted
from bridge.nats.jetstream.streams import ensure_streams
from bridge.nats.jetstream.wire import Message
from streams.bus.contract import (
    BusClosed,
    BusUnavailable,
    Delivery,
    DurableConflict,
    Handler,
    Published,
    Redelivery,
    Start,
    check_shared,
    check_subscription,
    dead_letter,
    failure_of,
)
from streams.bus.headers import check_headers
from streams.bus.subjects import DEAD_LETTERS, SubjectError, check_subject, covers

MESSAGE_ID: Final = "Nats-Msg-Id"
FORGOTTEN_SECONDS: Final = 24 * 3600.0
"""After this many idle seconds, the server removes a consumer without a durable name, whose process has died."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REDELIVERY: Final = "ds-redelivery"
_DURABLE: Final = "ds-durable"
_MAX_ACK_PENDING: Final = 10_000


class JetStreamEventBus:
    """``EventBus`` on a server's streams, created at first use. The caller closes ``sessions``.

    A failed message waits on the server for its next attempt, so it outlives this process. ``pull`` sets how messages
    are requested, except that a subscription always handles one message at a time.

    ``counts``: published, duplicates, handled, failed, dead, and given_up (failed messages that do not become dead
    letters, because they already are dead letters or because their subscription has no durable name).
    """

    def __init__(
        self,
        sessions: Sessions,
        definitions: Iterable[StreamDefinition] | None = None,
        pull: PullSettings | None = None,
        *,
        ack_wait_s: float | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._sessions = sessions
        self._definitions = tuple(wanted() if definitions is None else definitions)
        self._pull = replace(pull or PullSettings(), batch_size=1, max_inflight=1)
        self._ack_wait_s = self._pull.ack_wait_s if ack_wait_s is None else ack_wait_s
        self._ready_for: JetStream | None = None
        self._readying = asyncio.Lock()
        self._subscriptions: set[JetStreamSubscription] = set()
        self._closed = False

    async def publish(
        self,
        subject: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> Published:
        """See ``EventBus.publish``. Raises ``SubjectError`` if no stream stores messages
        with the subject."""
        self._check_open()
        if keeps(self._definitions, check_subject(subject)) is None:
            raise SubjectError(subject, "no NATS stream stores messages with this subject")
        sent = dict(check_headers(headers or {}))
        if message_id is not None:
            sent[MESSAGE_ID] = message_id
        try:
            stored = await publish(await self._session(), Message(subject, sent, bytes(body)))
        except NatsError as error:
            raise BusUnavailable(str(error)) from None
        self.counts["duplicates" if stored.duplicate else "published"] += 1
        return Published(stored.sequence, stored.duplicate)

    async def subscribe(
        self,
        pattern: str,
        handler: Handler,
        *,
        durable: str | None = None,
        start: Start = "new",
        redelivery: Redelivery | None = None,
    ) -> JetStreamSubscription:
        """See ``EventBus.subscribe``. Raises ``SubjectError`` if no single stream covers the whole pattern.

        Raises:
            BusUnavailable: the server is unreachable, or its streams cannot get the required settings.
        """
        self._check_open()
        stream = self._stream_of(check_subscription(pattern, durable))
        redelivery = redelivery or Redelivery()
        try:
            session = await self._session()
        except NatsError as error:
            raise BusUnavailable(str(error)) from None
        try:
            consumer = await self._consumer(session, stream, pattern, durable, start, redelivery)
            await ensure_consumer(session, stream.name, consumer)
        except ServerRefused as error:
            raise DurableConflict(durable or pattern, error.description) from None
        except NatsError as error:
            raise BusUnavailable(str(error)) from None
        self._check_open()
        subscription = JetStreamSubscription(self, stream.name, consumer, pattern, durable, redelivery, handler)
        self._subscriptions.add(subscription)
        return subscription

    async def close(self) -> None:
        self._closed = True
        running = list(self._subscriptions)
        for each in running:
            each.stop()
        for each in running:
            # Cancel the subscriptions one by one and in this task: if this task is a handler of one of them, it must
            # not wait for itself.
            await each.cancel()

    # --- inside ---

    def _check_open(self) -> None:
        if self._closed:
            raise BusClosed

    async def _session(self) -> JetStream:
        """A connection to a server on which the streams exist."""
        async with self._readying:
            session = await self._sessions.get()
            if session is not self._ready_for:
                await ensure_streams(session, self._definitions)
                self._ready_for = session
            return session

    def _stream_of(self, pattern: str) -> StreamDefinition:
        for each in self._definitions:
            if any(covers(kept, pattern) for kept in each.subjects):
                return each
        raise SubjectError(pattern, "no stream stores all subjects that match this pattern")

    async def _consumer(
        self,
        session: JetStream,
        stream: StreamDefinition,
        pattern: str,
        durable: str | None,
        start: Start,
        redelivery: Redelivery,
    ) -> ConsumerDefinition:
        """The consumer of a subscription. An existing consumer keeps its starting point.

        Raises:
            DurableConflict: the consumer exists with other settings.
        """
        kept = json.dumps([redelivery.max_deliver, *redelivery.backoff_s])
        consumer = ConsumerDefinition(
            _consumer_name(durable) if durable is not None else session.new_inbox().replace(".", "-"),
            (pattern,),
            ack_wait_s=self._ack_wait_s,
            max_ack_pending=_MAX_ACK_PENDING,
            # The server lets a work queue's consumer start only at the beginning, where only unhandled messages are
            # left.
            new_only=start == "new" and stream.retention != "workqueue",
            inactive_s=FORGOTTEN_SECONDS if durable is None else 0,
            metadata={_REDELIVERY: kept, _DURABLE: durable or ""},
        )
        if durable is None:
            return consumer
        for each in self._definitions:
            found = await consumer_config(session, each.name, consumer.name)
            if found is None:
                continue
            same = (found.get("metadata") or {}).get(_REDELIVERY) == kept
            check_shared(durable, current=found.get("filter_subject"), pattern=pattern, is_same_redelivery=same)
            return replace(consumer, new_only=found.get("deliver_policy") == "new")
        return consumer

    def left(self, subscription: JetStreamSubscription) -> None:
        self._subscriptions.discard(subscription)

    async def bury(self, delivery: Delivery, durable: str | None, stream: str, reason: str) -> None:
        """Store a message that failed its last attempt as a dead letter.

        Raises:
            NatsError: storing failed.
        """
        if durable is None or delivery.subject.startswith(f"{DEAD_LETTERS}."):
            # A dead letter that cannot be handled does not become another one, which would only hide the first.
            self.counts["given_up"] += 1
            return
        subject, headers = dead_letter(delivery, durable, reason)
        headers[MESSAGE_ID] = f"dead:{_consumer_name(durable)}:{stream}:{delivery.sequence}"
        await publish(await self._session(), Message(subject, headers, delivery.body))
        self.counts["dead"] += 1


class JetStreamSubscription:
    def __init__(
        self,
        bus: JetStreamEventBus,
        stream: str,
        consumer: ConsumerDefinition,
        pattern: str,
        durable: str | None,
        redelivery: Redelivery,
        handler: Handler,
    ) -> None:
        self._bus, self._stream, self._consumer = bus, stream, consumer
        self._pattern, self._durable = pattern, durable
        self._redelivery, self._handler = redelivery, handler
        settings = replace(bus._pull, attempts=redelivery.max_deliver)
        self._loop = PullLoop(bus._sessions, stream, consumer, self._handle, settings, bury=self._bury, is_made=True)
        self._task = asyncio.create_task(self._run())

    @property
    def pattern(self) -> str:
        return self._pattern

    @property
    def durable(self) -> str | None:
        return self._durable

    def stop(self) -> None:
        """Accept no more messages. Returns at once."""
        self._loop.finish()

    async def cancel(self) -> None:
        self.stop()
        if not self._loop.is_handling:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await self._loop.run()
            if self._durable is None:
                try:
                    session = await self._bus._sessions.get()
                    await pulling.remove_consumer(session, self._stream, self._consumer.name)
                except NatsError:
                    return  # the server itself removes an inactive consumer after a while
        finally:
            self._bus.left(self)

    async def _handle(self, message: pulling.PulledMessage) -> pulling.Outcome:
        delivery = self._delivery(message)
        try:
            await self._handler(delivery)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Something that the handler awaited was cancelled, not this task, so the attempt has failed.
            return self._failed(delivery, error)
        except Exception as error:  # noqa: BLE001 - any error in a handler is a failed attempt
            return self._failed(delivery, error)
        self._bus.counts["handled"] += 1
        return Done()

    def _failed(self, delivery: Delivery, error: BaseException) -> pulling.Outcome:
        self._bus.counts["failed"] += 1
        reason, delay = failure_of(delivery, error)
        return pulling.Poison(reason) if delay is None else Again(delay)

    async def _bury(self, message: pulling.PulledMessage, reason: str) -> None:
        await self._bus.bury(self._delivery(message), self._durable, self._stream, reason)

    def _delivery(self, message: pulling.PulledMessage) -> Delivery:
        delay = self._redelivery.delay(message.count)
        return Delivery(message.subject, message.body, message.headers, message.sequence, message.count, delay)


def _consumer_name(durable: str) -> str:
    """The consumer's name on the server."""
    return durable if _PLAIN.fullmatch(durable) else f"d-{sha256(durable.encode()).hexdigest()[:32]}"
