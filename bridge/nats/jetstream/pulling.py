"""A durable pull consumer and the subscription that handles its messages, across restarts of the server and of this
process.

Every request for messages asks for heartbeats. If the heartbeats stop, the consumer is gone, or the connection ends,
the subscription makes consumer and request again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, Final, Literal

from bridge.nats.jetstream.connection import API, JetStream
from bridge.nats.jetstream.errors import NatsError, NatsUnavailable, NotFound, ServerRefused, StreamRefused
from bridge.nats.jetstream.options import PullSettings
from bridge.nats.jetstream.sessions import RECONNECT, Sessions
from bridge.nats.jetstream.streams import Delivered
from bridge.nats.jetstream.wire import Received
from streams.bus.contract import Again, Delivery, Done, Handler, Outcome, Poison, settled
from streams.system.retry import Retry

log = logging.getLogger("sidecar.mirror")

HEARTBEAT: Final = "100"
EXPIRED: Final = frozenset({"404", "408"})
"""Statuses that end a request with fewer messages than requested, so that another request must be sent."""

MAX_UNANSWERED: Final = 1024
"""How many messages the server delivers at most without an answer."""

Step = Literal["pulled", "before-publish", "after-publish", "before-ack", "after-ack"]
Bury = Callable[[Delivery, Poison], Awaitable[None]]
"""Stores the dead letter of a message. When the function returns, the dead letter is durable."""

_NS: Final = 1_000_000_000


def consumer_config(durable: str, patterns: Sequence[str], settings: PullSettings) -> dict[str, Any]:
    """The required settings of a durable pull consumer, in the server's JSON.

    The server has no delivery limit. With a limit, a message would stay on the server forever, without another
    delivery, if the storing of its dead letter was interrupted.
    """
    config: dict[str, Any] = {
        "durable_name": durable,
        "name": durable,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_wait": int(settings.ack_wait_s * _NS),
        "max_deliver": -1,
        "max_ack_pending": MAX_UNANSWERED,
    }
    if len(patterns) == 1:
        return {**config, "filter_subject": patterns[0]}
    return {**config, "filter_subjects": list(patterns)}


async def ensure_consumer(session: JetStream, stream: str, wanted: dict[str, Any]) -> None:
    """Create or update a consumer.

    Raises:
        NotFound: the stream does not exist.
        StreamRefused: the server cannot apply the settings.
        NatsUnavailable: no answer came. It is safe to call this again.
    """
    name = wanted["name"]
    what, remedy = f"consumer {name} of {stream}", "remove the consumer from the server; the sidecar creates it again"
    try:
        answer = await session.api(
            f"CONSUMER.DURABLE.CREATE.{stream}.{name}", {"stream_name": stream, "config": wanted}
        )
    except NotFound:
        raise
    except ServerRefused as error:
        raise StreamRefused(what, error.server_code, f"{error.description}; {remedy}") from None
    found: dict[str, Any] = answer["config"]
    if different := [name for name, value in wanted.items() if found.get(name) != value]:
        raise StreamRefused(what, 0, f"the server did not apply these settings: {', '.join(different)}; {remedy}")


class JetStreamSubscription:
    """``Subscription``: the messages of one durable consumer, handled by one handler.

    Up to ``max_inflight`` handlers run at a time. While a handler runs, the subscription extends the server's
    acknowledgement deadline. A message is delivered again if its acknowledgement is lost, so handlers must be
    idempotent. ``prepare`` makes the streams on the open connection ready. ``stop`` is for tests.
    """

    def __init__(
        self,
        sessions: Sessions,
        stream: str,
        consumer: dict[str, Any],
        handle: Handler,
        settings: PullSettings,
        retry: Retry,
        *,
        prepare: Callable[[], Awaitable[JetStream]],
        bury: Bury,
        stop: Callable[[Step], None],
    ) -> None:
        self._sessions, self._stream, self._consumer = sessions, stream, consumer
        self._handle, self._settings, self._retry = handle, settings, retry
        self._prepare, self._bury, self._stop = prepare, bury, stop
        self.problem = ""
        self.is_ready = False
        self.pending = 0
        self._working: dict[asyncio.Task[None], Received] = {}
        self._pulling: asyncio.Task[None] | None = None
        self._finishing = False
        self.counts: Counter[str] = Counter()
        """Also ``unanswered`` (messages whose acknowledgement could not be sent) and ``renewed`` (requests)."""

    @property
    def working(self) -> int:
        return len(self._working)

    async def run(self) -> None:
        keep_alive = asyncio.create_task(self._keep_alive())
        self._pulling = asyncio.create_task(self._pull_on())
        try:
            if self._finishing:
                self._pulling.cancel()
            await asyncio.wait((self._pulling,))
            while self._working:
                await asyncio.wait(list(self._working))
            if not self._pulling.cancelled():
                self._pulling.result()
        finally:
            self.is_ready = False
            tasks = [keep_alive, self._pulling, *self._working]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def finish(self) -> None:
        if not self._finishing and self._pulling is not None:
            self._pulling.cancel()
        self._finishing = True

    async def _pull_on(self) -> None:
        failures = 0
        while True:
            before = self.counts["delivered"]
            await self._sessions.wait()
            try:
                session = await self._prepare()
                await ensure_consumer(session, self._stream, self._consumer)
                self.problem, self.is_ready = "", True
                await self._pull(session)
            except NatsError as error:
                self.is_ready, self.problem = False, str(error)
                log.warning("reconnecting the consumer %s of %s: %s", self._consumer["name"], self._stream, error)
            self.counts["renewed"] += 1
            failures = 0 if self.counts["delivered"] > before else failures + 1
            await asyncio.sleep(RECONNECT.pause(failures))

    async def _pull(self, session: JetStream) -> None:
        settings = self._settings
        heartbeat = min(settings.heartbeat_s, settings.fetch_timeout_s / 2.5)
        expires = {"expires": int(settings.fetch_timeout_s * _NS), "idle_heartbeat": int(heartbeat * _NS)}
        inbox = session.new_inbox()
        subject = f"{API}CONSUMER.MSG.NEXT.{self._stream}.{self._consumer['name']}"
        arrived = None
        try:
            async with session.hearing(f"{inbox}.*") as arrived:
                for number in count():
                    while self.working >= settings.max_inflight:
                        await asyncio.wait(list(self._working), return_when=asyncio.FIRST_COMPLETED)
                    asked, reply = settings.max_inflight - self.working, f"{inbox}.{number}"
                    await session.send(subject, json.dumps({"batch": asked, **expires}).encode(), reply=reply)
                    while asked > 0:
                        message = await arrived.next(3 * heartbeat + 1.0)
                        if not message.status:
                            self._take(message)
                            asked -= 1
                        elif message.status != HEARTBEAT and message.subject == reply:
                            if message.status not in EXPIRED:
                                why = message.description or message.status
                                raise NatsUnavailable(f"the server ended a request for messages: {why}")
                            break
        finally:
            # Give back messages that arrived too late to be handled, so that the server need not wait for their ack
            # deadline before it redelivers them.
            for left in arrived.waiting() if arrived is not None else ():
                if not left.status:
                    await self._answer(left, b"-NAK")

    def _take(self, message: Received) -> None:
        place = Delivered.of(message.reply)
        if place is None:
            self.counts["unanswered"] += 1
            log.warning("ignored a message from %s without a stream sequence", self._stream)
            return
        self.counts["delivered"] += 1
        self.pending = place.pending
        delivery = Delivery(
            message.subject, message.headers, message.body, place.stream, place.stream_sequence, place.count
        )
        task = asyncio.create_task(self._work(delivery, message))
        self._working[task] = message
        task.add_done_callback(self._working.pop)

    async def _work(self, delivery: Delivery, message: Received) -> None:
        self._stop("pulled")
        outcome = settled(await self._outcome(delivery), delivery, self._retry)
        if isinstance(outcome, Poison):
            self._stop("before-publish")
            try:
                await self._bury(delivery, outcome)
            except NatsError as error:
                log.warning("could not store %s as a dead letter: %s", delivery.subject, error)
                outcome = Again(self._retry.pause(delivery.attempt))
            else:
                self._stop("after-publish")
        self._stop("before-ack")
        match outcome:
            case Done():
                word, name = b"+ACK", "done"
            case Again(delay_s):
                word, name = b'-NAK {"delay": %d}' % int((delay_s or 0.0) * _NS), "again"
            case Poison():
                word, name = b"+TERM", "poison"
        self.counts[name] += 1
        await self._answer(message, word)
        self._stop("after-ack")

    async def _outcome(self, delivery: Delivery) -> Outcome:
        if self._retry.is_last(delivery.attempt - 1):
            return Poison(f"delivered {delivery.attempt} times without success")
        try:
            return await self._handle(delivery)
        except Exception as error:  # noqa: BLE001 - the subscription survives any error in a handler
            log.warning("handling %s failed: %s", delivery.subject, type(error).__name__)
            return Again()

    async def _answer(self, message: Received, word: bytes) -> None:
        try:
            session = self._sessions.current or await self._sessions.get()
            await session.send(message.reply, word)
        except NatsError:
            self.counts["unanswered"] += 1
            log.warning("%s will be delivered again, because its acknowledgement could not be sent", message.subject)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._settings.ack_wait_s / 3)
            for message in list(self._working.values()):
                await self._answer(message, b"+WPI")
