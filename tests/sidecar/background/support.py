"""Built-in agents over a store, and events as capture and other agents record them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sidecar.agents.agent import Agent, Output
from sidecar.agents.effects.policy import Effect
from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.inputs import agent_stream, effects_stream
from sidecar.agents.runtime import Runtime
from sidecar.background.messages.agent import MessageAgent
from sidecar.background.unredacted import Said
from streams.bus.command import Command
from streams.event import StreamEvent
from streams.store import Record, StreamStore
from tests.sidecar.agents.kinds import Clock, Policy
from tests.sidecar.agents.support import records, settled
from tests.streams.builders import event


class Asked(MessageAgent):
    """The agent ``messages``; the command ``asked`` stands for any way to ask a person."""

    def _decide(self, event: StreamEvent) -> list[Output]:
        if event.type == "asked":
            return self._questions._opened(self.data, event.payload, event.ts)
        return super()._decide(event)


PLAIN = Said(lambda value: value, str)
"""Nothing is redacted."""


class Only:
    """``Hosts`` with one host, which has every session."""

    def __init__(self, host: Any) -> None:
        self._host = host

    def of(self, session: str | None) -> Any:
        return self._host

    new = of

    async def forget(self, directory: str) -> None:
        await self._host.forget(directory)


class Script(EffectKind):
    """A kind that returns what it is given for an effect's arguments, and keeps them."""

    effect_class = "idempotent"

    def __init__(self, result: Any = None) -> None:
        self.result, self.runs = result, list[dict[str, Any]]()

    async def run(self, effect: Effect, key: str) -> Any:
        self.runs.append(effect.args)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class Bench:
    """A runtime with these agents, a clock that the test moves, and a log that it writes."""

    def __init__(self, runtime: Runtime, store: StreamStore, clock: Clock, agents: Sequence[Agent]) -> None:
        self.runtime, self.store, self.clock, self._agents = runtime, store, clock, agents
        self._count = 0
        self.facts: dict[str, Any] = {}
        """What the sidecar adds to each tick."""

    async def command(self, agent: str, type_: str, **payload: Any) -> list[str]:
        """Send a command; the types of what it led to."""
        self._count += 1
        handled = await self.runtime.command(agent, Command(f"c{self._count}", type_, payload))
        await self.settled()
        return [record.event.type for record in handled.records[1:]]

    async def tick(self, agent: str, later_s: float = 0.0) -> list[str]:
        """Move the clock and let the agent see it."""
        self.clock.now_ms += round(later_s * 1000)
        return await self.command(agent, "tick", now=self.clock.now_ms, **self.facts)

    async def happened(
        self, type_: str, stream: str = "ses_1", metadata: dict[str, Any] | None = None, **payload: Any
    ) -> Record:
        """Something that capture, or another agent, recorded."""
        self._count += 1
        about: dict[str, Any] = {"payload": payload, "metadata": metadata or {}}
        identity = self.clock.identity(self._count)
        made = event(f"happened:{self._count}", stream=stream, type_=type_, identity=identity, **about)
        (record,) = await self.store.append([made])
        await self.settled()
        return record

    async def answered(self, session: str, text: str = "done") -> None:
        """A model said this, and its turn is over."""
        await self.happened("execution.output", session=session, kind="text", text=text)
        await self.happened("execution.step", session=session, kind="inference", finish="stop", tokens={}, cost=0)
        await self.happened("turn.ended", session=session, outcome="completed")

    async def settled(self) -> None:
        """Wait until all is handled, and send a tick to each agent whose deadline has come, as the sidecar does."""
        await settled(self.runtime, self.store)
        for agent in self._agents:
            deadline = getattr(agent, "deadline", lambda: None)()
            if deadline is not None and 0 < deadline <= self.clock.now_ms:
                await self.command(agent.name, "tick", now=self.clock.now_ms, **self.facts)

    async def types(self, agent: str) -> list[str]:
        return [record.event.type for record in await records(self.store, agent_stream(agent))]

    async def steps(self, agent: str, kind: str) -> list[str]:
        """The ledger of an agent's effects of one kind."""
        found = await records(self.store, effects_stream(agent))
        return [record.event.type for record in found if record.event.payload["kind"] == kind]


@asynccontextmanager
async def bench(
    store: StreamStore,
    agents: Sequence[Agent],
    kinds: Mapping[str, EffectKind],
    clock: Clock | None = None,
    *,
    seed: int = 3,
    **more: Any,
) -> AsyncIterator[Bench]:
    clock = clock or Clock()
    runtime = Runtime(store, clock.identity(seed), agents, kinds=kinds, policy=Policy(attempts=5), **more)
    await runtime.start()
    try:
        yield Bench(runtime, store, clock, agents)
    finally:
        await runtime.close()
