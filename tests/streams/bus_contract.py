"""What every ``EventBus`` must do. Subclass ``BusContract`` and supply ``open_bus``; never copy a test.

``open_bus`` returns a new, empty bus for each test. Subjects
begin with ``evt.`` (multicast) unless a test is about something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from streams.bus.contract import (
    DEAD_ATTEMPTS,
    DEAD_DURABLE,
    DEAD_REASON,
    DEAD_SUBJECT,
    BusClosed,
    Delivery,
    DurableConflict,
    EventBus,
    Poison,
    Published,
    Redelivery,
    Retry,
)
from streams.bus.headers import HeaderError
from streams.bus.subjects import SubjectError

HANG_S = 20
"""When a test is taken to hang."""

AT_ONCE = Redelivery(max_deliver=3, backoff_s=())


class Inbox:
    """A handler that keeps its messages; ``fails`` says which attempt raises which error."""

    def __init__(self, fails: Callable[[Delivery], BaseException | None] = lambda delivery: None) -> None:
        self.got: list[Delivery] = []
        self.ended = 0
        self._fails = fails
        self._changed = asyncio.Condition()

    async def __call__(self, delivery: Delivery) -> None:
        self.got.append(delivery)
        error = self._fails(delivery)
        async with self._changed:
            self._changed.notify_all()
        self.ended += 1
        if error is not None:
            raise error

    async def wait(self, count: int) -> list[Delivery]:
        """Wait for ``count`` deliveries."""
        async with asyncio.timeout(HANG_S), self._changed:
            await self._changed.wait_for(lambda: len(self.got) >= count)
        return self.got

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.got]


class Gate:
    """A handler that blocks until it is released."""

    def __init__(self) -> None:
        self.inside: list[bytes] = []
        self.left: list[bytes] = []
        self.open = asyncio.Event()
        self._entered = asyncio.Event()
        self._leaving = asyncio.Condition()

    async def __call__(self, delivery: Delivery) -> None:
        self.inside.append(delivery.body)
        self._entered.set()
        await self.open.wait()
        self.left.append(delivery.body)
        async with self._leaving:
            self._leaving.notify_all()

    async def wait(self) -> None:
        """Wait until a message is inside."""
        async with asyncio.timeout(HANG_S):
            await self._entered.wait()

    async def wait_left(self, count: int) -> None:
        """Wait until ``count`` messages are through."""
        async with asyncio.timeout(HANG_S), self._leaving:
            await self._leaving.wait_for(lambda: len(self.left) >= count)


class BusContract:
    takes_str = True
    """Whether messages under ``str`` can be published at all."""

    async def open_bus(self) -> EventBus:
        raise NotImplementedError("an implementation's suite says how to open it")

    @pytest.fixture
    async def bus(self) -> AsyncIterator[EventBus]:
        bus = await self.open_bus()
        async with asyncio.timeout(60):
            yield bus
            await bus.close()

    @pytest.fixture
    async def send(self, bus: EventBus) -> AsyncIterator[Callable[..., Awaitable[None]]]:
        """Publish in order without waiting for handlers, whatever this bus's ``publish`` waits for."""
        tasks: list[asyncio.Task[Published]] = []

        async def send(subject: str, *bodies: bytes) -> None:
            for body in bodies:
                tasks.append(asyncio.create_task(bus.publish(subject, body)))
                await asyncio.sleep(0)

        yield send
        await asyncio.wait_for(asyncio.gather(*tasks), HANG_S)

    # Publishing

    async def test_a_message_arrives_as_it_was_published(self, bus: EventBus) -> None:
        inbox = Inbox()
        await bus.subscribe("evt.>", inbox)
        headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "CG-Sender": "build"}
        published = await bus.publish("evt.p.one", b'\x00\xff{"a":1}', headers=headers)
        (delivery,) = await inbox.wait(1)
        assert (delivery.subject, delivery.body) == ("evt.p.one", b'\x00\xff{"a":1}')
        assert {k: v for k, v in delivery.headers.items() if not k.startswith("Nats-")} == headers
        assert (delivery.sequence, delivery.attempt) == (published.sequence, 1)
        assert not published.duplicate

    async def test_nobody_has_to_listen(self, bus: EventBus) -> None:
        first = await bus.publish("evt.p.one", b"1")
        second = await bus.publish("evt.p.one", b"")
        assert second.sequence > first.sequence

    async def test_a_message_id_makes_it_once(self, bus: EventBus) -> None:
        inbox = Inbox()
        await bus.subscribe("evt.>", inbox)
        first = await bus.publish("evt.p.one", b"1", message_id="01A")
        again = await bus.publish("evt.p.one", b"1", message_id="01A")
        other = await bus.publish("evt.p.one", b"2", message_id="01B")
        assert (again.sequence, again.duplicate) == (first.sequence, True)
        assert not other.duplicate
        await inbox.wait(2)
        assert inbox.bodies == [b"1", b"2"]

    @pytest.mark.parametrize(
        "subject", ["", "evt.*", "evt.>", "evt..x", "evt.a b", "evt.a\r\nPUB evt.b 0\r\n\r\n", "evt.\x00"]
    )
    async def test_a_bad_subject_is_refused(self, bus: EventBus, subject: str) -> None:
        with pytest.raises(SubjectError):
            await bus.publish(subject, b"1")

    @pytest.mark.parametrize(
        "headers",
        [{"a": "b\r\nCG-Recursion-Depth: 0"}, {"a\r\nb": "c"}, {"a": "\n"}, {"a b": "c"}, {"a": "é"}, {"a": ""}],
    )
    async def test_a_header_cannot_bring_another_one(self, bus: EventBus, headers: dict[str, str]) -> None:
        inbox = Inbox()
        await bus.subscribe("evt.>", inbox)
        with pytest.raises(HeaderError):
            await bus.publish("evt.p.one", b"1", headers=headers)
        await bus.publish("evt.p.one", b"2")
        await inbox.wait(1)
        assert inbox.bodies == [b"2"]

    # Patterns

    async def test_a_pattern_hears_what_it_matches(self, bus: EventBus) -> None:
        inboxes = {pattern: Inbox() for pattern in ("evt.a.one", "evt.*.one", "evt.a.>", "evt.>")}
        last = Inbox()
        for pattern, inbox in inboxes.items():
            await bus.subscribe(pattern, inbox)
        await bus.subscribe("evt.last", last)
        for subject in ("evt.a.one", "evt.b.one", "evt.a.two", "evt.a.one.more", "evt.last"):
            await bus.publish(subject, subject.encode())
        await last.wait(1)
        expected = {
            "evt.a.one": [b"evt.a.one"],
            "evt.*.one": [b"evt.a.one", b"evt.b.one"],
            "evt.a.>": [b"evt.a.one", b"evt.a.two", b"evt.a.one.more"],
            "evt.>": [b"evt.a.one", b"evt.b.one", b"evt.a.two", b"evt.a.one.more", b"evt.last"],
        }
        for pattern, bodies in expected.items():
            await inboxes[pattern].wait(len(bodies))
            assert inboxes[pattern].bodies == bodies, pattern

    @pytest.mark.parametrize("pattern", ["", "evt.>.a", "evt.a*", "evt..a", "evt.a b"])
    async def test_a_bad_pattern_is_refused(self, bus: EventBus, pattern: str) -> None:
        with pytest.raises(SubjectError):
            await bus.subscribe(pattern, Inbox())

    @pytest.mark.parametrize("durable", ["", "a.b", "a b", "*", ">", "a\n"])
    async def test_a_bad_durable_is_refused(self, bus: EventBus, durable: str) -> None:
        with pytest.raises(SubjectError):
            await bus.subscribe("evt.>", Inbox(), durable=durable)

    # Handlers

    async def test_a_handler_is_awaited_before_it_gets_the_next_message(
        self, bus: EventBus, send: Callable[..., Awaitable[None]]
    ) -> None:
        gate, witness = Gate(), Inbox()
        await bus.subscribe("evt.>", gate, durable="slow")
        await bus.subscribe("evt.>", witness, durable="quick")
        await send("evt.p.one", b"1", b"2", b"3")
        await gate.wait()
        await witness.wait(3)  # by now the slow one would have had them too
        assert gate.inside == [b"1"] and gate.left == []
        gate.open.set()
        await gate.wait_left(3)
        assert gate.left == [b"1", b"2", b"3"]

    async def test_first_attempts_are_in_the_order_of_publishing(self, bus: EventBus) -> None:
        inbox = Inbox()
        await bus.subscribe("evt.>", inbox, durable="one")
        sent = [str(n).encode() for n in range(200)]
        for body in sent:
            await bus.publish("evt.p.n", body)
        await inbox.wait(200)
        assert inbox.bodies == sent
        sequences = [delivery.sequence for delivery in inbox.got]
        assert sequences == sorted(set(sequences))

    async def test_a_handler_may_publish_and_subscribe(self, bus: EventBus) -> None:
        later = Inbox()

        async def relay(delivery: Delivery) -> None:
            if delivery.body == b"first":
                await bus.subscribe("evt.later", later)
                await bus.publish("evt.relay", b"second")
            else:
                await bus.publish("evt.later", delivery.body)

        await bus.subscribe("evt.relay", relay, durable="relay")
        await bus.publish("evt.relay", b"first")
        await later.wait(1)
        assert later.bodies == [b"second"]

    # Multicast and competition

    async def test_each_durable_gets_every_message(self, bus: EventBus) -> None:
        one, other = Inbox(), Inbox()
        await bus.subscribe("evt.>", one, durable="one")
        await bus.subscribe("evt.>", other, durable="other")
        for body in (b"1", b"2", b"3"):
            await bus.publish("evt.p.one", body)
        await one.wait(3)
        await other.wait(3)
        assert one.bodies == other.bodies == [b"1", b"2", b"3"]

    async def test_subscriptions_without_a_durable_each_get_every_message(self, bus: EventBus) -> None:
        one, other = Inbox(), Inbox()
        await bus.subscribe("evt.>", one)
        await bus.subscribe("evt.>", other)
        await bus.publish("evt.p.one", b"1")
        await one.wait(1)
        await other.wait(1)

    async def test_those_who_share_a_durable_share_its_messages(
        self, bus: EventBus, send: Callable[..., Awaitable[None]]
    ) -> None:
        held, free = Gate(), Inbox()
        await bus.subscribe("cmd.>", held, durable="workers")
        await send("cmd.p.w.a.run", b"0")
        await held.wait()
        await bus.subscribe("cmd.>", free, durable="workers")
        rest = [str(n).encode() for n in range(1, 20)]
        await send("cmd.p.w.a.run", *rest)
        await free.wait(len(rest))  # a worker that is busy keeps nobody from working
        held.open.set()
        assert free.bodies == rest
        assert held.inside == [b"0"], "each message went to one of them"

    async def test_a_durable_is_one_thing(self, bus: EventBus) -> None:
        await bus.subscribe("evt.a.>", Inbox(), durable="one", redelivery=AT_ONCE)
        with pytest.raises(DurableConflict, match="evt"):
            await bus.subscribe("evt.b.>", Inbox(), durable="one", redelivery=AT_ONCE)
        with pytest.raises(DurableConflict, match="redelivery"):
            await bus.subscribe("evt.a.>", Inbox(), durable="one", redelivery=Redelivery(max_deliver=9))

    # Modes: the first token says how a message is kept

    async def test_no_two_durables_of_a_work_queue_overlap(self, bus: EventBus) -> None:
        first = await bus.subscribe("cmd.p.w.>", Inbox(), durable="one")
        for pattern in ("cmd.p.w.>", "cmd.p.*.a.run", "cmd.>"):
            with pytest.raises(DurableConflict):
                await bus.subscribe(pattern, Inbox(), durable="other")
            with pytest.raises(DurableConflict):
                await bus.subscribe(pattern, Inbox())
        await bus.subscribe("cmd.p.v.>", Inbox(), durable="apart")
        await bus.subscribe("evt.p.w.>", Inbox(), durable="beside")
        await first.cancel()
        with pytest.raises(DurableConflict):
            await bus.subscribe("cmd.p.w.>", Inbox(), durable="later")

    async def test_a_command_waits_for_its_worker(self, bus: EventBus) -> None:
        inbox = Inbox()
        await bus.publish("cmd.p.w.a.run", b"1")
        await bus.subscribe("cmd.p.w.>", inbox, durable="worker", start="new")
        await bus.publish("cmd.p.w.a.run", b"2")
        await inbox.wait(2)
        assert inbox.bodies == [b"1", b"2"]

    async def test_a_handled_command_is_gone(self, bus: EventBus) -> None:
        first, second = Inbox(), Inbox()
        subscription = await bus.subscribe("cmd.>", first)
        await bus.publish("cmd.p.w.a.run", b"1")
        await first.wait(1)
        await subscription.cancel()
        await bus.publish("cmd.p.w.a.run", b"2")
        await bus.subscribe("cmd.>", second, durable="worker", start="all")
        await second.wait(1)
        assert second.bodies == [b"2"]

    async def test_str_is_kept_for_nobody(self, bus: EventBus) -> None:
        now, away, late, last = Inbox(), Inbox(), Inbox(), Inbox()
        if not self.takes_str:
            with pytest.raises(SubjectError):
                await bus.publish("str.p.chunk", b"1")
            with pytest.raises(SubjectError):
                await bus.subscribe("str.>", late, durable="late", start="all")
            return
        await bus.subscribe("str.>", now)
        await (await bus.subscribe("str.>", away, durable="away")).cancel()
        await bus.publish("str.p.chunk", b"1")
        await now.wait(1)
        await bus.subscribe("str.>", away, durable="away")
        await bus.subscribe("str.>", late, durable="late", start="all")
        await bus.subscribe("str.>", last, start="all")
        await bus.publish("str.p.chunk", b"2")
        for inbox in (away, late, last):
            await inbox.wait(1)
            assert inbox.bodies == [b"2"]

    # Where a durable begins, and where it continues

    async def test_new_begins_now_and_all_with_the_oldest(self, bus: EventBus) -> None:
        await bus.publish("evt.p.one", b"before")
        new, whole = Inbox(), Inbox()
        await bus.subscribe("evt.>", new, durable="new", start="new")
        await bus.subscribe("evt.>", whole, durable="whole", start="all")
        await bus.publish("evt.p.one", b"after")
        await new.wait(1)
        await whole.wait(2)
        assert new.bodies == [b"after"]
        assert whole.bodies == [b"before", b"after"]

    async def test_a_durable_keeps_its_place_while_nobody_listens(self, bus: EventBus) -> None:
        first, second = Inbox(), Inbox()
        subscription = await bus.subscribe("evt.>", first, durable="one")
        await bus.publish("evt.p.one", b"1")
        await first.wait(1)
        await subscription.cancel()
        await bus.publish("evt.p.one", b"2")
        await bus.publish("evt.p.one", b"3")
        await bus.subscribe("evt.>", second, durable="one", start="new")
        await second.wait(2)
        assert (first.bodies, second.bodies) == ([b"1"], [b"2", b"3"])

    # Redelivery

    async def test_a_failed_message_comes_again_and_holds_nobody_up(self, bus: EventBus) -> None:
        inbox = Inbox(lambda d: ValueError("no") if d.body == b"bad" and d.attempt < 3 else None)
        await bus.subscribe("evt.>", inbox, durable="one", redelivery=AT_ONCE)
        for body in (b"bad", b"1", b"2"):
            await bus.publish("evt.p.one", body)
        await inbox.wait(5)
        bad = [delivery for delivery in inbox.got if delivery.body == b"bad"]
        assert [delivery.attempt for delivery in bad] == [1, 2, 3]
        assert len({delivery.sequence for delivery in bad}) == 1
        assert [body for body in inbox.bodies if body != b"bad"] == [b"1", b"2"]

    async def test_each_attempt_says_what_will_be_waited(self, bus: EventBus) -> None:
        inbox = Inbox(lambda d: ValueError("no"))
        redelivery = Redelivery(max_deliver=4, backoff_s=(0.001, 0.002))
        await bus.subscribe("evt.>", inbox, durable="one", redelivery=redelivery)
        await bus.publish("evt.p.one", b"1")
        await inbox.wait(4)
        assert [(d.attempt, d.backoff_s) for d in inbox.got] == [(1, 0.001), (2, 0.002), (3, 0.002), (4, None)]

    async def test_only_the_durable_that_failed_gets_it_again(self, bus: EventBus) -> None:
        fails, works, last = Inbox(lambda d: ValueError("no") if d.attempt == 1 else None), Inbox(), Inbox()
        await bus.subscribe("evt.p.one", fails, durable="fails", redelivery=AT_ONCE)
        await bus.subscribe("evt.p.one", works, durable="works", redelivery=AT_ONCE)
        await bus.subscribe("evt.last", last)
        await bus.publish("evt.p.one", b"1")
        await fails.wait(2)
        await bus.publish("evt.last", b"")
        await last.wait(1)
        assert len(works.got) == 1

    async def test_a_handler_may_say_when(self, bus: EventBus) -> None:
        inbox = Inbox(lambda d: Retry(0.001, "busy") if d.attempt == 1 else None)
        await bus.subscribe("evt.>", inbox, durable="one", redelivery=Redelivery(3, (3600.0,)))
        await bus.publish("evt.p.one", b"1")
        assert [delivery.attempt for delivery in await inbox.wait(2)] == [1, 2]

    async def test_a_cancelled_inner_wait_is_a_failure_like_any(self, bus: EventBus) -> None:
        inbox = Inbox(lambda d: asyncio.CancelledError() if d.attempt == 1 else None)
        await bus.subscribe("evt.>", inbox, durable="one", redelivery=AT_ONCE)
        await bus.publish("evt.p.one", b"1")
        await inbox.wait(2)

    # Dead letters

    async def test_what_fails_to_the_last_becomes_a_dead_letter(self, bus: EventBus) -> None:
        inbox, dead = Inbox(lambda d: ValueError("the text of an error may hold a secret")), Inbox()
        await bus.subscribe("dlq.>", dead, durable="dead")
        await bus.subscribe("cmd.>", inbox, durable="worker", redelivery=AT_ONCE)
        await bus.publish("cmd.p.w.a.run", b"body", headers={"CG-Sender": "x"}, message_id="01A")
        await bus.publish("cmd.p.w.a.run", b"other")
        letters = await dead.wait(2)
        assert [d.body for d in inbox.got].count(b"body") == AT_ONCE.max_deliver
        letter = next(each for each in letters if each.body == b"body")
        assert letter.subject == "dlq.worker.cmd.p.w.a.run"
        told = {name: letter.headers[name] for name in (DEAD_SUBJECT, DEAD_DURABLE, DEAD_ATTEMPTS, DEAD_REASON)}
        assert told == {
            DEAD_SUBJECT: "cmd.p.w.a.run",
            DEAD_DURABLE: "worker",
            DEAD_ATTEMPTS: "3",
            DEAD_REASON: "ValueError",
        }
        assert letter.headers["CG-Sender"] == "x"
        assert letter.headers.get("Nats-Msg-Id") != "01A"

    async def test_poison_is_never_tried_again(self, bus: EventBus) -> None:
        inbox, dead = Inbox(lambda d: Poison("no JSON\r\nat all, ü") if d.body == b"bad" else None), Inbox()
        await bus.subscribe("dlq.>", dead, durable="dead")
        await bus.subscribe("cmd.>", inbox, durable="worker", redelivery=AT_ONCE)
        await bus.publish("cmd.p.w.a.run", b"bad")
        await bus.publish("cmd.p.w.a.run", b"good")
        (letter,) = await dead.wait(1)
        await inbox.wait(2)
        assert (letter.headers[DEAD_ATTEMPTS], letter.headers[DEAD_REASON]) == ("1", "no JSON%0D%0Aat all, %C3%BC")
        assert inbox.bodies == [b"bad", b"good"]

    async def test_a_message_with_all_headers_there_may_be_can_die_too(self, bus: EventBus) -> None:
        inbox, dead = Inbox(lambda d: Poison("")), Inbox()
        await bus.subscribe("dlq.>", dead, durable="dead")
        await bus.subscribe("cmd.>", inbox, durable="worker")
        headers = {f"X-{n}": "y" for n in range(38)} | {"ds-dead-reason": "forged"}
        await bus.publish("cmd.p.w.a.run", b"bad", headers=headers)
        (letter,) = await dead.wait(1)
        assert letter.headers[DEAD_REASON] == "-" and "ds-dead-reason" not in letter.headers

    async def test_a_dead_letter_does_not_die_again(self, bus: EventBus) -> None:
        inbox, dead, last = Inbox(lambda d: Poison("bad")), Inbox(lambda d: Poison("worse")), Inbox()
        await bus.subscribe("dlq.>", dead, durable="dead")
        await bus.subscribe("cmd.>", inbox, durable="worker")
        await bus.publish("cmd.p.w.a.run", b"1")
        await dead.wait(1)
        await bus.publish("cmd.p.w.a.run", b"2")
        await dead.wait(2)
        await bus.subscribe("dlq.>", last, durable="last", start="all")
        await last.wait(2)
        assert last.bodies == [b"1", b"2"]

    # Cancelling and closing

    async def test_cancelling_waits_for_the_handler_that_runs(
        self, bus: EventBus, send: Callable[..., Awaitable[None]]
    ) -> None:
        gate, other = Gate(), Inbox()
        subscription = await bus.subscribe("evt.>", gate, durable="one")
        await send("evt.p.one", b"1", b"2")
        await gate.wait()
        cancelling = asyncio.create_task(subscription.cancel())
        await asyncio.sleep(0)
        assert not cancelling.done()
        gate.open.set()
        await asyncio.wait_for(cancelling, HANG_S)
        assert gate.left == [b"1"], "it takes nothing more"
        await subscription.cancel()
        await bus.subscribe("evt.>", other, durable="one")
        await other.wait(1)
        assert other.bodies == [b"2"], "what it did not take waits for the next one"

    async def test_what_a_subscription_left_goes_to_those_who_share_its_durable(self, bus: EventBus) -> None:
        one, other = Inbox(), Inbox()
        first = await bus.subscribe("evt.>", one, durable="both")
        await bus.subscribe("evt.>", other, durable="both")
        await first.cancel()
        for body in (b"1", b"2"):
            await bus.publish("evt.p.one", body)
        await other.wait(2)
        assert one.got == []

    async def test_a_handler_may_cancel_its_own_subscription(self, bus: EventBus) -> None:
        inbox = Inbox()

        async def once(delivery: Delivery) -> None:
            await subscription.cancel()
            await inbox(delivery)

        subscription = await bus.subscribe("evt.>", once)
        await bus.publish("evt.p.one", b"1")
        await inbox.wait(1)
        await bus.publish("evt.p.one", b"2")
        await asyncio.wait_for(subscription.cancel(), HANG_S)
        assert inbox.bodies == [b"1"]

    async def test_closing_lets_handlers_end_and_refuses_what_comes_then(
        self, bus: EventBus, send: Callable[..., Awaitable[None]]
    ) -> None:
        gate = Gate()
        await bus.subscribe("evt.>", gate)
        await send("evt.p.one", b"1", b"2")
        await gate.wait()
        closing = asyncio.create_task(bus.close())
        await asyncio.sleep(0)
        gate.open.set()
        await asyncio.wait_for(closing, HANG_S)
        await bus.close()
        assert gate.left == [b"1"]
        with pytest.raises(BusClosed):
            await bus.publish("evt.p.one", b"3")
        with pytest.raises(BusClosed):
            await bus.subscribe("evt.>", gate)

    async def test_a_handler_may_close_the_bus(self, bus: EventBus) -> None:
        closed = asyncio.Event()

        async def last(delivery: Delivery) -> None:
            await bus.close()
            closed.set()

        await bus.subscribe("evt.>", last)
        await bus.subscribe("evt.>", Inbox(), durable="other")
        await bus.publish("evt.p.one", b"1")
        await asyncio.wait_for(closed.wait(), HANG_S)
        with pytest.raises(BusClosed):
            await bus.publish("evt.p.one", b"2")

    async def test_closing_does_not_wait_for_a_back_off(self, bus: EventBus) -> None:
        inbox = Inbox(lambda d: ValueError("no"))
        await bus.subscribe("evt.>", inbox, durable="one", redelivery=Redelivery(5, (3600.0,)))
        await bus.publish("evt.p.one", b"1")
        await inbox.wait(1)
        await asyncio.wait_for(bus.close(), HANG_S)
