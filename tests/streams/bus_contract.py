"""What every ``EventBus`` must do. Subclass ``BusContract`` and supply ``bus``; never copy a test."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from streams.bus.contract import (
    DEAD_ATTEMPTS,
    DEAD_DURABLE,
    DEAD_REASON,
    DEAD_SUBJECT,
    Again,
    Delivery,
    Done,
    EventBus,
    Handler,
    Outcome,
    Poison,
    Subscription,
)
from streams.system.retry import Retry

HANG_S = 20
"""When a test is taken to hang."""

AT_ONCE = Retry(0.0, 0.0, attempts=3)
RUN = "cmd.p.w.a.run"


class Inbox:
    """A handler that keeps its messages. ``answer`` says what comes of each."""

    def __init__(self, answer: Callable[[Delivery], Outcome] = lambda delivery: Done()) -> None:
        self.got: list[Delivery] = []
        self._answer = answer
        self._changed = asyncio.Condition()

    async def __call__(self, delivery: Delivery) -> Outcome:
        self.got.append(delivery)
        async with self._changed:
            self._changed.notify_all()
        return self._answer(delivery)

    async def wait(self, count: int) -> list[Delivery]:
        """Wait for ``count`` deliveries."""
        async with asyncio.timeout(HANG_S), self._changed:
            await self._changed.wait_for(lambda: len(self.got) >= count)
        return self.got

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.got]


class Gate(Inbox):
    """A handler that blocks until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[bytes] = []
        self.open = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> Outcome:
        await super().__call__(delivery)
        await self.open.wait()
        self.left.append(delivery.body)
        return Done()


@asynccontextmanager
async def taking(
    bus: EventBus, handle: Handler, retry: Retry | None = None, *, durable: str = "worker", patterns: Sequence[str] = ()
) -> AsyncIterator[Subscription]:
    """A subscription that runs; what it handles at the end comes again."""
    subscription = bus.subscribe(durable, patterns or ["cmd.>"], handle, retry)
    task = asyncio.create_task(subscription.run())
    try:
        yield subscription
        assert not task.done() or task.result() is None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert subscription.working == 0


async def counted(subscription: Subscription, **counts: int) -> None:
    """Wait until a subscription has come so far."""
    async with asyncio.timeout(HANG_S):
        while not subscription.counts >= Counter(counts):
            await asyncio.sleep(0.001)


class BusContract:
    async def dead(self, bus: EventBus, count: int) -> list[Delivery]:
        """The dead letters of a bus, once there are so many."""
        letters = Inbox()
        async with taking(bus, letters, durable="letters", patterns=["dlq.>"]):
            return await letters.wait(count)

    async def test_a_message_arrives_as_it_was_published_and_is_gone(self, bus: EventBus) -> None:
        first, second = Inbox(), Inbox()
        headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "CG-Sender": "build"}
        sequence = await bus.publish(RUN, headers, b'\x00\xff{"a":1}')  # before anybody listens
        async with taking(bus, first) as subscription:
            (delivery,) = await first.wait(1)
            await counted(subscription, delivered=1, done=1)
            assert (subscription.is_ready, subscription.problem, subscription.pending) == (True, "", 0)
        assert (delivery.subject, delivery.body) == (RUN, b'\x00\xff{"a":1}')
        assert dict(delivery.headers) == headers
        assert (delivery.sequence, delivery.attempt) == (sequence, 1)
        assert not subscription.is_ready
        await bus.publish(RUN, {}, b"2")
        async with taking(bus, second):
            await second.wait(1)
        assert second.bodies == [b"2"]

    async def test_a_message_id_is_stored_once(self, bus: EventBus) -> None:
        inbox = Inbox()
        first = await bus.publish(RUN, {"Nats-Msg-Id": "01A"}, b"1")
        assert await bus.publish(RUN, {"Nats-Msg-Id": "01A"}, b"1") == first
        await bus.publish(RUN, {"Nats-Msg-Id": "01B"}, b"2")
        async with taking(bus, inbox):
            await inbox.wait(2)
        assert inbox.bodies == [b"1", b"2"]

    async def test_patterns_say_what_arrives(self, bus: EventBus) -> None:
        one, other = Inbox(), Inbox()
        async with (
            taking(bus, one, durable="one", patterns=["cmd.*.w.a.>", "cmd.p.w.b.run"]),
            taking(bus, other, durable="other", patterns=["cmd.p.w.c.>"]),
        ):
            for subject in (RUN, "cmd.p.w.b.run", "cmd.p.w.c.run", "cmd.p.w.b.stop", "cmd.q.w.a.run.now"):
                await bus.publish(subject, {}, subject.encode())
            await other.wait(1)
            await one.wait(3)
        assert one.bodies == [RUN.encode(), b"cmd.p.w.b.run", b"cmd.q.w.a.run.now"]
        assert other.bodies == [b"cmd.p.w.c.run"]

    async def test_handlers_begin_in_order_and_a_slow_one_holds_up_nobody(self, bus: EventBus) -> None:
        gate, open_ = Gate(), Inbox()

        async def handle(delivery: Delivery) -> Outcome:
            return await (gate if delivery.body == b"0" else open_)(delivery)

        async with taking(bus, handle) as subscription:
            bodies = [b"%d" % number for number in range(20)]
            for body in bodies:
                await bus.publish(RUN, {}, body)
            await open_.wait(19)
            await counted(subscription, done=19)
            assert gate.bodies + open_.bodies == bodies
            assert subscription.working >= 1
            gate.open.set()
            await counted(subscription, done=20)

    async def test_those_that_share_a_name_compete(self, bus: EventBus) -> None:
        held, free = Gate(), Inbox()
        async with taking(bus, held):
            await bus.publish(RUN, {}, b"0")
            await held.wait(1)
            async with taking(bus, free):
                for number in range(1, 20):
                    await bus.publish(RUN, {}, b"%d" % number)
                async with asyncio.timeout(HANG_S):
                    while len(held.got) + len(free.got) < 20:
                        await asyncio.sleep(0.001)
                held.open.set()
        assert Counter(held.bodies + free.bodies) == Counter(b"%d" % number for number in range(20))

    # After a failure

    async def test_what_fails_comes_again_up_to_the_last_attempt_and_holds_up_nobody(self, bus: EventBus) -> None:
        def answer(delivery: Delivery) -> Outcome:
            match delivery.body:
                case b"raises":
                    raise ValueError("the text of an error may hold a secret")
                case b"later" if delivery.attempt < 3:
                    return Again(0.001)
            return Done()

        inbox = Inbox(answer)
        async with taking(bus, inbox, AT_ONCE) as subscription:
            for body in (b"raises", b"later", b"1"):
                await bus.publish(RUN, {"CG-Sender": "x", "Nats-Msg-Id": body.decode()}, body)
            await counted(subscription, delivered=7, done=2, again=4, poison=1)
        attempts = {body: [each.attempt for each in inbox.got if each.body == body] for body in inbox.bodies}
        assert attempts == {b"raises": [1, 2, 3], b"later": [1, 2, 3], b"1": [1]}
        (letter,) = await self.dead(bus, 1)
        assert (letter.subject, letter.body) == (f"dlq.worker.{RUN}", b"raises")
        names = (DEAD_SUBJECT, DEAD_DURABLE, DEAD_ATTEMPTS, DEAD_REASON, "CG-Sender")
        assert [letter.headers[name] for name in names] == [RUN, "worker", "3", "failed 3 times", "x"]
        assert letter.headers["Nats-Msg-Id"] != "raises"

    async def test_without_a_last_attempt_nothing_is_given_up(self, bus: EventBus) -> None:
        inbox = Inbox(lambda delivery: Done() if delivery.attempt > 8 else Again())
        async with taking(bus, inbox, Retry(0.0, 0.0)) as subscription:
            await bus.publish(RUN, {}, b"1")
            await counted(subscription, again=8, done=1)

    async def test_poison_is_never_tried_again(self, bus: EventBus) -> None:
        poison = Poison("no JSON\r\nat all, ü", {"DS-More": "1"})
        inbox = Inbox(lambda delivery: poison if delivery.body == b"bad" else Done())
        async with taking(bus, inbox) as subscription:
            await bus.publish(RUN, {}, b"bad")
            await bus.publish(RUN, {}, b"good")
            await counted(subscription, delivered=2, done=1, poison=1)
        (letter,) = await self.dead(bus, 1)
        assert (letter.headers[DEAD_ATTEMPTS], letter.headers[DEAD_REASON]) == ("1", "no JSON%0D%0Aat all, %C3%BC")
        assert letter.headers["DS-More"] == "1"

    # The end of a subscription

    async def test_finishing_waits_for_the_handler_that_runs(self, bus: EventBus) -> None:
        gate, other = Gate(), Inbox()
        subscription = bus.subscribe("worker", ["cmd.>"], gate)
        running = asyncio.create_task(subscription.run())
        await bus.publish(RUN, {}, b"1")
        await gate.wait(1)
        subscription.finish()
        subscription.finish()
        await bus.publish(RUN, {}, b"2")
        await asyncio.sleep(0)
        assert not running.done()
        gate.open.set()
        await asyncio.wait_for(running, HANG_S)
        assert gate.left == [b"1"], "it takes nothing more"
        async with taking(bus, other):
            await other.wait(1)
        assert other.bodies == [b"2"], "what it did not take waits for the next one"

    async def test_what_is_cut_off_comes_again_also_to_the_same_subscription(self, bus: EventBus) -> None:
        gate = Gate()
        subscription = bus.subscribe("worker", ["cmd.>"], gate)
        for count in (1, 2):
            running = asyncio.create_task(subscription.run())
            if count == 1:
                await bus.publish(RUN, {}, b"1")
            await gate.wait(count)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert [(each.body, each.attempt) for each in gate.got] == [(b"1", 1), (b"1", 2)] and not gate.left
