"""The runtime in the sidecar: built-in agents, the user's agents and effects from ``[worker]``, and the runtime's
requests.

An agent that cannot be loaded does not stop the others. The failed agent is listed as FAILED, with the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from pydantic import Field

from bridge.opencode.link.protocol import RequestError
from sidecar.agents.agent import Agent
from sidecar.agents.effects.policy import DEFAULT_POLICY, EffectPolicy
from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.loading import LoadError, UserAgent, UserEffect, load_agents, load_object
from sidecar.agents.metrics import Count, uncounted
from sidecar.agents.owner import ALONE, SHARED, NotOwner, Owner
from sidecar.agents.runtime import Runtime, UnknownAgent
from sidecar.config import WorkerConfig
from sidecar.home import Home
from sidecar.private_files import others_may_write
from sidecar.registry import Args, NoArgs, Only, Requests
from streams.bus.command import Command
from streams.identity import Identity
from streams.store import StreamStore

log = logging.getLogger("sidecar.worker")

CLAIM_SECONDS = 15.0
"""How long taking an agent from another home may take."""

_POLICY = ("max_attempts", "backoff_seconds", "idempotency_key", "deadline_seconds")


class SendArgs(Args):
    agent: str = Field(max_length=100, description="its name")
    type: str = Field(max_length=160, description="the command's type")
    payload: dict[str, Any] = Field(default={}, description="the command's payload")
    key: str | None = Field(default=None, max_length=300, description="requests with the same key count once")


class StopArgs(Args):
    agent: str = Field(max_length=100, description="its name")
    turn: str = Field(max_length=512, description="`agent_turn_id`, as the server has it")
    epoch: int = Field(default=0, ge=0, description="`turn_epoch`, as the server has it")
    reason: str = Field(default="", max_length=500, description="why")


class ClaimArgs(Args):
    agent: str = Field(max_length=100, description="its name")


class LetterArgs(Args):
    letter: str = Field(max_length=100, description="its id")


class Worker:
    """A component: all agents of the home, and their effects."""

    def __init__(
        self,
        home: Home,
        config: WorkerConfig,
        store: StreamStore,
        identity: Identity,
        clean: Callable[[Any], Any],
        *,
        built_in: Sequence[Agent] = (),
        kinds: Mapping[str, EffectKind] | None = None,
        remote: Mapping[str, EffectKind] | None = None,
        count: Count = uncounted,
        owner_of: Callable[[Sequence[str]], Owner] = lambda agents: ALONE,
    ) -> None:
        self._identity = identity
        self.problems: list[dict[str, str]] = []
        users = self._users_agents(home, config, {agent.name for agent in built_in})
        self.users = [agent.name for agent in users]
        """The names of the user's agents."""
        self.served = self._users_effects(home, config.serves)
        """The tools that this home carries out for others, by their subjects."""
        self.reachable = [*self.users, *(agent.name for agent in built_in if agent.name.startswith("tools-"))]
        """The names of the agents that take messages from the NATS server."""
        agents = [*built_in, *users]
        self._owner = owner_of(self.reachable)
        self.runtime = Runtime(
            store,
            identity,
            agents,
            kinds={**self._users_effects(home, config.effects), **(remote or {}), **(kinds or {})},
            clean=clean,
            policy=self._policy(home, config.policy),
            count=count,
            owner=self._owner,
        )

    def _users_agents(self, home: Home, config: WorkerConfig, taken: set[str]) -> list[UserAgent]:
        loaded: dict[str, UserAgent] = {}
        for spec in config.agents:
            try:
                _check_file(spec, home)
                (agent,) = load_agents([spec], home.path)
                if agent.name in taken or agent.name in loaded:
                    raise LoadError(
                        spec, f"another agent is already named {agent.name}; both would take the same commands"
                    )
            except LoadError as error:
                self._complain(spec, error)
                continue
            loaded[agent.name] = agent
        return list(loaded.values())

    def _users_effects(self, home: Home, specs: Mapping[str, str]) -> dict[str, EffectKind]:
        kinds: dict[str, EffectKind] = {}
        for kind, spec in specs.items():
            try:
                _check_file(spec, home)
                kinds[kind] = UserEffect(spec, load_object(spec, home.path))
            except LoadError as error:
                self._complain(spec, error)
        return kinds

    def _policy(self, home: Home, spec: str | None) -> EffectPolicy:
        if spec is None:
            return DEFAULT_POLICY
        try:
            _check_file(spec, home)
            found = load_object(spec, home.path)
            policy = found() if isinstance(found, type) else found
            for method in _POLICY:
                if not callable(getattr(policy, method, None)):
                    raise LoadError(spec, f"a policy needs the method `{method}`")
        except LoadError as error:
            self._complain(spec, error)
            return DEFAULT_POLICY
        except Exception as error:  # noqa: BLE001 - a policy is foreign code
            self._complain(spec, LoadError(spec, f"cannot be created ({type(error).__name__})"))
            return DEFAULT_POLICY
        return policy  # type: ignore[no-any-return]  # checked above

    def _complain(self, spec: str, error: LoadError) -> None:
        log.error("%s", error)
        self.problems.append({"spec": spec, "reason": error.reason})

    # --- start and stop ---

    async def start(self, stack: AsyncExitStack) -> None:
        await self.runtime.start()
        stack.push_async_callback(self.runtime.close)

    def owes(self) -> bool:
        return self.runtime.owes()

    # --- requests ---

    def register(self, requests: Requests, only: Only) -> None:
        listed = "`agents`: each agent's health, lag and counts; `problems`"
        requests.register("agents", NoArgs, lambda _: self.status(), listed)
        requests.register("send", SendArgs, self.send, "`outcome`, `key`, `records`: what the command led to")
        requests.register("agent_claim", ClaimArgs, only("claim", self.claim), "`agent`")
        requests.register("turn_stop", StopArgs, self.stop, "`stopped`: true")
        requests.register("dlq_redrive", LetterArgs, self.redrive, "`letter`, `outcome`: the result")
        requests.register("dlq_drop", LetterArgs, only("drop", self.drop), "`letter`, `outcome`: `dropped`")

    async def stop(self, args: StopArgs) -> dict[str, Any]:
        """End a turn of an agent before its time."""
        command = Command(f"stop:{args.turn}", "inbox.stop", {"reason": args.reason})
        if not await self.runtime.stop(args.agent, args.turn, args.epoch, command):
            raise RequestError("no-turn", f"the agent {args.agent} has no open turn with this id and epoch")
        return {"stopped": True}

    async def claim(self, args: ClaimArgs) -> dict[str, Any]:
        """Take an agent from the home that owns it."""
        if args.agent not in self.runtime.engines.keys() | SHARED:
            raise UnknownAgent(args.agent)
        if not await self._owner.claim(args.agent, CLAIM_SECONDS):
            raise NotOwner(args.agent, self._owner.refusal(args.agent))
        return {"agent": args.agent}

    async def redrive(self, args: LetterArgs) -> dict[str, Any]:
        """Hand a dead letter to its agent again. If the input fails again, it stays a dead letter."""
        await self.runtime.until_level()
        return {"letter": args.letter, "outcome": await self.runtime.redrive(args.letter)}

    async def drop(self, args: LetterArgs) -> dict[str, Any]:
        await self.runtime.until_level()
        await self.runtime.drop(args.letter)
        return {"letter": args.letter, "outcome": "dropped"}

    def status(self) -> dict[str, Any]:
        """What ``status`` shows about agents: every agent, including those that could not be loaded."""
        return {"agents": self.runtime.status(), "problems": self.problems}

    async def send(self, args: SendArgs) -> dict[str, Any]:
        """Hand a command to an agent, as a person; answers when its results are durable."""
        key = args.key or self._identity.ulid()
        await self._owner.until_known(args.agent)  # a moment after the start, it may not be
        handled = await self.runtime.command(args.agent, Command(f"cli:{key}", args.type, args.payload))
        # Only the command itself was recorded, so the agent has nothing to do for it.
        outcome = "ignored" if handled.outcome == "done" and len(handled.records) == 1 else handled.outcome
        return {"outcome": outcome, "key": key, "records": [record.as_json() for record in handled.records]}


def _check_file(spec: str, home: Home) -> None:
    """Refuse to run a file that somebody else could have written.

    Raises:
        LoadError: others may write the file or its directory.
    """
    where = spec.rpartition(":")[0]
    if where.endswith(".py") and (why := others_may_write(home.path / Path(where).expanduser(), home.path)):
        raise LoadError(spec, why)
