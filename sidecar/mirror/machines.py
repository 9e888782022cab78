"""This home among others on one NATS server: what its machine asks of theirs, and does for them.

A *request* changes something. It is recorded where it is asked (``asking.py``), waits on the server while the other
machine is away, and is done there once (``Deeds``): a message that comes again gets the answer that was recorded. Only
what ``[machines] allow`` names is done, and only with the rights that this home has. A *question* only reads. It is not
stored, because nobody waits for its answer later.

A machine's name is a token of each subject, so the server's own permissions can say who may send as whom. One home has
a name: the server refuses a second home's durable (``owning.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import orjson

from bridge.nats import headers as h
from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsError, NatsUnavailable, WrongExpectation
from bridge.nats.jetstream.publishing import EXPECTED_REVISION
from bridge.nats.jetstream.stream_plan import COMMANDS
from bridge.nats.jetstream.streams import listed, purge
from bridge.nats.jetstream.wire import Received
from bridge.nats.subjects import (
    MachineSubject,
    asker_of,
    consumer_name,
    machine_of,
    machine_pattern,
    question_pattern,
    question_subject,
)
from bridge.opencode.link.protocol import RequestError
from sidecar.components import Tasks
from sidecar.link.local import ASKER, Asker
from sidecar.mirror.actions import Deeds
from sidecar.mirror.asking import TOLD, ForOthers, Sent, accepted
from streams.bus.contract import Again, Delivery, Done, Outcome, Poison
from streams.bus.subjects import SubjectError
from streams.errors import CodedError, StreamError

log = logging.getLogger("sidecar.mirror")

MACHINE: Final = "machine"
"""What a home owns while its machine's name is its own, beside agents."""

DURABLE: Final = consumer_name(MACHINE)

AGAIN_SECONDS: Final = 60.0
"""How often a request without an answer is sent again. The server keeps it once."""

CONNECT_SECONDS: Final = 5.0
QUESTION_SECONDS: Final = 10.0

MAX_ANSWER: Final = 64 << 20
"""Maximum size, in bytes, of an answer to a question."""

KEPT: Final = 4
"""How many answers that take several messages are kept, for those who read them."""

GIVE_UP_DELIVERIES: Final = 100
_HEADERS: Final = 4096
_SIZE: Final = "DS-Size"


class Machines:
    """Bound to one event loop. ``name`` is this machine's. ``deeds`` makes the ledger around what does a request."""

    def __init__(
        self,
        name: str,
        bus: JetStreamEventBus,
        others: ForOthers,
        deeds: Callable[[Callable[[str, dict[str, Any]], Awaitable[Any]]], Deeds],
        stop: Callable[[str], None] = lambda step: None,
    ) -> None:
        """``stop`` is for tests."""
        self.name, self._bus, self._stop = name, bus, stop
        self._asks, self._allowed, self._read, self._do = others
        self._deeds = deeds(self._done)
        self._answers: OrderedDict[str, bytes] = OrderedDict()
        self._tasks = Tasks()
        self.counts: Counter[str] = Counter()
        """``done``, ``refused``, ``unasked`` (answers that nobody here had asked for) and ``read``."""

    async def run(self) -> None:
        """Send and take until cancelled. What is in progress is then cut off, and comes again."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    for work in (self._send_on(), self._take(), self._hear()):
                        group.create_task(work)
            except* Exception:
                log.exception("the exchange with other machines failed, and begins again")
                await asyncio.sleep(1.0)

    def status(self) -> dict[str, Any]:
        """``name``, ``waiting`` (see ``Asks.status``) and ``counts``."""
        return {"name": self.name, "waiting": self._asks.status(), "counts": dict(self.counts)}

    # --- asking ---

    async def question(self, machine: str, name: str, args: dict[str, Any]) -> Any:
        """What another machine answers to a question.

        Raises:
            RequestError: it does not answer now (``machine-away``), or it refuses.
            NatsError: the server cannot be reached.
        """
        session = await self._connected()
        reading, whole, size = session.new_inbox().rpartition(".")[2], b"", 1
        while len(whole) < size:
            asked = orjson.dumps({"name": name, "args": args, "reading": reading, "at": len(whole)})
            try:
                async with asyncio.timeout(QUESTION_SECONDS):
                    answer = await (await session.begin(question_subject(self.name, machine), asked))
            except TimeoutError:
                raise self._away(machine) from None
            if answer.status:
                raise self._away(machine)
            size = int(answer.headers.get(_SIZE) or 0)
            if not answer.body:
                break
            whole += answer.body
        return _value(machine, whole)

    def _away(self, machine: str) -> RequestError:
        waiting = sum(each.machine == machine for each in self._asks.pending.values())
        queued = f"; {waiting} of your requests wait for it" if waiting else ""
        why = f"no sidecar of a machine {machine!a} answers{queued}; start one there: `durable-stream serve`"
        return RequestError("machine-away", why)

    async def check_known(self, machine: str) -> None:
        """Refuse a request to a machine that was never on the server, because it would wait for ever.

        Raises:
            RequestError: there is no such machine (``no-machine``).
        """
        try:
            session = await self._connected()
            consumers = await listed(session, f"CONSUMER.LIST.{COMMANDS}", "consumers")
        except NatsError:
            return  # nobody knows now, so the request waits
        filters = [each["config"].get("filter_subject") or "" for each in consumers]
        known = sorted({found for each in filters if (found := machine_of(each))} - {self.name})
        if machine not in known:
            names = f"those that were are {', '.join(known)}" if known else "no other was"
            raise RequestError("no-machine", f"no machine {machine!a} was ever on this NATS server; {names}")

    async def withdraw(self, sent: Sent) -> None:
        """Take back a request that its machine has not taken yet.

        Raises:
            RequestError: the machine has it (``still-running``).
            NatsError: the server cannot be reached.
        """
        session = await self._connected()
        busy = RequestError("still-running", f"{sent.machine} has taken requests of others or this one; try again")
        if await self._is_busy(session, sent.machine):
            raise busy
        await purge(session, COMMANDS, subject=str(MachineSubject(self.name, sent.machine, "ask", sent.id)))
        if await self._is_busy(session, sent.machine):  # it came back just now
            raise busy
        await self._asks.returned(sent.machine, sent.id, _rejected("withdrawn", "it was taken back"))

    async def _is_busy(self, session: JetStream, machine: str) -> bool:
        consumers = await listed(session, f"CONSUMER.LIST.{COMMANDS}", "consumers")
        mine = [each for each in consumers if each["config"].get("filter_subject") == machine_pattern(machine)]
        return any(each["num_ack_pending"] for each in mine)

    async def _connected(self) -> JetStream:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._bus.sessions.wait()
        except TimeoutError:
            raise NatsUnavailable(f"no connection to NATS within {CONNECT_SECONDS:g} s") from None

    async def _send_on(self) -> None:
        """Send each request without an answer: at once, at each connection, and from time to time."""
        while True:
            session = await self._bus.sessions.wait()
            sent: set[str] = set()
            ended = asyncio.create_task(session.ended())
            try:
                async with asyncio.timeout(AGAIN_SECONDS):
                    while not ended.done():
                        self._asks.news.clear()
                        for each in [one for one in self._asks.pending.values() if one.id not in sent]:
                            await self._send(each)
                            sent.add(each.id)
                        news = asyncio.create_task(self._asks.news.wait())
                        try:
                            await asyncio.wait((news, ended), return_when=asyncio.FIRST_COMPLETED)
                        finally:
                            news.cancel()
            except TimeoutError:
                continue
            except NatsError as error:
                log.warning("a request to another machine was not sent: %s", error)
                await asyncio.sleep(1.0)
            finally:
                ended.cancel()

    async def _send(self, sent: Sent) -> None:
        subject = MachineSubject(self.name, sent.machine, "ask", sent.id)
        body = orjson.dumps({"name": sent.name, "args": sent.args, "by": sent.by})
        # The server refuses it while it has the message, also after it has forgotten the message's id.
        headers = self._headers(sent, "ask", f"{self._bus.log_id}:{sent.id}") | {EXPECTED_REVISION: "0"}
        self._stop("before-send")
        try:
            await self._bus.publish(str(subject), headers, body)
        except WrongExpectation:
            return
        self._stop("after-send")

    def _headers(self, sent: Sent, kind: str, message_id: str) -> dict[str, str]:
        given = {h.TRACEPARENT: sent.traceparent} if sent.traceparent else {}
        return h.fill_headers(
            given,
            origin=sent.id,
            timestamp_ms=sent.ts,
            message_type=f"machine.{kind}",
            sender=self.name,
            message_id=f"{message_id}:{kind}",
        ).headers

    # --- what comes ---

    async def _take(self) -> None:
        """Take requests and answers."""
        retry = replace(self._bus.retry, attempts=None)  # a log that cannot be written must lose nothing
        await self._bus.subscribe(DURABLE, [machine_pattern(self.name)], self._handle, retry, exclusive=True).run()

    async def _handle(self, delivery: Delivery) -> Outcome:
        if delivery.attempt > GIVE_UP_DELIVERIES:
            return Poison(f"delivered {delivery.attempt} times without an answer")
        try:
            subject, body = MachineSubject.parse(delivery.subject), orjson.loads(delivery.body)
            if not isinstance(body, dict):
                raise TypeError
            if subject.kind == "ask":
                name, args, by = str(body["name"]), dict(body["args"]), str(body.get("by") or "process")
            elif subject.kind != "answer":
                raise KeyError(subject.kind)
        except (SubjectError, ValueError, TypeError, LookupError):
            return Poison("not a request of a machine, and no answer to one")
        try:
            if subject.kind == "answer":
                self._stop("returned")
                if not await self._asks.returned(subject.sender, subject.id, body):
                    self.counts["unasked"] += 1
                return Done()
            trace = delivery.headers.get(h.TRACEPARENT)
            answer = await self._answered(subject, name, args, by, trace)
            self.counts["done" if answer["status"] == "accepted" else "refused"] += 1
            sent = Sent(subject.id, subject.sender, name, args, by, None, 0, trace)
            to = MachineSubject(self.name, subject.sender, "answer", subject.id)
            headers = self._headers(sent, "answer", f"{self._bus.log_id}:{subject.id}")
            self._stop("before-answer")
            await self._bus.publish(str(to), headers, orjson.dumps(answer))
            self._stop("after-answer")
        except (StreamError, NatsUnavailable) as error:
            log.warning("a request of machine %s waits: %s", subject.sender, error)
            return Again()
        return Done()

    async def _answered(
        self, subject: MachineSubject, name: str, args: dict[str, Any], by: str, trace: str | None
    ) -> dict[str, Any]:
        machine = subject.sender
        if name not in TOLD and name not in self._allowed.get(machine, ()):
            line = f'allow = {{ {orjson.dumps(machine).decode()} = ["{name}"] }}'
            why = f"it does not let {machine} do this; add there to [machines] in config.toml: {line}"
            return _rejected("not-allowed", why)
        args.pop("key", None)  # the ledger makes it
        ASKER.set(Asker(machine, by, subject.id))
        done = await self._deeds.done(f"machine:{machine}", subject.id, name, args, trace)
        return {each: done[each] for each in ("status", "value", "error_code", "error") if each in done}

    async def _done(self, name: str, args: dict[str, Any]) -> Any:
        asker = ASKER.get()
        assert asker is not None
        self._stop("asked")
        value = await self._do(asker.machine, name, args)
        self._stop("done")
        return value

    # --- questions ---

    async def _hear(self) -> None:
        """Answer questions."""
        try:
            while True:
                session = await self._bus.sessions.wait()
                try:
                    async with session.hearing(question_pattern(self.name)) as arriving:
                        while True:
                            message = await arriving.next(3600.0)
                            self._tasks.spawn(self._reply(session, message))
                except NatsError as error:
                    log.info("questions of other machines are heard again: %s", error)
                    await asyncio.sleep(0.05)
        finally:
            await self._tasks.cancel()

    async def _reply(self, session: JetStream, message: Received) -> None:
        try:
            asked = orjson.loads(message.body)
            name, args = str(asked["name"]), dict(asked["args"])
            reading, at = f"{asker_of(message.subject)} {asked['reading']}", int(asked["at"])
        except (SubjectError, ValueError, TypeError, LookupError):
            return
        whole = self._answers.get(reading)
        if whole is None:
            whole = await self._found(asker_of(message.subject), name, args)
            self.counts["read"] += 1
        step = max(session.server.max_payload - _HEADERS, 1)
        if at + step < len(whole):
            self._answers[reading] = whole
            while len(self._answers) > KEPT:
                self._answers.popitem(last=False)
        else:
            self._answers.pop(reading, None)
        try:
            await session.send(message.reply, whole[at : at + step], {_SIZE: str(len(whole))})
        except NatsError as error:
            log.warning("an answer to another machine was not sent: %s", error)

    async def _found(self, machine: str, name: str, args: dict[str, Any]) -> bytes:
        try:
            whole = orjson.dumps({"status": "accepted", "value": await self._read(machine, name, args)})
            if len(whole) > MAX_ANSWER:
                why = f"the answer of {self.name} has {len(whole)} bytes, and at most {MAX_ANSWER} travel"
                raise RequestError("too-large", why)
            return whole
        except (RequestError, CodedError) as error:
            return orjson.dumps(_rejected(error.code, str(error)))
        except Exception as error:
            log.exception("a question of another machine failed")
            return orjson.dumps(_rejected("unexpected", f"{type(error).__name__}; see sidecar.log of {self.name}"))


def _value(machine: str, whole: bytes) -> Any:
    try:
        answer = orjson.loads(whole)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise RequestError("machine-away", f"the answer of {machine} ended before its end; try again")
    return accepted(machine, answer)


def _rejected(code: str, text: str) -> dict[str, Any]:
    return {"status": "rejected", "error_code": code, "error": text}
