"""The event bus in memory, for tests that need no server."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from streams.bus.contract import (
    BusClosed,
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
from streams.bus.subjects import DEAD_LETTERS, check_subject, covers, matches, overlap

_COMMANDS = "cmd.>"
"""The pattern of commands, which form a work queue: each subject has one group, and handled messages are removed."""

_LOSSY = "str."
"""Prefix of subjects whose messages are not kept."""


@dataclass(slots=True)
class _Pending:
    """A message on its way to one group; ``attempt`` is the number of the next attempt."""

    sequence: int
    attempt: int = 1


@dataclass(slots=True)
class _Group:
    """The subscriptions that share the messages of one durable name, or a single subscription without a durable
    name.
    """

    durable: str | None
    pattern: str
    redelivery: Redelivery
    next: int
    again: deque[_Pending] = field(default_factory=deque)
    instances: list[MemorySubscription] = field(default_factory=list)
    work: asyncio.Event = field(default_factory=asyncio.Event)
    first_attempts: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    lossy: set[int] = field(default_factory=set)
    """Lossy messages published while the group had a subscription."""

    def settle(self, sequence: int) -> None:
        self.lossy.discard(sequence)
        waiting = self.first_attempts.pop(sequence, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


class MemoryEventBus:
    """``EventBus`` in memory: its messages are lost when the process ends.

    ``publish`` waits until every matching subscription has tried the message once, successfully or not. A
    handler that publishes does not wait, because it could wait for itself forever. With ``waits=False``, ``publish``
    returns at once, as it does on a server. The oldest messages and message ids beyond ``keep`` are forgotten, handled
    or not. ``sleep`` waits for a back-off.

    ``counts``: published, duplicates, handled, failed, dead, given_up (there is no durable name, so there is no dead
    letter), forgotten.
    """

    def __init__(
        self,
        *,
        waits: bool = True,
        keep: int = 100_000,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._waits, self._keep, self._sleep = waits, keep, sleep
        self._messages: OrderedDict[int, Delivery] = OrderedDict()
        self._ids: OrderedDict[str, int] = OrderedDict()
        self._durables: dict[str, _Group] = {}
        self._groups: list[_Group] = []
        self._timers: set[asyncio.Task[None]] = set()
        self._last = 0
        self._closed = False

    async def publish(
        self,
        subject: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> Published:
        published, first_attempts = self._keep_message(subject, body, headers or {}, message_id)
        if self._waits and first_attempts and _HANDLED_BY.get() is not self:
            # Use ``asyncio.wait``, which does not cancel the handlers' futures when the publisher is cancelled.
            await asyncio.wait(first_attempts)
        return published

    def _keep_message(
        self, subject: str, body: bytes, headers: Mapping[str, str], message_id: str | None
    ) -> tuple[Published, list[asyncio.Future[None]]]:
        self._check_open()
        message = Delivery(check_subject(subject), bytes(body), check_headers(headers), self._last + 1)
        if message_id is not None:
            known = self._ids.get(message_id)
            if known is not None:
                self.counts["duplicates"] += 1
                return Published(known, True), []
            self._ids[message_id] = message.sequence
        self._last = message.sequence
        self._messages[message.sequence] = message
        self.counts["published"] += 1
        while len(self._messages) > self._keep:
            forgotten, _ = self._messages.popitem(last=False)
            self.counts["forgotten"] += 1
            for group in self._groups:
                group.settle(forgotten)
        while len(self._ids) > self._keep:
            self._ids.popitem(last=False)
        first_attempts = []
        for group in self._groups:
            if group.instances and matches(group.pattern, subject):
                waiting = group.first_attempts[message.sequence] = asyncio.get_running_loop().create_future()
                first_attempts.append(waiting)
                if subject.startswith(_LOSSY):
                    group.lossy.add(message.sequence)
                group.work.set()
        return Published(message.sequence, False), first_attempts

    async def subscribe(
        self,
        pattern: str,
        handler: Handler,
        *,
        durable: str | None = None,
        start: Start = "new",
        redelivery: Redelivery | None = None,
    ) -> MemorySubscription:
        self._check_open()
        check_subscription(pattern, durable)
        group = self._durables.get(durable) if durable is not None else None
        redelivery = redelivery or Redelivery()
        if group is None:
            self._check_queue(pattern, durable)
            # A work queue has no starting point, because it delivers every message that is not handled yet.
            begins_new = start == "new" and not covers(_COMMANDS, pattern)
            group = _Group(durable, pattern, redelivery, self._last + 1 if begins_new else 1)
            self._groups.append(group)
            if durable is not None:
                self._durables[durable] = group
        else:
            same = group.redelivery == redelivery
            check_shared(group.durable or "", current=group.pattern, pattern=pattern, is_same_redelivery=same)
        subscription = MemorySubscription(self, group, handler)
        group.instances.append(subscription)
        return subscription

    async def close(self) -> None:
        self._closed = True
        running = [instance for group in self._groups for instance in list(group.instances)]
        for instance in running:
            instance.stop()
        for timer in list(self._timers):
            timer.cancel()
        for instance in running:
            await instance.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)

    def _check_open(self) -> None:
        if self._closed:
            raise BusClosed

    def _check_queue(self, pattern: str, durable: str | None) -> None:
        if not overlap(pattern, _COMMANDS):
            return
        for group in self._groups:
            if overlap(group.pattern, _COMMANDS) and overlap(group.pattern, pattern):
                raise DurableConflict(
                    durable or pattern, f"{group.durable or group.pattern} already handles these commands"
                )

    def take(self, group: _Group) -> Delivery | None:
        while group.again:
            pending = group.again.popleft()
            message = self._messages.get(pending.sequence)
            if message is not None:
                return self._attempt(group, message, pending.attempt)
        while group.next <= self._last:
            # Jump over all forgotten messages at once, but never beyond the last published message.
            oldest = next(iter(self._messages), self._last)
            sequence = max(group.next, oldest)
            group.next = sequence + 1
            message = self._messages.get(sequence)
            if message is None or not matches(group.pattern, message.subject):
                continue
            if not message.subject.startswith(_LOSSY) or sequence in group.lossy:
                return self._attempt(group, message, 1)
        return None

    def _attempt(self, group: _Group, message: Delivery, attempt: int) -> Delivery:
        delay = group.redelivery.delay(attempt)
        return Delivery(message.subject, message.body, message.headers, message.sequence, attempt, delay)

    def failed(self, group: _Group, delivery: Delivery, error: BaseException) -> None:
        self.counts["failed"] += 1
        reason, delay = failure_of(delivery, error)
        if delay is None:
            self._give_up(group, delivery, reason)
            self._done(delivery)
            return
        timer = asyncio.create_task(self._again(group, _Pending(delivery.sequence, delivery.attempt + 1), delay))
        self._timers.add(timer)
        timer.add_done_callback(self._timers.discard)

    def handled(self, delivery: Delivery) -> None:
        self.counts["handled"] += 1
        self._done(delivery)

    def _done(self, delivery: Delivery) -> None:
        if matches(_COMMANDS, delivery.subject):
            self._messages.pop(delivery.sequence, None)

    async def _again(self, group: _Group, pending: _Pending, delay: float) -> None:
        await self._sleep(delay)
        group.again.append(pending)
        group.work.set()

    def _give_up(self, group: _Group, delivery: Delivery, reason: str) -> None:
        if group.durable is None or self._closed or delivery.subject.startswith(f"{DEAD_LETTERS}."):
            # A dead letter that cannot be handled does not become another one, which would only hide the first.
            self.counts["given_up"] += 1
            return
        subject, headers = dead_letter(delivery, group.durable, reason)
        self._keep_message(subject, delivery.body, headers, f"dead:{group.durable}:{delivery.sequence}")
        self.counts["dead"] += 1

    def left(self, subscription: MemorySubscription) -> None:
        group = subscription.group
        group.instances.remove(subscription)
        if group.instances:
            group.work.set()
            return
        for sequence in list(group.first_attempts):
            group.settle(sequence)
        group.lossy.clear()
        if group.durable is None:
            self._groups.remove(group)


_HANDLED_BY: ContextVar[MemoryEventBus | None] = ContextVar("handled_by", default=None)


class MemorySubscription:
    """``Subscription`` of a ``MemoryEventBus``: a task that takes one message after another."""

    def __init__(self, bus: MemoryEventBus, group: _Group, handler: Handler) -> None:
        self.group = group
        self._bus, self._handler = bus, handler
        self._stopped = False
        self._task = asyncio.create_task(self._run())

    @property
    def pattern(self) -> str:
        return self.group.pattern

    @property
    def durable(self) -> str | None:
        return self.group.durable

    def stop(self) -> None:
        """Take no more messages. Returns at once."""
        self._stopped = True
        self.group.work.set()

    async def cancel(self) -> None:
        self.stop()
        if asyncio.current_task() is not self._task:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        _HANDLED_BY.set(self._bus)
        try:
            while not self._stopped:
                delivery = self._bus.take(self.group)
                if delivery is None:
                    self.group.work.clear()
                    await self.group.work.wait()
                    continue
                await self._handle(delivery)
                # Let the other handlers run, even if this handler never awaits anything.
                await asyncio.sleep(0)
        finally:
            self._bus.left(self)

    async def _handle(self, delivery: Delivery) -> None:
        try:
            await self._handler(delivery)
        except asyncio.CancelledError as error:
            if not self._task.cancelling():
                # This task itself was not cancelled but something that the handler awaited, so the attempt has failed.
                self._bus.failed(self.group, delivery, error)
                return
            self.group.again.appendleft(_Pending(delivery.sequence, delivery.attempt))
            raise
        except Exception as error:  # noqa: BLE001 - any exception counts as a failed attempt
            self._bus.failed(self.group, delivery, error)
        else:
            self._bus.handled(delivery)
        finally:
            self.group.settle(delivery.sequence)
