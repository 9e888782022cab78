"""What every ``EventBus`` must do. Subclass ``BusContract`` and supply ``open_bus``; never copy a test.

``open_bus`` returns a new, empty bus for each test. Subjects
begin with ``evt.`` (multicast) unless a test is about something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from streams.bus.contract import BusClosed, DurableConflict, EventBus, Published, Redelivery
from streams.bus.headers import HeaderError
from streams.bus.subjects import SubjectError
from tests.streams.bus_handlers import AT_ONCE, HANG_S, Gate, Inbox
from tests.streams.bus_redelivery import RedeliveryContract


class BusContract(RedeliveryContract):
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

    async def test_a_header_cannot_bring_another_one(self, bus: EventBus) -> None:
        hostile = [
            {"a": "b\r\nCG-Recursion-Depth: 0"},
            {"a\r\nb": "c"},
            {"a": "\n"},
            {"a b": "c"},
            {"a": "é"},
            {"a": ""},
        ]
        inbox = Inbox()
        await bus.subscribe("evt.>", inbox)
        for headers in hostile:
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

    async def test_what_is_no_subject_no_pattern_and_no_durable_is_refused(self, bus: EventBus) -> None:
        for subject in ("", "evt.*", "evt.>", "evt..x", "evt.a b", "evt.a\r\nPUB evt.b 0\r\n\r\n", "evt.\x00"):
            with pytest.raises(SubjectError):
                await bus.publish(subject, b"1")
        for pattern in ("", "evt.>.a", "evt.a*", "evt..a", "evt.a b"):
            with pytest.raises(SubjectError):
                await bus.subscribe(pattern, Inbox())
        for durable in ("", "a.b", "a b", "*", ">", "a\n"):
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

    # Multicast and competition

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
