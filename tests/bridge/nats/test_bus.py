"""The event bus on JetStream: the contract, and what happens when servers are killed, paused or wiped."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.nats.jetstream import bus as bus_module
from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsUnavailable, NoStream, StreamRefused
from bridge.nats.jetstream.options import PullSettings
from bridge.nats.jetstream.pulling import consumer_config, ensure_consumer
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import COMMANDS, DEAD, StreamDefinition, wanted
from bridge.nats.jetstream.wire import Message
from streams.bus.contract import BusError, Delivery, Done, Outcome, Poison
from streams.system.retry import Retry
from tests.nats_servers import HANG_SECONDS, all_streams, real_server, until
from tests.streams.bus_contract import RUN, BusContract, Inbox, counted, taking

QUICK = PullSettings(
    max_inflight=8,
    fetch_timeout_s=1.0,
    heartbeat_s=0.2,
    ack_wait_s=0.5,
    retry=Retry(0.01, 1.0, attempts=2),
)

_number = itertools.count()


@pytest.fixture
def bus(sessions: Sessions) -> JetStreamEventBus:
    return JetStreamEventBus(sessions, QUICK)


async def empty(bus: JetStreamEventBus, stream: str = COMMANDS) -> None:
    """Wait until a work queue holds nothing."""
    session = await bus.sessions.get()
    async with asyncio.timeout(HANG_SECONDS):
        while (await keeping.facts(session, stream)).messages:
            await asyncio.sleep(0.02)


class TestJetStreamEventBus(BusContract):
    """The contract."""


async def test_what_no_stream_keeps_is_no_subject_of_the_bus(bus: JetStreamEventBus) -> None:
    for subject in ("str.agent.x.chunk", "other"):
        with pytest.raises(NoStream):
            await bus.publish(subject, {}, b"")
        with pytest.raises(NoStream):
            bus.subscribe("worker", [subject], Inbox())


async def test_a_stream_that_somebody_removes_is_made_again(bus: JetStreamEventBus) -> None:
    inbox = Inbox()
    async with taking(bus, inbox):
        await bus.publish(RUN, {}, b"1")
        await inbox.wait(1)
        await (await bus.sessions.get()).api(f"STREAM.DELETE.{COMMANDS}")
        for number in itertools.count():
            try:
                await bus.publish(RUN, {}, b"2")
                break
            except BusError:
                assert number < 3
        await inbox.wait(2)


async def test_streams_have_the_settings_that_the_bus_was_given(sessions: Sessions) -> None:
    """And only those that are used are touched."""
    bus = JetStreamEventBus(sessions, QUICK, wanted(max_bytes=8 * 2**20))
    session = await sessions.get()
    for name in await all_streams(session):
        await session.api(f"STREAM.DELETE.{name}")
    await bus.publish("evt.a", {}, b"")
    found = {name: config["max_bytes"] for name, config in (await all_streams(session)).items()}
    assert found == {"MESHFORGE_EVENTS": 8 * 2**20}


async def test_a_dead_letter_that_cannot_be_stored_holds_back_its_message_and_a_huge_one_loses_its_body(
    bus: JetStreamEventBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, inbox, tried = bus_module.publish, Inbox(lambda delivery: Poison("bad")), 0

    async def unavailable_at_first(session: JetStream, message: Message) -> Any:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise NatsUnavailable("the dead letters cannot be reached")
        return await publish(session, message)

    session = await bus.sessions.get()
    await bus.publish(RUN, {}, b"x" * (session.server.max_payload - 60))
    monkeypatch.setattr(bus_module, "publish", unavailable_at_first)
    async with taking(bus, inbox) as subscription:
        await counted(subscription, again=1, poison=1)
        await empty(bus)
    letters = [found async for found in keeping.read_back(session, DEAD)]
    assert [(each.subject, len(each.body)) for each in letters] == [(f"dlq.worker.{RUN}", 0)]


async def test_what_killed_its_handlers_too_often_is_not_handled_again(bus: JetStreamEventBus) -> None:
    inbox = Inbox()

    async def hang(delivery: Delivery) -> Outcome:
        await inbox(delivery)
        await asyncio.sleep(HANG_SECONDS)
        return Done()

    await bus.publish(RUN, {}, b"1")
    for count in (1, 2):
        async with taking(bus, hang):
            await inbox.wait(count)
    async with taking(bus, inbox) as subscription:
        await counted(subscription, poison=1)
        await empty(bus)
    assert len(inbox.got) == 2
    (letter,) = [found async for found in keeping.read_back(await bus.sessions.get(), DEAD)]
    assert "3 times" in letter.headers["DS-Dead-Reason"]


async def test_no_more_are_under_way_than_may_be_and_slow_ones_are_not_delivered_twice(sessions: Sessions) -> None:
    begun: Counter[bytes] = Counter()
    under_way = most = 0

    async def handle(delivery: Delivery) -> Outcome:
        nonlocal under_way, most
        begun[delivery.body] += 1
        under_way += 1
        most = max(most, under_way)
        assert repr(delivery.body) not in repr(delivery), "bodies do not get into logs"
        if delivery.body == b"0":  # it takes longer than a message may without a sign of life: three of them
            signs = 0
            while signs < 6:
                signs += (await answers.next(HANG_SECONDS)).body == b"+WPI"
        under_way -= 1
        return Done()

    bus = JetStreamEventBus(sessions, replace(QUICK, max_inflight=3, ack_wait_s=0.3))
    for number in range(9):
        await bus.publish(RUN, {}, b"%d" % number)
    async with (
        (await sessions.get()).hearing(f"$JS.ACK.{COMMANDS}.>") as answers,
        taking(bus, handle) as subscription,
    ):
        await counted(subscription, done=9)
        await empty(bus)
    assert 1 < most <= 3 and set(begun.values()) == {1}


async def test_a_consumer_that_differs_is_changed_or_told(sessions: Sessions) -> None:
    name = f"P{next(_number)}"
    session = await sessions.get()
    await keeping.ensure_streams(session, [StreamDefinition(name, (f"{name}.>",), "workqueue", "A test's")])
    config = consumer_config("worker", [f"{name}.a", f"{name}.b"], QUICK)
    await ensure_consumer(session, name, config)
    await ensure_consumer(session, name, consumer_config("worker", [f"{name}.a"], replace(QUICK, ack_wait_s=9)))
    found = (await session.api(f"CONSUMER.INFO.{name}.worker"))["config"]
    assert (found["ack_wait"], found["filter_subject"]) == (9 * 10**9, f"{name}.a")
    with pytest.raises(StreamRefused):
        await ensure_consumer(session, name, {**config, "deliver_policy": "new"})
    with pytest.raises(StreamRefused, match="other"):
        await ensure_consumer(session, name, consumer_config("other", [f"{name}.>"], QUICK))


# --- servers that go away ---


async def test_a_subscription_ends_when_the_connection_is_closed_for_good(bus: JetStreamEventBus) -> None:
    subscription = bus.subscribe("worker", ["cmd.>"], Inbox())
    running = asyncio.create_task(subscription.run())
    await until(lambda: subscription.is_ready, "it is ready")
    await bus.sessions.close()
    with pytest.raises(NatsUnavailable):
        await asyncio.wait_for(running, 10)


@pytest.mark.parametrize("fault", ["killed", "held", "wiped"])
async def test_it_goes_on_after_the_server(tmp_path: Path, fault: str) -> None:
    with real_server(tmp_path) as own:
        sessions = Sessions(own.ask_options)
        bus, inbox = JetStreamEventBus(sessions, replace(QUICK, max_inflight=1)), Inbox()
        for number in range(50):
            await bus.publish(RUN, {}, b"%d" % number)
        async with taking(bus, inbox) as subscription:
            await inbox.wait(10)
            if fault == "held":
                own.hold()
                await until(lambda: subscription.counts["renewed"], "it is noticed")
                own.resume()
            else:
                own.kill()
                with pytest.raises(BusError):
                    await bus.publish(RUN, {}, b"")
                if fault == "wiped":
                    own.wipe()
                own.start()
                await until(lambda: subscription.counts["renewed"], "it is noticed")
            await asyncio.wait_for(sessions.wait(), HANG_SECONDS)
            await bus.publish(RUN, {}, b"more")
            await until(lambda: b"more" in inbox.bodies, "what came after is handled")
            if fault != "wiped":
                await until(lambda: len(set(inbox.bodies)) == 51, "all are handled")
                await empty(bus)
        await sessions.close()
