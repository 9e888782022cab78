"""The event bus on JetStream: the contract, and JetStream's own promises."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.options import PullSettings
from bridge.nats.jetstream.sessions import Sessions
from streams.bus.contract import BusUnavailable, DurableConflict, EventBus, Redelivery
from streams.bus.subjects import SubjectError
from tests.nats_servers import HANG_SECONDS, RealServer, real_server, until
from tests.streams.bus_contract import BusContract
from tests.streams.bus_handlers import Inbox

QUICK = PullSettings(fetch_timeout_s=1.0, warmup_timeout_s=2, heartbeat_s=0.2)


class TestJetStreamEventBus(BusContract):
    takes_str = False

    @pytest.fixture(autouse=True)
    def _connected(self, sessions: Sessions) -> None:
        self.sessions = sessions

    async def open_bus(self) -> EventBus:
        return JetStreamEventBus(self.sessions, pull=QUICK)


async def test_what_no_stream_keeps_is_no_subject_of_the_bus(sessions: Sessions) -> None:
    bus = JetStreamEventBus(sessions)
    for subject in ("str.agent.x.chunk", "other"):
        with pytest.raises(SubjectError):
            await bus.publish(subject, b"")
    for pattern in (">", "str.>", "*.a"):
        with pytest.raises(SubjectError):
            await bus.subscribe(pattern, Inbox())
    await bus.close()


async def test_a_subscription_of_its_own_is_forgotten_when_it_ends(sessions: Sessions) -> None:
    bus = JetStreamEventBus(sessions, pull=QUICK)
    session = await sessions.get()
    for _ in range(20):  # a server handles requests in any order: one that made the consumer again came last at times
        subscription = await bus.subscribe("evt.>", Inbox())
        assert (await keeping.facts(session, "MESHFORGE_EVENTS")).state["consumer_count"] == 1
        await subscription.cancel()
        assert (await keeping.facts(session, "MESHFORGE_EVENTS")).state["consumer_count"] == 0
    await bus.close()


async def test_a_durable_may_have_a_strange_name_and_is_not_of_two_streams(sessions: Sessions) -> None:
    bus = JetStreamEventBus(sessions, pull=QUICK)
    inbox = Inbox()
    await bus.subscribe("evt.>", inbox, durable="dürable/\\ß")
    await bus.publish("evt.a", b"1")
    await inbox.wait(1)
    with pytest.raises(DurableConflict) as conflict:
        await bus.subscribe("cmd.>", Inbox(), durable="dürable/\\ß")
    assert conflict.value.durable == "dürable/\\ß"
    await bus.close()


async def test_two_that_want_one_work_queue_are_told(sessions: Sessions) -> None:
    bus = JetStreamEventBus(sessions, pull=QUICK)
    await bus.subscribe("cmd.>", Inbox(), durable="one")
    with pytest.raises(DurableConflict, match="workqueue"):
        await bus.subscribe("cmd.a.>", Inbox(), durable="other")
    await bus.close()


async def test_it_survives_its_server_and_its_process(tmp_path: Path, server: RealServer) -> None:
    with real_server(tmp_path, server.version) as own:
        sessions = Sessions(own.ask_options)
        # What waited for its back-off when the server died comes when its time for an answer is over.
        bus = JetStreamEventBus(sessions, pull=QUICK, ack_wait_s=1)
        inbox = Inbox(lambda d: ValueError("not yet") if d.attempt == 1 and d.body == b"again" else None)
        await bus.subscribe("evt.>", inbox, durable="one", redelivery=Redelivery(5, (0.5,)))
        await bus.publish("evt.a", b"again", message_id="1")
        await inbox.wait(1)
        session = await sessions.get()
        own.kill()
        await asyncio.wait_for(session.ended(), HANG_SECONDS)
        with pytest.raises(BusUnavailable):
            await bus.publish("evt.a", b"2", message_id="2")
        own.start()
        await sessions.wait()
        assert (await bus.publish("evt.a", b"again", message_id="1")).duplicate
        await bus.publish("evt.a", b"2", message_id="2")
        await until(lambda: bus.counts["handled"] == 2, "both are handled")
        assert set(inbox.bodies) == {b"2", b"again"} and inbox.bodies.count(b"2") == 1
        await bus.close()
        # Another process, as it were: a bus that knows nothing.
        await JetStreamEventBus(sessions).publish("evt.a", b"3")
        later, other = Inbox(), JetStreamEventBus(sessions, pull=QUICK, ack_wait_s=1)
        await other.subscribe("evt.>", later, durable="one", redelivery=Redelivery(5, (0.5,)))
        await later.wait(1)
        assert later.bodies == [b"3"]
        await other.close()
        await sessions.close()
