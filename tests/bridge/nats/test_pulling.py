"""The pull loop: outcomes, limits, and servers that are killed, paused or wiped.

That all is handled once and in order is in the contract of the bus and in ``tests/sidecar/mirror/test_commands.py``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.errors import NatsUnavailable, StreamRefused
from bridge.nats.jetstream.options import PullSettings
from bridge.nats.jetstream.publishing import publish, publish_all
from bridge.nats.jetstream.pulling import (
    Again,
    Bury,
    ConsumerDefinition,
    Done,
    Outcome,
    Poison,
    PulledMessage,
    PullHandler,
    PullLoop,
    ensure_consumer,
)
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import StreamDefinition
from bridge.nats.jetstream.wire import Message, Received
from tests.nats_servers import HANG_SECONDS, real_server, until

_number = itertools.count()
QUICK = PullSettings(
    batch_size=8, max_inflight=8, fetch_timeout_s=1.0, warmup_timeout_s=2, heartbeat_s=0.2, backoff_s=0.01
)


def work_queue(name: str) -> StreamDefinition:
    return StreamDefinition(name, (f"{name}.>",), "workqueue", "A test's")


async def stream(sessions: Sessions, count: int = 0) -> str:
    """A separate work queue with ``count`` messages ``0``, ``1``, …"""
    name = f"P{next(_number)}"
    session = await sessions.get()
    await keeping.ensure_streams(session, [work_queue(name)])
    await publish_all(session, [Message(f"{name}.a", {"Nats-Msg-Id": f"{n}"}, b"%d" % n) for n in range(count)])
    return name


@asynccontextmanager
async def pulling(
    sessions: Sessions,
    name: str,
    handle: PullHandler,
    settings: PullSettings = QUICK,
    *,
    bury: Bury | None = None,
    **consumer: float,
) -> AsyncIterator[PullLoop]:
    definition = ConsumerDefinition("worker", **{"ack_wait_s": 2.0, **consumer})  # type: ignore[arg-type]
    loop = PullLoop(sessions, name, definition, handle, settings, bury=bury)
    task = asyncio.create_task(loop.run())
    try:
        yield loop
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert loop.working == 0


class Keeper:
    """A handler that counts the messages it handled."""

    def __init__(self) -> None:
        self.done: Counter[bytes] = Counter()

    async def __call__(self, pulled: PulledMessage) -> Outcome:
        self.done[pulled.body] += 1
        return Done()

    async def all(self, count: int) -> None:
        await until(lambda: len(self.done) >= count, f"{count} messages, not {len(self.done)}")


async def empty(sessions: Sessions, name: str) -> None:
    """Wait until the work queue is empty."""
    session = await sessions.get()
    async with asyncio.timeout(HANG_SECONDS):
        while (await keeping.facts(session, name)).messages:
            await asyncio.sleep(0.02)


async def test_failures_come_again_and_poison_goes_to_the_dead_letters(sessions: Sessions) -> None:
    name = await stream(sessions, 4)
    tries: Counter[bytes] = Counter()
    dead: list[tuple[bytes, str]] = []

    async def handle(pulled: PulledMessage) -> Outcome:
        tries[pulled.body] += 1
        match pulled.body:
            case b"0":
                raise ValueError("a secret text")
            case b"1":
                return Poison("not a command")
            case b"2" if pulled.count < 3:
                return Again(0.01)
        return Done()

    async def bury(pulled: PulledMessage, reason: str) -> None:
        assert repr(pulled.body) not in repr(pulled), "bodies do not get into logs"
        if pulled.body == b"1" and not dead:
            dead.append((b"failed", ""))
            raise NatsUnavailable("the dead letters cannot be reached")
        dead.append((pulled.body, reason))

    async with pulling(sessions, name, handle, replace(QUICK, attempts=3), bury=bury) as loop:
        await empty(sessions, name)
        assert loop.working == 0
    assert tries == {b"0": 3, b"1": 2, b"2": 3, b"3": 1}
    assert sorted(dead[1:]) == [(b"0", "failed 3 times"), (b"1", "not a command")]


async def test_what_killed_its_handlers_too_often_is_not_handled_again(sessions: Sessions) -> None:
    name, keeper = await stream(sessions, 1), Keeper()
    dead: list[str] = []

    async def bury(pulled: PulledMessage, reason: str) -> None:
        dead.append(reason)

    async def hang(pulled: PulledMessage) -> Outcome:
        keeper.done[pulled.body] += 1
        await asyncio.sleep(HANG_SECONDS)
        return Done()

    for _ in range(2):
        async with pulling(sessions, name, hang, replace(QUICK, attempts=2), bury=bury, ack_wait_s=0.3):
            await until(lambda: keeper.done.total(), "it began")
            keeper.done.clear()
    async with pulling(sessions, name, keeper, replace(QUICK, attempts=2), bury=bury, ack_wait_s=0.3):
        await empty(sessions, name)
    (reason,) = dead
    assert "3 times" in reason and not keeper.done


async def test_no_more_are_under_way_than_may_be_and_slow_ones_are_not_delivered_twice(sessions: Sessions) -> None:
    name = await stream(sessions, 9)
    begun: Counter[bytes] = Counter()
    under_way = most = signs = 0

    def hear(message: Received) -> None:
        nonlocal signs
        signs += message.body == b"+WPI"

    async def handle(pulled: PulledMessage) -> Outcome:
        nonlocal under_way, most
        begun[pulled.body] += 1
        under_way += 1
        most = max(most, under_way)
        if pulled.body == b"0":  # it takes longer than a message may without a sign of life: three of them
            await until(lambda: signs > 5, "signs of life")
        under_way -= 1
        return Done()

    settings = replace(QUICK, max_inflight=3, batch_size=2)
    async with (
        (await sessions.get()).hearing(f"$JS.ACK.{name}.>", hear),
        pulling(sessions, name, handle, settings, ack_wait_s=0.3) as loop,
    ):
        await until(lambda: len(begun) == 9, "all have begun")
        await empty(sessions, name)
        assert loop.counts["done"] == 9
    assert 1 < most <= 3 and set(begun.values()) == {1}


async def test_a_consumer_that_differs_is_changed_or_told(sessions: Sessions) -> None:
    name = await stream(sessions)
    session = await sessions.get()
    definition = ConsumerDefinition("worker", (f"{name}.a", f"{name}.b"), ack_wait_s=5, max_deliver=5)
    found = await ensure_consumer(session, name, definition)
    assert (found["filter_subjects"], found["max_deliver"]) == ([f"{name}.a", f"{name}.b"], 5)
    changed = await ensure_consumer(session, name, replace(definition, ack_wait_s=9, filters=(f"{name}.a",)))
    assert (changed["ack_wait"], changed["filter_subject"]) == (9 * 10**9, f"{name}.a")
    with pytest.raises(StreamRefused):
        await ensure_consumer(session, name, replace(definition, new_only=True))


# --- servers that go away ---


@pytest.mark.parametrize("fault", ["killed", "held", "wiped"])
async def test_it_goes_on_after_the_server(tmp_path: Path, fault: str) -> None:
    with real_server(tmp_path) as own:
        sessions = Sessions(own.ask_options)
        name, keeper = await stream(sessions, 50), Keeper()
        async with pulling(sessions, name, keeper, replace(QUICK, max_inflight=1)) as loop:
            await keeper.all(10)
            if fault == "held":
                own.hold()
                await until(lambda: loop.counts["renewed"], "it is noticed")
                own.resume()
            else:
                own.kill()
                if fault == "wiped":
                    own.wipe()
                own.start()
                await until(lambda: loop.counts["renewed"], "it is noticed")
            session = await asyncio.wait_for(sessions.wait(), HANG_SECONDS)
            if fault == "wiped":
                await keeping.ensure_streams(session, [work_queue(name)])
            await publish(session, Message(f"{name}.a", {}, b"more"))
            await until(lambda: keeper.done[b"more"], "what came after is handled")
            if fault != "wiped":
                await keeper.all(51)
                await empty(sessions, name)
        await sessions.close()
