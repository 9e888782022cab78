"""Runtimes of several homes over the team's log decide on what the others recorded."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from sidecar.agents.checks.replay import replay
from sidecar.agents.inputs import agent_stream
from sidecar.agents.runtime import Runtime
from sidecar.team.claims import TeamClaims
from sidecar.team.errors import TeamUnavailable
from sidecar.team.log import open_log
from streams.identity import system_identity
from tests.postgres import Postgres, Wire
from tests.sidecar.agents.agents import Counter
from tests.sidecar.agents.support import agents, command, state, until

NEVER, SOON = 600.0, 0.02
"""How often a home looks for what others appended."""


class Guard:
    """Hears what ``counter`` adds, but only once it was told to."""

    name = "guard"
    events = ("counter.added",)

    def __init__(self) -> None:
        self.is_on = False

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        if event["type"] == "on":
            return [{"type": "guard.on"}]
        return [{"type": "guard.heard"}] if self.is_on and event["type"] == "counter.added" else []

    def apply(self, event: dict[str, Any]) -> None:
        self.is_on = self.is_on or event["type"] == "guard.on"


@pytest.fixture
async def runs(postgres: Postgres) -> AsyncIterator[Callable[[float], Any]]:
    @asynccontextmanager
    async def run(look_seconds: float) -> AsyncIterator[Runtime]:
        identity = system_identity()
        log = await open_log(postgres.config(), look_seconds)
        claims = TeamClaims(log, identity.ulid())
        runtime = Runtime(log, identity, agents(Counter, Guard), claims=claims)
        await runtime.start()
        yield runtime
        await runtime.close()
        await claims.close()
        await log.close()

    yield run


async def types(runtime: Runtime, name: str) -> list[str]:
    return [record.event.type async for record in runtime._store.read(agent_stream(name))]


async def test_an_event_is_decided_on_what_other_homes_recorded_before_it(runs: Callable[[float], Any]) -> None:
    """Only one home hears the event, because the other one does not look, and that one did not turn the agent on."""
    async with runs(NEVER) as one, runs(NEVER) as two:
        await one.until_known()
        await two.command("guard", command("k1", "on"))
        await one.command("counter", command("k2"))
        await until(lambda: one.engines["guard"].position >= one._store.head)
        assert (await types(one, "guard"))[-2:] == ["agent.received", "guard.heard"]


async def test_a_home_that_handles_nothing_follows(runs: Callable[[float], Any]) -> None:
    async with runs(SOON) as one, runs(SOON) as two:
        for number in range(5):
            await one.command("counter", command(f"k{number}"))
        await until(lambda: state(two)["total"] == 5 and two.engines["counter"].handled == 5)
        assert two.engines["counter"].health().status == "READY"


@pytest.mark.parametrize("copies", [1, 2])
async def test_homes_that_work_on_one_agent_at_once_lose_and_double_nothing(
    runs: Callable[[float], Any], copies: int
) -> None:
    """``copies``: how many homes each command reaches."""
    async with runs(SOON) as one, runs(NEVER) as two, runs(SOON) as three:
        homes = [one, two, three]
        keys = [(homes[(number + copy) % 3], f"k{number}") for number in range(150) for copy in range(copies)]
        async with asyncio.timeout(60):
            handled = await asyncio.gather(*(home.command("counter", command(key)) for home, key in keys))
        assert sum(each.outcome == "done" for each in handled) == 150
        assert {each.outcome for each in handled} == {"done", "duplicate"} if copies == 2 else {"done"}
        added = [
            record.event.payload["was"]
            async for record in one._store.read(agent_stream("counter"))
            if record.event.type == "counter.added"
        ]
        assert added == list(range(150))
        result = await replay(one._store, agents(Counter)[0])
        assert result.difference is None and result.inputs == 150


class Breaking(Wire):
    """Once it is cut, nobody gets through any more."""

    def cut(self) -> None:
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        super().cut()


async def test_a_start_that_failed_leaves_nothing_running(postgres: Postgres) -> None:
    failed = 0
    for left in range(500, 6500, 500):
        wire = Breaking(postgres.port)
        log = await open_log(postgres.config(port=wire.port), NEVER)
        before = asyncio.all_tasks()
        wire.left = left
        runtime = Runtime(log, system_identity(), agents(Counter, Guard))
        try:
            await runtime.start()
        except TeamUnavailable:
            failed += 1
        await runtime.close()
        assert asyncio.all_tasks() == before
        await log.close()
        wire.close()
    assert failed > 2
