"""The in-memory bus: the contract, and its own promises."""

from __future__ import annotations

import asyncio

import pytest

from streams.bus.contract import EventBus, Redelivery, Retry
from tests.memory_bus import MemoryEventBus
from tests.streams.bus_contract import BusContract
from tests.streams.bus_handlers import HANG_S, Gate, Inbox


class TestMemoryEventBus(BusContract):
    async def open_bus(self) -> EventBus:
        return MemoryEventBus()


async def test_publishing_awaits_every_matching_subscription_once() -> None:
    bus = MemoryEventBus()
    works, fails, other = Inbox(), Inbox(lambda d: ValueError("no")), Inbox()
    await bus.subscribe("evt.>", works)
    await bus.subscribe("evt.*.one", fails, durable="d", redelivery=Redelivery(5, (3600.0,)))
    await bus.subscribe("cmd.>", other)
    for count in (1, 2, 3):
        await bus.publish("evt.p.one", b"")
        assert (len(works.got), works.ended, len(fails.got), len(other.got)) == (count, count, count, 0)
    await bus.close()


async def test_a_cancelled_publisher_has_published() -> None:
    bus = MemoryEventBus()
    gate = Gate()
    await bus.subscribe("evt.>", gate)
    publishing = asyncio.create_task(bus.publish("evt.p.one", b"1", message_id="a"))
    await gate.wait()
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    assert (await bus.publish("evt.p.one", b"1", message_id="a")).duplicate
    gate.open.set()
    await bus.close()
    assert gate.left == [b"1"]


async def test_the_oldest_are_forgotten_and_nobody_waits_for_them() -> None:
    bus = MemoryEventBus(keep=3)
    gate, late = Gate(), Inbox()
    await bus.subscribe("evt.>", gate, durable="slow")
    tasks = [asyncio.create_task(bus.publish("evt.p.one", b"0", message_id="0"))]
    await gate.wait()
    tasks += [asyncio.create_task(bus.publish("evt.p.one", b"%d" % n, message_id=str(n))) for n in range(1, 10)]
    await asyncio.wait_for(asyncio.gather(*tasks[1:7]), HANG_S)
    assert bus.counts["forgotten"] == 7
    gate.open.set()
    await asyncio.wait_for(asyncio.gather(*tasks), HANG_S)
    assert gate.left == [b"0", b"7", b"8", b"9"]
    assert not (await bus.publish("evt.p.one", b"0", message_id="0")).duplicate, "ids are bounded too"
    await bus.subscribe("evt.>", late, durable="late", start="all")
    await late.wait(3)
    assert late.bodies == [b"8", b"9", b"0"]
    await bus.close()


@pytest.mark.parametrize("bad", [{"max_deliver": 0}, {"backoff_s": (-1.0,)}, {"backoff_s": (float("nan"),)}])
def test_a_senseless_redelivery_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Redelivery(**bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        Retry(float("inf"))
