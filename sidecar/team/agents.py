"""The agents of the team in this home: a runtime over the team's log, which is made again whenever it fails.

Nothing else waits for it. While Postgres is away, the agents stand still, and say so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

from sidecar.agents.agent import Agent
from sidecar.agents.deciding import Handled
from sidecar.agents.effects.claims import Claims
from sidecar.agents.effects.runner import Resolution
from sidecar.agents.engine import Engine
from sidecar.agents.inputs import MAX_DEPTH
from sidecar.agents.runtime import Runtime, UnknownAgent
from sidecar.components import in_background
from sidecar.notify_config import TeamConfig
from sidecar.team.claims import TeamClaims
from sidecar.team.errors import TeamUnavailable
from sidecar.team.log import open_log
from streams.bus.command import Command
from streams.errors import StreamError
from streams.store import Record, StreamStore
from streams.system.retry import Retry
from streams.trace import Chain

log = logging.getLogger("sidecar.team")

RETRY: Final = Retry(1.0, 60.0, jitter=0.2)

CLOSE_SECONDS: Final = 10.0
"""How long the agents may take to end what they do when the sidecar stops."""

Make = Callable[[StreamStore, Claims], Runtime]


class TeamAgents:
    """A component. ``make`` makes the runtime of ``agents``; a runtime that failed is closed before the next is made.
    ``name`` returns a new name for each, which no other process uses."""

    max_depth = MAX_DEPTH

    def __init__(self, config: TeamConfig, agents: Sequence[Agent], make: Make, name: Callable[[], str]) -> None:
        self._config, self._agents, self._make, self._name = config, agents, make, name
        self._runtime: Runtime | None = None
        self._store_problem: Callable[[], str] = str
        self._problem = "the team's Postgres has not been reached yet"
        self._looked, self._came = asyncio.Event(), asyncio.Event()
        self._doubts: list[dict[str, Any]] = []
        self._doubts_at: tuple[Runtime, int] | None = None
        """The runtime, and its position in the log, for which the doubts are known."""

    async def start(self, stack: AsyncExitStack) -> None:
        """See ``Component``. Does not wait for Postgres."""
        in_background(stack, self._run())

    def owes(self) -> bool:
        return self._runtime is not None and self._runtime.owes()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._serve()
                failures = 0
            except Exception as error:
                known = isinstance(error, StreamError | OSError)
                self._failed(
                    str(error) if known else f"{type(error).__name__} in the agents of the team; see sidecar.log"
                )
                if not known:
                    log.exception("the agents of the team failed")
                failures += 1
            self._looked.set()
            await asyncio.sleep(RETRY.pause(failures, self._name()))

    async def _serve(self) -> None:
        """Run the agents until their log cannot be read any more. Raises ``StreamError``."""
        async with AsyncExitStack() as stack:
            store = await open_log(self._config)
            stack.push_async_callback(store.close)
            claims = TeamClaims(store, self._name())
            runtime = self._make(store, claims)
            stack.push_async_callback(self._close, runtime, claims)
            await runtime.start()
            self._runtime, self._store_problem = runtime, lambda: store.problem
            self._looked.set()
            self._came.set()
            await runtime.until_ended()
            self._failed(runtime.problem)

    async def _close(self, runtime: Runtime, claims: TeamClaims) -> None:
        self._runtime = None
        self._came.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await runtime.close()
                await claims.close()

    def _failed(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("the agents of the team stand still: %s", problem)
        self._problem = problem

    # --- what is asked of it, as of a runtime ---

    @property
    def problem(self) -> str:
        """Why the agents stand still; empty if they do not."""
        return self._problem if self._runtime is None else self._store_problem()

    @property
    def names(self) -> list[str]:
        return [agent.name for agent in self._agents]

    async def running(self, agent: str = "") -> Runtime:
        """The runtime; waits for the first attempt to reach Postgres.

        Raises:
            UnknownAgent: no agent of the team has this name.
            TeamUnavailable: Postgres cannot be used now.
        """
        if agent and agent not in self.names:
            raise UnknownAgent(agent)
        await self._looked.wait()
        if self._runtime is None:
            raise TeamUnavailable(
                f"the agents of the team stand still: {self._problem}", "this is tried again by itself"
            )
        return self._runtime

    async def command(self, agent: str, command: Command) -> Handled:
        """See ``Runtime``. Raises ``TeamUnavailable``, too."""
        return await (await self.running(agent)).command(agent, command)

    async def stop(self, agent: str, turn: str, epoch: int, command: Command) -> bool:
        """See ``Runtime``. Raises ``TeamUnavailable``, too."""
        return await (await self.running(agent)).stop(agent, turn, epoch, command)

    async def bury(self, agent: str, command: Command, reason: str, about: dict[str, Any], *, key: str) -> Record:
        """See ``Runtime``. Raises ``TeamUnavailable``, too."""
        return await (await self.running(agent)).bury(agent, command, reason, about, key=key)

    def chain(self, correlation_id: str) -> Chain | None:
        return None if self._runtime is None else self._runtime.chain(correlation_id)

    @property
    def engines(self) -> dict[str, Engine]:
        """The engines by agent; none while the agents stand still."""
        return {} if self._runtime is None else self._runtime.engines

    @property
    def is_known(self) -> bool:
        return self._runtime is not None and self._runtime.is_known

    async def until_known(self) -> None:
        """Wait until the agents run, and know every chain of the team's log."""
        while not self.is_known:
            await self._came.wait()
            if (runtime := self._runtime) is not None:
                known = asyncio.ensure_future(runtime.until_known())
                ended = asyncio.ensure_future(runtime.until_ended())
                try:
                    await asyncio.wait((known, ended), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    known.cancel()
                    ended.cancel()
            if not self.is_known:
                await asyncio.sleep(RETRY.first_s)

    # --- effects in doubt ---

    async def doubts(self) -> list[dict[str, Any]] | None:
        """What is known of each effect in doubt: the payload of its ``effect.in_doubt``, and ``agent``. ``None`` if
        that cannot be known now."""
        runtime = self._runtime
        if runtime is None or not runtime.is_known:
            return None
        if self._doubts_at != (runtime, runtime.view.position):
            position = runtime.view.position
            try:
                found = await runtime.doubts()
            except StreamError:
                return None
            self._doubts = [{**event.payload, "agent": event.actor} for event in found]
            self._doubts_at = runtime, position
        return self._doubts

    async def resolve(self, given: Mapping[str, Any], how: Resolution, *, by: str, mark: str) -> bool:
        """See ``Runtime``. Raises ``TeamUnavailable``, too."""
        runtime = await self.running()
        await runtime.until_level()
        return await runtime.resolve(given, how, by=by, mark=mark)

    def status(self) -> list[dict[str, Any]]:
        """As ``Runtime.status``. An agent that stands still is degraded."""
        problem = self.problem
        if self._runtime is None:
            return [_at_rest(agent) | _degraded(problem) for agent in self._agents]
        return [
            row | (_degraded(problem) if problem and row["health"] == "READY" else {}) for row in self._runtime.status()
        ]


def _degraded(problem: str) -> dict[str, Any]:
    return {"health": "DEGRADED", "reasons": [problem]}


def _at_rest(agent: Agent) -> dict[str, Any]:
    counts = dict.fromkeys(("handled", "waiting", "lag", "dead", "effects", "in_doubt"), 0)
    return {"name": agent.name, "events": [*agent.events], "position": -1, "last_error": "", **counts}
