"""A durable pull consumer and the loop that processes its messages, across restarts of the server and of this process.

The loop never assumes that a subscription is alive (nats.py issue 504). Every request for messages asks for heartbeats.
If the heartbeats stop, the consumer is gone, or the connection ends, the loop recreates connection, consumer and
subscription.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.nats.headers import MESSAGE_ID
from bridge.nats.jetstream.connection import API, JetStream
from bridge.nats.jetstream.errors import NatsError, NatsUnavailable, NotFound, ServerRefused, StreamRefused
from bridge.nats.jetstream.options import PullSettings
from bridge.nats.jetstream.publishing import publish
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import StreamDefinition
from bridge.nats.jetstream.streams import Delivered, arriving, ensure_streams
from bridge.nats.jetstream.wire import Message, Received, wire_size
from streams.bus.contract import Delivery, dead_letter

log = logging.getLogger("sidecar.mirror")

HEARTBEAT: Final = "100"
EXPIRED: Final = frozenset({"404", "408"})
"""Statuses that end a request with fewer messages than requested, so that another request must be sent."""

_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ConsumerDefinition:
    """The required settings of a durable pull consumer. Times are in seconds; a ``max_deliver`` of -1 means no limit.

    Consumers with the same name compete for messages; each name receives every message. ``new_only`` skips messages
    older than the consumer.
    """

    name: str
    filters: tuple[str, ...] = ()
    ack_wait_s: float = 30.0
    max_deliver: int = -1
    max_ack_pending: int = 1024
    new_only: bool = False
    inactive_s: float = 0.0
    """Idle seconds after which the server removes the consumer and its progress; 0: never."""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "durable_name": self.name,
            "name": self.name,
            "ack_policy": "explicit",
            "deliver_policy": "new" if self.new_only else "all",
            "replay_policy": "instant",
            "ack_wait": int(self.ack_wait_s * _NS),
            "max_deliver": self.max_deliver,
            "max_ack_pending": self.max_ack_pending,
        }
        if len(self.filters) == 1:
            config["filter_subject"] = self.filters[0]
        elif self.filters:
            config["filter_subjects"] = list(self.filters)
        if self.inactive_s:
            config["inactive_threshold"] = int(self.inactive_s * _NS)
        if self.metadata:
            config["metadata"] = dict(self.metadata)
        return config


@dataclass(frozen=True, slots=True)
class PulledMessage:
    """One delivery of a message to a handler. ``count`` is 1 for the first delivery; ``id`` is ``Nats-Msg-Id`` or
    ``None``."""

    subject: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    stream: str
    sequence: int
    count: int
    reply: str = field(repr=False)

    @property
    def id(self) -> str | None:
        return self.headers.get("Nats-Msg-Id")


@dataclass(frozen=True, slots=True)
class Done:
    """The message is handled and its effects are durable: acknowledge it."""


@dataclass(frozen=True, slots=True)
class Again:
    """The message cannot be handled now: deliver it again after ``delay_s``, or after the settings' back-off."""

    delay_s: float | None = None


@dataclass(frozen=True, slots=True)
class Poison:
    """The message can never be handled: make it a dead letter. ``reason`` contains no payload."""

    reason: str


Outcome = Done | Again | Poison
PullHandler = Callable[[PulledMessage], Awaitable[Outcome]]
Bury = Callable[[PulledMessage, str], Awaitable[None]]
"""A function that stores a poison message with the reason. When the function returns, the message is durable."""


def copy_of_dead(session: JetStream, pulled: PulledMessage, durable: str, reason: str, **more: str) -> Message:
    """The dead letter of a message, which the server keeps once; ``more`` are headers. Without the body, if both do not
    fit together."""
    died = Delivery(pulled.subject, pulled.body, pulled.headers, pulled.sequence, pulled.count)
    subject, headers = dead_letter(died, durable, reason)
    headers |= {MESSAGE_ID: f"dead:{durable}:{pulled.stream}:{pulled.sequence}", **more}
    fits = wire_size(headers, len(pulled.body)) <= session.server.max_payload
    return Message(subject, headers, pulled.body if fits else b"")


def burying(sessions: Sessions, durable: str) -> Bury:
    """A ``Bury`` that keeps dead letters in ``MESHFORGE_DLQ``, which must exist."""

    async def bury(pulled: PulledMessage, reason: str) -> None:
        session = await sessions.get()
        await publish(session, copy_of_dead(session, pulled, durable, reason))

    return bury


async def ensure_consumer(session: JetStream, stream: str, definition: ConsumerDefinition) -> dict[str, Any]:
    """Create or update the consumer; return its configuration, as read back from the server.

    Raises:
        NotFound: the stream does not exist.
        StreamRefused: the server cannot apply the settings.
        NatsUnavailable: no answer came. It is safe to call this again.
    """
    wanted = definition.config()
    request = {"stream_name": stream, "config": wanted}
    what, remedy = (
        f"consumer {definition.name} of {stream}",
        "remove the consumer from the server; the sidecar creates it again",
    )
    try:
        answer = await session.api(f"CONSUMER.DURABLE.CREATE.{stream}.{definition.name}", request)
    except NotFound:
        raise
    except ServerRefused as error:
        raise StreamRefused(what, error.server_code, f"{error.description}; {remedy}") from None
    found: dict[str, Any] = answer["config"]
    if different := [name for name, value in wanted.items() if not _is_kept(found.get(name), value)]:
        raise StreamRefused(what, 0, f"the server did not apply these settings: {', '.join(different)}; {remedy}")
    return found


def _is_kept(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and wanted.items() <= found.items()
    return bool(found == wanted)


async def consumer_config(session: JetStream, stream: str, name: str) -> dict[str, Any] | None:
    """The configuration of a consumer on the server; ``None`` if it does not exist.

    Raises:
        NatsUnavailable: no answer.
    """
    try:
        found: dict[str, Any] = (await session.api(f"CONSUMER.INFO.{stream}.{name}"))["config"]
    except NotFound:
        return None
    return found


class PullLoop:
    """Processes the messages of one durable consumer with one handler.

    Up to ``max_inflight`` handlers run at a time, in no particular order. With a ``max_inflight`` of 1, messages are
    handled in order, except for redeliveries. While a handler runs, the loop extends the server's acknowledgement
    deadline. A handler that raises counts as one that returns ``Again``. A message is delivered again if its
    acknowledgement is lost, so handlers must be idempotent.

    Streams in ``definitions`` are created if they are missing. ``is_made`` says that the caller has just made the
    consumer: a second request to make it could reach the server after the request that removes it, because a server
    handles requests in any order. ``answered`` is called when a message's answer has been sent.
    """

    def __init__(
        self,
        sessions: Sessions,
        stream: str,
        consumer: ConsumerDefinition,
        handle: PullHandler,
        settings: PullSettings | None = None,
        *,
        bury: Bury | None = None,
        definitions: Sequence[StreamDefinition] = (),
        is_made: bool = False,
        answered: Callable[[PulledMessage], None] = lambda pulled: None,
    ) -> None:
        self._definitions, self._is_made, self._answered = tuple(definitions), is_made, answered
        self.problem = ""
        """Why no messages are arriving at the moment; empty while messages can arrive."""
        self.is_ready = False
        """Whether stream and consumer exist, so that a message sent now will arrive."""
        self.pending = 0
        """How many messages were still undelivered when the server delivered its latest message."""
        self._sessions, self._stream, self._consumer = sessions, stream, consumer
        self._handle, self._bury = handle, bury
        self._settings = settings or PullSettings()
        self._working: dict[asyncio.Task[None], PulledMessage] = {}
        self._room = asyncio.Event()
        self._pulling: asyncio.Task[None] | None = None
        self._finishing = False
        self.counts: Counter[str] = Counter()
        """Counts by name: ``delivered``, ``done``, ``again``, ``poison``, ``unanswered`` and ``renewed``."""

    @property
    def working(self) -> int:
        return len(self._working)

    @property
    def is_handling(self) -> bool:
        """Whether the current task is a handler of this loop."""
        return asyncio.current_task() in self._working

    async def run(self) -> None:
        """Process messages until ``finish``. Cancelling also cancels running handlers; their messages are redelivered.

        A loop can run only once.
        """
        keep_alive = asyncio.create_task(self._keep_alive())
        self._pulling = asyncio.create_task(self._pull_on())
        try:
            if not self._finishing:
                await asyncio.wait((self._pulling,))
            else:
                self._pulling.cancel()
            while self._working:
                await asyncio.wait(list(self._working))
            if self._pulling.done() and not self._pulling.cancelled():
                self._pulling.result()
        finally:
            self._finishing = True
            tasks = [keep_alive, self._pulling, *self._working]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def finish(self) -> None:
        """Accept no more messages; ``run`` returns when the running handlers have finished. Idempotent."""
        if not self._finishing and self._pulling is not None:
            self._pulling.cancel()
        self._finishing = True

    async def _pull_on(self) -> None:
        pause = 0.0
        while not self._finishing:
            session = await self._sessions.wait()
            before = self.counts["delivered"]
            try:
                if self._definitions:
                    await ensure_streams(session, self._definitions)
                if not self._is_made:
                    await ensure_consumer(session, self._stream, self._consumer)
                self._is_made = False
                self.problem, self.is_ready = "", True
                await self._pull(session)
            except NatsError as error:
                self.is_ready = False
                self.problem = str(error)
                log.warning("reconnecting the consumer %s of %s: %s", self._consumer.name, self._stream, error)
            self.counts["renewed"] += 1
            pause = 0.05 if self.counts["delivered"] > before else min(max(pause * 2, 0.05), 5.0)
            await asyncio.sleep(pause)

    async def _pull(self, session: JetStream) -> None:
        settings = self._settings
        heartbeat = min(settings.heartbeat_s, settings.fetch_timeout_s / 2.5)
        expires = {"expires": int(settings.fetch_timeout_s * _NS), "idle_heartbeat": int(heartbeat * _NS)}
        inbox = session.new_inbox()
        arrived: asyncio.Queue[Received] = asyncio.Queue()
        patience = settings.warmup_timeout_s
        subject = f"{API}CONSUMER.MSG.NEXT.{self._stream}.{self._consumer.name}"
        number = 0
        try:
            async with session.hearing(f"{inbox}.*", arrived.put_nowait):
                while not self._finishing:
                    asked = min(settings.batch_size, await self._free())
                    number += 1
                    request = json.dumps({"batch": asked, **expires}).encode()
                    reply = f"{inbox}.{number}"
                    await session.send(subject, request, reply=reply)
                    while asked > 0:
                        message = await arriving(session, arrived, patience)
                        patience = 3 * heartbeat + 1.0
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
            while not arrived.empty():
                left = arrived.get_nowait()
                if not left.status:
                    await self._send(left.reply, b"-NAK")

    async def _free(self) -> int:
        while len(self._working) >= self._settings.max_inflight:
            self._room.clear()
            await self._room.wait()
        return self._settings.max_inflight - len(self._working)

    def _take(self, message: Received) -> None:
        place = Delivered.of(message.reply)
        if place is None:
            self.counts["unanswered"] += 1
            log.warning("ignored a message from %s without a stream sequence", self._stream)
            return
        self.counts["delivered"] += 1
        self.pending = place.pending
        pulled = PulledMessage(
            message.subject,
            message.headers,
            message.body,
            place.stream,
            place.stream_sequence,
            place.count,
            message.reply,
        )
        task = asyncio.create_task(self._work(pulled))
        self._working[task] = pulled
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        del self._working[task]
        self._room.set()

    async def _work(self, pulled: PulledMessage) -> None:
        outcome: Outcome
        if pulled.count > self._settings.attempts:
            outcome = Poison(f"delivered {pulled.count} times without success")
        else:
            try:
                outcome = await self._handle(pulled)
            except Exception as error:  # noqa: BLE001 - the loop survives any error in a handler
                log.warning("handling %s failed: %s", pulled.subject, type(error).__name__)
                outcome = Again()
        if isinstance(outcome, Again) and pulled.count >= self._settings.attempts:
            outcome = Poison(f"failed {pulled.count} times")
        if isinstance(outcome, Poison) and self._bury is not None:
            try:
                await self._bury(pulled, outcome.reason)
            except NatsError as error:
                log.warning("could not store %s as a dead letter: %s", pulled.subject, error)
                outcome = Again()
        await self._report(pulled, outcome)

    async def _report(self, pulled: PulledMessage, outcome: Outcome) -> None:
        match outcome:
            case Done():
                word, name = b"+ACK", "done"
            case Again(delay_s):
                pause = self._settings.backoff(pulled.count) if delay_s is None else delay_s
                word, name = b'-NAK {"delay": %d}' % int(pause * _NS), "again"
            case Poison():
                word, name = b"+TERM", "poison"
        self.counts[name] += 1
        await self._answer(pulled, word)
        self._answered(pulled)

    async def _answer(self, pulled: PulledMessage, word: bytes) -> None:
        if not await self._send(pulled.reply, word):
            self.counts["unanswered"] += 1
            log.warning("%s will be delivered again, because its acknowledgement could not be sent", pulled.subject)

    async def _send(self, reply: str, word: bytes) -> bool:
        try:
            await (await self._sessions.get()).send(reply, word)
        except NatsError:
            return False
        return True

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._consumer.ack_wait_s / 3)
            for pulled in list(self._working.values()):
                await self._answer(pulled, b"+WPI")


async def remove_consumer(session: JetStream, stream: str, name: str) -> None:
    """Remove a durable consumer and its progress. Does nothing if the consumer does not exist.

    Raises:
        NatsUnavailable: no answer.
    """
    try:
        await session.api(f"CONSUMER.DELETE.{stream}.{name}")
    except NotFound:
        return
