"""Homes that share a server and an agent: one of them owns it. Real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.publishing import publish_all
from bridge.nats.jetstream.pulling import consumer_config, ensure_consumer
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import COMMANDS
from bridge.nats.jetstream.wire import Message
from sidecar.agents.owner import NotOwner
from sidecar.agents.runtime import Runtime
from sidecar.mirror.commands import CommandConsumers
from sidecar.mirror.owning import Owning
from streams.event import StreamEvent
from streams.identity import Identity, seeded_identity
from tests.memory import MemoryStore
from tests.nats_servers import RealServer
from tests.sidecar.agents.agents import Counter, Watcher
from tests.sidecar.agents.kinds import Work
from tests.sidecar.agents.support import agents, command, records, state
from tests.sidecar.mirror.test_commands import QUICK
from tests.streams.builders import event

ADD, CALL = "cmd.shop.main.counter.add", "cmd.shop.main.counter.call"
LOOK = 0.1


@dataclass
class Here:
    """One home: its log, its runtime, and which agents it owns."""

    name: str
    store: MemoryStore = field(default_factory=MemoryStore)
    work: Work = field(default_factory=Work)
    runtime: Runtime = field(init=False)
    owning: Owning = field(init=False)
    consumers: CommandConsumers = field(init=False)
    identity: Identity = field(init=False)
    """It lives as long as the home: no two of its records have the same id."""

    def __post_init__(self) -> None:
        self.identity = seeded_identity(sum(self.name.encode()))

    @property
    def epoch(self) -> int | None:
        (row,) = [row for row in self.owning.status() if row["agent"] == "counter"]
        return row["epoch"] if row["owned"] else None


@asynccontextmanager
async def living(server: RealServer, home: Here, *makes: Callable[[], Any]) -> AsyncIterator[Here]:
    """The home at work, in the order in which the sidecar starts and stops its parts."""
    sessions = Sessions(server.ask_options)
    names = [make.name for make in makes or (Counter,)]  # type: ignore[attr-defined]
    bus = JetStreamEventBus(sessions, QUICK, log_id=home.name)
    owning = home.owning = Owning(names, look_seconds=LOOK)
    runtime = home.runtime = Runtime(
        home.store,
        home.identity,
        agents(*makes or (Counter,)),
        kinds={"work": home.work},
        owner=owning,
    )
    await runtime.start()
    home.consumers = CommandConsumers(runtime, bus, agents=["counter"], owning=owning)
    home.consumers.start()
    owning.start(bus, runtime.own, runtime.resume)
    try:
        yield home
    finally:
        await home.consumers.close()
        await runtime.close()
        await owning.close()
        await sessions.close()


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.005)


async def send(sessions: Sessions, subject: str, numbers: range, payload: dict[str, Any], *, times: int = 1) -> None:
    messages = [
        Message(
            subject,
            {"Nats-Msg-Id": f"{subject}-{number}-{repeat}"},
            orjson.dumps({"idempotency_key": f"{subject}-{number}", "payload": payload}),
        )
        for repeat in range(times)
        for number in numbers
    ]
    await publish_all(await sessions.get(), messages)


async def emptied(sessions: Sessions) -> None:
    session = await sessions.get()
    async with asyncio.timeout(20):
        while (await keeping.facts(session, COMMANDS)).messages:
            await asyncio.sleep(0.01)


def step() -> StreamEvent:
    """A failed step of a session, of which the agent ``watcher`` tells ``counter``."""
    return event("1", stream="ses_1", identity=seeded_identity(99), payload={"status": "error"})


async def owned(home: Here) -> list[dict[str, Any]]:
    return [one.event.payload for one in await records(home.store, "agent/counter") if one.event.type == "agent.owned"]


async def durables(sessions: Sessions) -> list[str]:
    names = await (await sessions.get()).api(f"CONSUMER.NAMES.{COMMANDS}")
    return names.get("consumers") or []


async def test_two_homes_with_one_agent_handle_each_command_once(server: RealServer, sessions: Sessions) -> None:
    async with living(server, Here("log-a")) as first:
        await until(lambda: first.owning.holds("counter"))
        async with living(server, Here("log-b")) as second:
            await send(sessions, CALL, range(10), {"kind": "work"}, times=4)
            await send(sessions, ADD, range(50), {"by": 1})
            await emptied(sessions)
            await until(lambda: len(first.work.keys) == 10 and len(state(first.runtime)["results"]) == 10)
            assert state(first.runtime)["total"] == 50 and state(second.runtime)["total"] == 0
            assert not second.work.keys and len(set(first.work.keys)) == 10
            await second.owning.until_known("counter")
            with pytest.raises(NotOwner) as refused:
                await second.runtime.command("counter", command("one"))
            assert refused.value.code == "not-owner" and "log-a" in str(refused.value)
            (row,) = second.consumers.status()
            assert "log-a" in second.runtime.status()[0]["reasons"][0]
            assert "log-a" in row["problem"] and not first.consumers.status()[0]["problem"]
            assert await owned(first) == [{"epoch": first.epoch}]
            assert await durables(sessions) == ["log-a_counter_consumer"]
            assert not await owned(second) and second.epoch is None


async def test_an_effect_starts_only_while_the_agent_is_owned(server: RealServer, sessions: Sessions) -> None:
    home = Here("log-a")
    async with living(server, home):
        await until(lambda: home.owning.holds("counter"))
        await home.owning.close()  # it looks no more
        append, name = home.store.append, home.owning._names["counter"]

        async def and_lost(batch: Any, **more: Any) -> Any:
            done = await append(batch, **more)
            if any(one.type == "effect.requested" for one in batch):
                home.owning._set_owned(name, False)
            return done

        home.store.append = and_lost  # type: ignore[method-assign]
        await home.runtime.command("counter", command("call", "call", kind="work"))
        await until(lambda: home.runtime.view.effects and not home.runtime.owes())
        assert not home.work.keys
        home.store.append = append  # type: ignore[method-assign]
        home.owning._set_owned(name, True)
        await home.runtime.resume()
        await until(lambda: state(home.runtime)["results"])
        assert len(home.work.keys) == 1


async def test_a_restarted_home_keeps_its_epoch(server: RealServer, sessions: Sessions) -> None:
    home, seen = Here("log-a"), []
    for number in range(3):
        async with living(server, home):
            await until(lambda: home.owning.holds("counter"))
            await home.runtime.command("counter", command(f"c{number}"))
            seen.append(home.epoch)
    assert len(set(seen)) == 1 and len(await owned(home)) == 1


async def test_a_durable_that_a_person_deleted_is_made_again_and_a_foreign_one_goes_on_a_claim(
    server: RealServer, sessions: Sessions
) -> None:
    home, session = Here("log-a"), await sessions.get()
    async with living(server, home):
        await until(lambda: home.owning.holds("counter"))
        before = home.epoch
        await session.api(f"CONSUMER.DELETE.{COMMANDS}.log-a_counter_consumer")
        await until(lambda: home.epoch not in (None, before))
        await send(sessions, ADD, range(3), {"by": 1})
        await emptied(sessions)
        assert state(home.runtime)["total"] == 3
    await session.api(f"CONSUMER.DELETE.{COMMANDS}.log-a_counter_consumer")
    await ensure_consumer(session, COMMANDS, consumer_config("somebody", ["cmd.*.*.counter.>"], QUICK))
    async with living(server, home):
        await until(lambda: "somebody" in home.owning.refusal("counter"))
        assert await home.owning.claim("counter", 20)
        assert await durables(sessions) == ["log-a_counter_consumer"]


async def test_a_claim_takes_nothing_from_a_consumer_of_other_messages(server: RealServer, sessions: Sessions) -> None:
    await ensure_consumer(await sessions.get(), COMMANDS, consumer_config("greedy", ["cmd.>"], QUICK))
    async with living(server, Here("log-a")) as home:
        await until(lambda: "greedy" in home.owning.refusal("counter"))
        assert not await home.owning.claim("counter", 3 * LOOK)
        assert await durables(sessions) == ["greedy"]


async def test_an_owner_keeps_its_epoch_when_the_server_restarts(own: RealServer) -> None:
    home, seen = Here("log-a"), []
    for _ in range(2):
        async with living(own, home):
            await until(lambda: home.owning.holds("counter"))
            seen.append(home.epoch)
        own.kill()
        own.start()
    assert len(set(seen)) == 1 and len(await owned(home)) == 1


async def test_an_owner_goes_on_without_the_server(own: RealServer) -> None:
    async with living(own, Here("log-a"), Counter, Watcher) as home:
        await until(lambda: home.owning.holds("counter") and home.owning.holds("watcher"))
        own.kill()
        await home.store.append([step()])
        # The event is handled, and its command reaches the other agent.
        await until(lambda: state(home.runtime)["total"] == 1)
        assert not home.runtime.owes()
        own.start()
        await home.runtime.command("counter", command("late"))
        assert state(home.runtime)["total"] == 2 and len(await owned(home)) == 1


async def test_an_agent_waits_for_its_owner_until_a_person_claims_it(server: RealServer, sessions: Sessions) -> None:
    old, new = Here("log-a"), Here("log-b")
    async with living(server, old):
        await until(lambda: old.owning.holds("counter"))
        before = old.epoch
        await old.runtime.command("counter", command("mine"))
    async with living(server, new):
        await until(lambda: "--claim counter" in new.owning.refusal("counter"))
        async with living(server, old):  # the owner comes back
            await until(lambda: old.owning.holds("counter"))
            assert old.epoch == before and not new.owning.holds("counter")
            assert await new.owning.claim("counter", 20)
            epoch = new.epoch
            assert epoch is not None and before is not None and epoch > before
            assert await owned(new) == [{"epoch": epoch}]
            await until(lambda: "log-b" in old.owning.refusal("counter"))
            with pytest.raises(NotOwner):
                await old.runtime.command("counter", command("again"))
            await send(sessions, ADD, range(5), {"by": 1})
            await emptied(sessions)
            assert (state(new.runtime)["total"], state(old.runtime)["total"]) == (5, 1)
            assert await old.owning.claim("counter", 20)  # and back: it goes on from what it knows
            await until(lambda: not new.owning.holds("counter"))
            await old.runtime.command("counter", command("again"))
            assert state(old.runtime)["total"] == 2 and len(await owned(old)) == 2


async def test_a_server_that_lost_its_durables_does_not_give_an_agent_to_a_home_that_waited(
    server: RealServer, sessions: Sessions
) -> None:
    async with living(server, Here("log-a")) as first, living(server, Here("log-b")) as second:
        await until(lambda: first.owning.holds("counter") or second.owning.holds("counter"))
        owner, other = sorted((first, second), key=lambda home: not home.owning.holds("counter"))
        await until(lambda: owner.name in other.owning.refusal("counter"))
        await owner.consumers.close()
        await owner.owning.close()  # it does not look now
        session = await sessions.get()
        looked = other.owning._names["counter"].looked
        for _ in range(3):
            # The owner's last request may still have been on its way, and make its durable again.
            if (lost := f"{owner.name}_counter_consumer") in await durables(sessions):
                await session.api(f"CONSUMER.DELETE.{COMMANDS}.{lost}")
            looked.clear()
            await looked.wait()
        assert not other.owning.holds("counter")
        assert f"{other.name}_counter_consumer" not in await durables(sessions)


async def test_of_homes_that_start_at_once_one_takes_the_agent(server: RealServer, sessions: Sessions) -> None:
    homes = [Here(f"log-{number}") for number in range(4)]
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(living(server, home)) for home in homes))
        await until(lambda: all(home.owning.holds("counter") or home.owning._names["counter"].others for home in homes))
        assert sum(home.owning.holds("counter") for home in homes) == 1
