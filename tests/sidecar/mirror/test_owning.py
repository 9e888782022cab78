"""Homes that share a server and an agent: one of them owns it. Real server; the homes' clocks move as a test likes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import nats
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.errors import NatsError, NatsUnavailable, WrongExpectation
from bridge.nats.jetstream.publishing import EXPECTED_REVISION, Stored, publish, publish_all
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import COMMANDS, OWNER_KEYS, OWNERS
from bridge.nats.jetstream.wire import Message
from sidecar.agents.inputs import state_hash
from sidecar.agents.owner import NotOwner
from sidecar.agents.runtime import Runtime
from sidecar.mirror import owning
from sidecar.mirror.commands import CommandConsumers
from sidecar.mirror.inheriting import Heir, inherit
from sidecar.mirror.owning import Owning
from sidecar.mirror.task import MirrorTask
from streams.event import StreamEvent
from streams.identity import Identity, seeded_identity
from tests.memory import MemoryStore
from tests.nats_servers import TOKEN, RealServer, forgets_ids
from tests.sidecar.agents.agents import Counter, Watcher
from tests.sidecar.agents.kinds import Work
from tests.sidecar.agents.support import agents, command, records, state
from tests.sidecar.mirror.test_commands import QUICK
from tests.streams.builders import event

ADD, CALL = "cmd.shop.main.counter.add", "cmd.shop.main.counter.call"
LEASE = 0.3


@dataclass
class Here:
    """One home: its log, its runtime, its leases, and the clock that they go by."""

    name: str
    store: MemoryStore = field(default_factory=MemoryStore)
    work: Work = field(default_factory=Work)
    later: float = 0.0
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
        return row["epoch"] if row["held"] else None

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self.later


@asynccontextmanager
async def living(server: RealServer, home: Here, *makes: Callable[[], Any], **more: Any) -> AsyncIterator[Here]:
    """The home at work, in the order in which the sidecar starts and stops its parts."""
    sessions = Sessions(server.ask_options)
    names = [make.name for make in makes or (Counter,)]  # type: ignore[attr-defined]
    leases = home.owning = Owning(
        names, home.name, f"boot-{id(sessions)}", lambda: 1, lease_seconds=LEASE, clock=home.now, **more
    )
    runtime = home.runtime = Runtime(
        home.store,
        home.identity,
        agents(*makes or (Counter,)),
        kinds={"work": home.work},
        owner=leases,
    )
    await runtime.start()
    home.consumers = CommandConsumers(runtime, JetStreamEventBus(sessions, QUICK), agents=["counter"], owning=leases)
    home.consumers.start()

    async def own(agent: str, epoch: int, previous: str | None) -> None:
        heir = Heir(home.store, home.name, home.identity)
        knows = previous is not None and await inherit(await sessions.get(), heir, agent, previous)
        await runtime.own(agent, epoch, previous, knows)

    leases.start(sessions, own, runtime.resume)
    try:
        yield home
    finally:
        await home.consumers.close()
        await runtime.close()
        await leases.close()
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


async def read_as_others_do(server: RealServer) -> dict[str, Any]:
    """The entry of ``counter``, by the client library's own reader of key-value buckets."""
    client = await nats.connect(f"nats://127.0.0.1:{server.port}", token=TOKEN)
    try:
        bucket = await client.jetstream().key_value("durable_stream_owners")
        found: dict[str, Any] = orjson.loads((await bucket.get("counter")).value or b"{}")
        return found
    finally:
        await client.close()


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
            assert await owned(first) == [{"epoch": first.epoch, "previous": None, "inherited": False}]
            entry = await read_as_others_do(server)
            assert entry["log_id"] == "log-a" and entry["epoch"] in (0, first.epoch)  # 0: its revision
            assert not await owned(second) and second.epoch is None


async def test_an_owner_that_cannot_renew_stands_still_and_then_goes_on(own: RealServer) -> None:
    async with living(own, Here("log-a"), Counter, Watcher) as home:
        await until(lambda: home.owning.holds("counter") and home.owning.holds("watcher"))
        own.kill()
        await until(lambda: not home.owning.holds("counter") and not home.owning.holds("watcher"))
        with pytest.raises(NotOwner):
            await home.runtime.command("counter", command("early"))
        await home.store.append([step()])
        assert not home.runtime.owes()
        own.start()
        # The event that was recorded meanwhile is handled, and its command reaches the other agent.
        await until(lambda: state(home.runtime)["total"] == 1)
        await home.runtime.command("counter", command("late"))
        assert state(home.runtime)["total"] == 2 and len(await owned(home)) == 1


async def test_a_lease_that_ended_unnoticed_is_held_again_only_when_that_is_recorded(server: RealServer) -> None:
    home, seen = Here("log-a"), []
    async with living(server, home):
        await until(lambda: home.owning.holds("counter"))
        own = home.owning._own

        async def slowly(agent: str, epoch: int, previous: str | None) -> None:
            seen.append(home.owning.holds(agent))
            await own(agent, epoch, previous)

        home.owning._own = slowly
        home.owning._leases["counter"].recorded = 0  # as if that had been cut off
        home.later += 10 * LEASE  # as after a suspension; what the log holds since then was handed to nobody
        await until(lambda: seen and home.owning.holds("counter"))
    assert seen == [False]


async def test_an_effect_starts_only_while_the_agent_is_owned(own: RealServer) -> None:
    home = Here("log-a")
    async with living(own, home):
        await until(lambda: home.owning.holds("counter"))
        real = home.owning.holds
        home.owning.holds = lambda agent: home.runtime.engines["counter"].handled == 0 and real(agent)  # type: ignore[method-assign]
        await home.runtime.command("counter", command("call", "call", kind="work"))
        await until(lambda: home.runtime.view.effects and not home.runtime.owes())
        assert not home.work.keys
        home.owning.holds = real  # type: ignore[method-assign]
        await until(lambda: state(home.runtime)["results"])
        assert len(home.work.keys) == 1


@pytest.mark.parametrize("allowed", [False, True])
async def test_an_agent_is_taken_only_after_the_lease_and_with_leave(
    server: RealServer, sessions: Sessions, allowed: bool
) -> None:
    old, new = Here("log-a"), Here("log-b")
    async with living(server, old):
        await until(lambda: old.owning.holds("counter"))
        before = old.epoch
        await old.runtime.command("counter", command("mine"))
    # As a process that was killed: its entry stays, and nobody renews it.
    session = await sessions.get()
    kept = await keeping.last_message(session, OWNERS, f"{OWNER_KEYS}.counter")
    assert kept is not None
    await publish(session, Message(kept.subject, {}, re.sub(rb'"until":\d+', b'"until":1', kept.body)))
    async with living(server, new, take_over=allowed):
        await until(lambda: new.owning.holds("counter") or "take_over" in new.owning.refusal("counter"))
        assert new.owning.holds("counter") == allowed
        if allowed:
            epoch = new.epoch
            assert epoch is not None and before is not None and epoch > before
            assert await owned(new) == [{"epoch": epoch, "previous": "log-a", "inherited": False}]
            async with living(server, old):  # the old owner comes back
                await until(lambda: "log-b" in old.owning.refusal("counter"))
                with pytest.raises(NotOwner):
                    await old.runtime.command("counter", command("again"))


async def test_what_an_owner_asked_for_before_it_lost_the_agent_is_not_done_when_it_has_it_again(
    server: RealServer, sessions: Sessions
) -> None:
    old, new = Here("log-a"), Here("log-b")

    async def never() -> None:
        await asyncio.Event().wait()

    old.work = Work(never)
    async with living(server, old):
        await until(lambda: old.owning.holds("counter"))
        await old.runtime.command("counter", command("one", "call", kind="work", n=1))
        await until(lambda: old.work.keys)
    async with living(server, new, take_over=True):
        await until(lambda: new.owning.holds("counter"))
    async with living(server, old, take_over=True):
        await until(lambda: old.owning.holds("counter"))
        await until(lambda: state(old.runtime)["results"])
        assert state(old.runtime)["results"][0]["type"] == "effect.failed" and len(old.work.keys) == 1
    (failed,) = [r for r in await records(old.store, "agent/counter/effects") if r.event.type == "effect.failed"]
    assert failed.event.payload["error_code"] == "old-epoch"


async def test_a_home_that_takes_an_agent_goes_on_from_what_the_former_owner_did(
    server: RealServer, sessions: Sessions
) -> None:
    """Back and forth: commands handled and effects done by the one are known to the other, and its state goes on."""
    homes = [Here("log-a"), Here("log-b")]
    for turn in range(4):
        home = homes[turn % 2]
        async with living(server, home, take_over=True):
            await until(partial(home.owning.holds, "counter"))
            await until(lambda home=home, turn=turn: state(home.runtime)["total"] == 2 * turn)
            assert len(state(home.runtime)["results"]) == turn
            await send(sessions, ADD, range(turn + 1), {"by": 2}, times=1)  # all earlier ones again
            await send(sessions, CALL, range(turn + 1), {"kind": "work"})
            await emptied(sessions)
            await until(lambda home=home, turn=turn: len(state(home.runtime)["results"]) == turn + 1)
            assert state(home.runtime)["total"] == 2 * (turn + 1)
            mirror = MirrorTask(home.store, home.name, sessions, lambda: 1)
            mirror.start()
            await until(lambda home=home, mirror=mirror: mirror.status()["position"] >= home.store.head)
            await mirror.close()
    assert [len(home.work.keys) for home in homes] == [2, 2]
    assert len({key for home in homes for key in home.work.keys}) == 4
    assert [each["inherited"] for each in await owned(homes[1])] == [True, True]
    hashes = [state_hash(state(home.runtime)) for home in homes]
    assert hashes[0] != hashes[1]  # the second did one more


async def test_what_both_homes_did_counts_once_when_the_first_has_the_agent_again(
    server: RealServer, sessions: Sessions
) -> None:
    """The first home mirrored nothing of its work, so the second did it, too, under the same keys."""
    first, second = Here("log-a"), Here("log-b")
    for home in (first, second):
        async with living(server, home, take_over=True):
            await until(partial(home.owning.holds, "counter"))
            await send(sessions, ADD, range(1), {"by": 2})
            await send(sessions, CALL, range(1), {"kind": "work"})
            await emptied(sessions)
            await until(lambda home=home: state(home.runtime)["results"])
            await forgets_ids(await sessions.get(), COMMANDS)  # so the same ids are new again
    mirror = MirrorTask(second.store, second.name, sessions, lambda: 1)
    mirror.start()
    await mirror.until_mirrored()
    await mirror.close()
    async with living(server, first, take_over=True):
        await until(lambda: first.owning.holds("counter"))
        await first.runtime.command("counter", command("last"))
        assert (state(first.runtime)["total"], len(state(first.runtime)["results"])) == (3, 1)
    assert first.work.keys == second.work.keys and (await owned(first))[-1]["inherited"]
    ids = [record.event.id async for record in first.store.read_all()]
    assert len(set(ids)) == len(ids)


async def test_a_restarted_home_keeps_its_epoch(server: RealServer, sessions: Sessions) -> None:
    home, seen = Here("log-a"), []
    for number in range(3):
        async with living(server, home):
            await until(lambda: home.owning.holds("counter"))
            await home.runtime.command("counter", command(f"c{number}"))
            seen.append(home.epoch)
    assert len(set(seen)) == 1 and len(await owned(home)) == 1


async def test_entries_that_a_person_deleted_or_wrote_are_replaced(server: RealServer, sessions: Sessions) -> None:
    home = Here("log-a")
    async with living(server, home):
        await until(lambda: home.owning.holds("counter"))
    session = await sessions.get()
    await publish(session, Message(f"{OWNER_KEYS}.counter", {"KV-Operation": "DEL"}, b""))
    async with living(server, home):
        await until(lambda: home.owning.holds("counter"))
    await publish(session, Message(f"{OWNER_KEYS}.counter", {}, b"nonsense"))
    async with living(server, home, take_over=True):
        await until(lambda: home.owning.holds("counter"))


class Bucket:
    """In place of a server, which cannot lose exactly one answer: the bucket's compare-and-swap, and its faults."""

    meanwhile: Callable[[], Awaitable[None]]

    def __init__(self) -> None:
        self.revision, self.body, self.fault, self.time = 0, b"", "", 0.0

    async def publish(self, session: Any, message: Message) -> Stored:
        if self.fault == "unreachable":
            raise NatsUnavailable("no server")
        if message.headers[EXPECTED_REVISION] != str(self.revision):
            raise WrongExpectation("an entry", 10071, "wrong last sequence")
        self.revision, self.body = self.revision + 1, message.body
        await self._slow()
        if self.fault == "answer-lost":
            raise NatsUnavailable("no answer")
        return Stored(OWNERS, self.revision)

    async def last_message(self, session: Any, stream: str, subject: str) -> keeping.StreamMessage | None:
        if self.fault == "unreachable":
            raise NatsUnavailable("no server")
        found = keeping.StreamMessage(subject, self.revision, {}, self.body) if self.revision else None
        await self._slow()
        return found

    async def _slow(self) -> None:
        """While an answer is on its way, the other home looks."""
        if self.fault == "slow":
            self.fault = ""
            await self.meanwhile()
            self.time += 7
            self.fault = "slow"


STEPS = st.tuples(
    st.integers(0, 1),
    st.sampled_from(["", "", "", "slow", "unreachable", "answer-lost"]),
    st.sampled_from([0, 1, 4, 6, 11]),
)


@settings(max_examples=200)
@given(st.lists(STEPS, min_size=1, max_size=40), st.sampled_from([(True, True), (True, False)]))
def test_never_two_homes_own_an_agent(steps: list[tuple[int, str, int]], allowed: tuple[bool, bool]) -> None:
    bucket = Bucket()
    owned: list[tuple[int, int]] = []

    def home(number: int) -> Owning:
        made = Owning(
            ["a"],
            f"log-{number}",
            "boot",
            lambda: 1,
            lease_seconds=10,
            take_over=allowed[number],
            clock=lambda: bucket.time,
        )

        async def own(agent: str, epoch: int, previous: str | None) -> None:
            owned.append((epoch, number))

        async def resumed() -> None:
            return

        made._own, made._resumed = own, resumed
        return made

    async def run() -> None:
        homes = [home(number) for number in range(2)]

        async def look(number: int) -> None:
            with suppress(NatsError):
                await homes[number]._look_after(None, "a", homes[number]._leases["a"])  # type: ignore[arg-type]
            assert sum(one.holds("a") for one in homes) <= 1

        for number, fault, passes in steps:
            bucket.fault, bucket.meanwhile = fault, partial(look, 1 - number)
            await look(number)
            bucket.time += passes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owning, "publish", bucket.publish)
        patch.setattr(owning, "last_message", bucket.last_message)
        asyncio.run(run())
    # Each epoch has one owner, and a later owner has a greater epoch.
    assert len(dict(owned)) == len(set(owned)) and [epoch for epoch, _ in owned] == sorted(epoch for epoch, _ in owned)


async def test_an_agent_that_takes_long_to_take_over_costs_no_other_its_lease(
    server: RealServer, sessions: Sessions
) -> None:
    now, told = [0.0], asyncio.Event()
    held = Owning(["slow", "other"], "log-a", "boot", lambda: 1, lease_seconds=LEASE, clock=lambda: now[0])

    async def own(agent: str, epoch: int, previous: str | None) -> None:
        if agent == "slow":
            await told.wait()

    async def resumed() -> None:
        return

    held.start(sessions, own, resumed)
    try:
        for _ in range(10):  # the lease of the other agent is renewed, however often it would have ended
            await until(partial(held.holds, "other"))
            now[0] += 0.8 * LEASE
        assert not held.holds("slow")
        told.set()
        await until(partial(held.holds, "slow"))
    finally:
        await held.close()
