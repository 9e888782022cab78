"""A runner of effects that works alone, over one store and a clock of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from sidecar.agents.effects.ledger import Ledger, StepRecord
from sidecar.agents.effects.runner import EffectRunner
from sidecar.agents.inputs import effects_stream
from streams.store import NOTHING, Record, StreamStore
from tests.sidecar.agents.kinds import AGENT, Clock, Crash, Policy, Work
from tests.sidecar.agents.support import records


class Bench:
    """One store, a clock, and runners over it."""

    def __init__(self, store: StreamStore) -> None:
        self.store, self.clock = store, Clock()
        self.identity = self.clock.identity()
        self.ledger = Ledger(store, self.identity)

    def runner(self, kind: Any, policy: Any = Policy(), **more: Any) -> EffectRunner:  # noqa: B008 - frozen
        kinds = {"work": kind} if kind is not None else {}
        return EffectRunner(self.store, self.identity, kinds, policy=policy, sleep=self.clock.sleep, **more)

    async def run(self, runner: EffectRunner, *requests: Record) -> None:
        """Offer requests, and wait until the runner has nothing more to do."""
        for one in requests:
            runner.offer(one)
        async with asyncio.timeout(20):
            while runner.is_busy:
                await asyncio.sleep(0.001)

    async def crash(
        self,
        kind: Work,
        asked: Record,
        at: str = "effect-started",
        policy: Any = Policy(),  # noqa: B008
        began: int = NOTHING,
    ) -> None:
        """A runner that dies during an attempt, and leaves it without an end."""

        def stop(point: str) -> None:
            if point == at:
                raise Crash

        runner = self.runner(kind, policy, stop=stop)
        runner.began = began
        runner.offer(asked)
        await asyncio.gather(*runner._tasks.values(), return_exceptions=True)

    async def steps(self) -> list[tuple[str, int]]:
        """Type and attempt of every record of the ledger."""
        found = await records(self.store, effects_stream(AGENT))
        return [(one.event.type.removeprefix("effect."), one.event.payload["attempt"]) for one in found]

    async def answers(self) -> dict[str, list[tuple[str, Any]]]:
        """The final records, by request: type, and result or error code."""
        found: dict[str, list[tuple[str, Any]]] = {}
        for record in await records(self.store, effects_stream(AGENT)):
            payload = record.event.payload
            if payload.get("final"):
                said = payload.get("error_code", payload.get("result"))
                found.setdefault(payload["request"], []).append((record.event.type.removeprefix("effect."), said))
        return found

    async def last(self, key: str = "key-1") -> StepRecord:
        step = await self.ledger.get_last_by_key("run", key)
        assert step is not None
        return step


async def the_process_ends() -> None:
    """Ends a runner's task while it sleeps."""
    raise asyncio.CancelledError
