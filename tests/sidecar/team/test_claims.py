"""One home carries out an effect at a time, and another takes over only what was not renewed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sidecar.agents.effects.claims import ClaimLost
from sidecar.agents.effects.policy import EffectClass
from sidecar.agents.effects.runner import EffectRunner
from sidecar.agents.inputs import effects_stream
from sidecar.team.claims import TeamClaims
from sidecar.team.log import TeamLog, open_log
from streams.identity import system_identity
from tests.postgres import Postgres
from tests.sidecar.agents.kinds import AGENT, Policy, Work, request
from tests.streams.builders import event

LONG, SHORT = 600.0, 0.1
"""The terms of the two homes. The second one soon asks again for what the first one has."""

MEANWHILE = 0.5


class Home:
    """One home's log, and its claims."""

    def __init__(self, log: TeamLog, name: str, term: float) -> None:
        self.log, self.claims = log, TeamClaims(log, name, term)

    def runner(self, kind: Work) -> EffectRunner:
        return EffectRunner(self.log, system_identity(), {"work": kind}, policy=Policy(), claims=self.claims)

    async def steps(self) -> list[tuple[str, int]]:
        found = [record.event async for record in self.log.read(effects_stream(AGENT))]
        return [(each.type.removeprefix("effect."), each.payload["attempt"]) for each in found]


@pytest.fixture
async def homes(postgres: Postgres) -> AsyncIterator[list[Home]]:
    found = [Home(await open_log(postgres.config(), 0.02), f"{term}", term) for term in (LONG, SHORT)]
    yield found
    for each in found:
        await each.claims.close()
        await each.log.close()


def sleep_too_long(postgres: Postgres) -> None:
    """Let the time of all claims be over, as if their holders had slept."""
    postgres.ask("UPDATE claims SET until = clock_timestamp() - interval '1 ms' RETURNING 1")


async def test_a_claim_is_renewed(postgres: Postgres, homes: list[Home]) -> None:
    held = await homes[1].claims.take("run", "key")
    ((first,),) = postgres.ask("SELECT until FROM claims")
    async with asyncio.timeout(20):
        while postgres.ask("SELECT until FROM claims") <= [(first,)]:
            await asyncio.sleep(0.01)
    await held.release()
    assert postgres.ask("SELECT until FROM claims") == []


async def test_a_claim_is_held_as_long_as_it_is_renewed(homes: list[Home]) -> None:
    one, two = homes
    held = await one.claims.take("run", "key")
    other = await two.claims.take("run", "another key")
    waiting = asyncio.create_task(two.claims.take("run", "key"))
    done, _ = await asyncio.wait({waiting}, timeout=MEANWHILE)
    assert not done
    await held.append([event("a")], on_known="keep_first")
    await held.release()
    async with asyncio.timeout(20):
        mine = await waiting
    await mine.append([event("b")], on_known="keep_first")
    with pytest.raises(ClaimLost):
        await held.append([event("c")], on_known="keep_first")
    assert [record.event.idempotency_key async for record in two.log.read_all()] == ["test:a", "test:b"]
    for each in (mine, other):
        await each.release()


async def test_one_that_was_not_renewed_is_taken_over_and_only_then_lost(postgres: Postgres, homes: list[Home]) -> None:
    one, two = homes
    held = await one.claims.take("run", "key")
    sleep_too_long(postgres)
    await held.append([event("a")], on_known="keep_first")  # nobody took it
    async with asyncio.timeout(20):
        mine = await two.claims.take("run", "key")
    for keys in ("a", "b"):
        with pytest.raises(ClaimLost):
            await held.append([event(keys)], on_known="keep_first")
    # Once lost, it does not come back, not even if the other one has let it go.
    await mine.release()
    await two.claims.close()
    with pytest.raises(ClaimLost):
        await held.append([event("b")], on_known="keep_first")
    assert one.log.head == 0
    await held.release()


async def test_a_wait_that_is_cancelled_leaves_nothing_behind(homes: list[Home]) -> None:
    one, two = homes
    held = await one.claims.take("run", "key")
    waiting = [asyncio.create_task(each.claims.take("run", "key")) for each in homes]
    await asyncio.wait(waiting, timeout=SHORT)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await held.release()
    async with asyncio.timeout(20):
        await (await two.claims.take("run", "key")).release()


@pytest.mark.parametrize("effect_class", ["safe", "unsafe"])
async def test_a_home_that_slept_records_no_end_of_what_was_taken_over(
    postgres: Postgres, homes: list[Home], effect_class: EffectClass
) -> None:
    one, two = homes
    wakes = asyncio.Event()
    slow, quick = Work(wakes.wait, effect_class=effect_class), Work(effect_class=effect_class)
    first, second = one.runner(slow), two.runner(quick)
    asked = await request(one.log, system_identity())
    first.offer(asked)
    async with asyncio.timeout(20):
        while await one.steps() != [("started", 1)]:
            await asyncio.sleep(0.01)
        second.offer(asked)
        await asyncio.wait(second._tasks.values(), timeout=MEANWHILE)
        assert await one.steps() == [("started", 1)]
        sleep_too_long(postgres)
        over = [("failed", 1), ("started", 2), ("completed", 2)] if effect_class == "safe" else [("in_doubt", 1)]
        while await two.steps() != [("started", 1), *over]:
            await asyncio.sleep(0.01)
        wakes.set()
        while second._tasks or (first._tasks and asked.event.id not in first._waiting):
            await asyncio.sleep(0.01)  # the first one wrote nothing, and waits for its claim again
    await first.close()
    assert await two.steps() == [("started", 1), *over]
    assert len(slow.keys) == 1 and len(quick.keys) == (effect_class == "safe")


async def test_a_kind_that_a_home_lacks_is_left_to_the_others(homes: list[Home]) -> None:
    one, two = homes
    lacking = EffectRunner(one.log, system_identity(), {}, claims=one.claims)
    asked = await request(one.log, system_identity())
    lacking.offer(asked)
    assert not lacking._tasks and await one.steps() == []
    runner = two.runner(Work())
    runner.offer(asked)
    async with asyncio.timeout(20):
        while runner._tasks:
            await asyncio.sleep(0.01)
    assert await two.steps() == [("started", 1), ("completed", 1)]
