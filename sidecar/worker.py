"""The runtime in the sidecar: built-in agents, the user's agents and effects from ``[worker]``, and the runtime's
requests.

An agent that cannot be loaded does not stop the others. The failed agent is listed as FAILED, with the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from bridge.opencode.link.protocol import RequestError
from sidecar.agents.agent import Agent
from sidecar.agents.effects.claims import Claims
from sidecar.agents.effects.policy import DEFAULT_POLICY, EffectPolicy
from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.loading import LoadError, UserAgent, UserEffect, load_agents, load_object
from sidecar.agents.metrics import Count, uncounted
from sidecar.agents.owner import ALONE, SHARED, NotOwner, Owner
from sidecar.agents.runtime import Runtime, UnknownAgent
from sidecar.config import WorkerConfig
from sidecar.home import Home
from sidecar.notify_config import TeamConfig
from sidecar.private_files import others_may_write
from sidecar.registry import Args, NoArgs, Only, Requests
from streams.bus.command import Command
from streams.identity import Identity
from streams.store import StreamStore

if TYPE_CHECKING:
    from sidecar.team.agents import TeamAgents

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
    """A component: all agents of the home, and their effects.

    ``team`` is the team's Postgres, if there is one. The agents ``team_built_in`` run over the team's log, and so do
    the user's if ``[worker]`` says so; their effects are those of ``[worker]`` and ``team_kinds``.
    """

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
        team: TeamConfig | None = None,
        team_built_in: Sequence[Agent] = (),
        team_kinds: Mapping[str, EffectKind] | None = None,
    ) -> None:
        self._identity = identity
        self.problems: list[dict[str, str]] = []
        taken = {agent.name for agent in (*built_in, *team_built_in)}
        users = self._users_agents(home, config, taken)
        is_shared = config.log == "team"
        self.users = [agent.name for agent in users]
        """The names of the user's agents."""
        self.served = self._users_effects(home, config.serves)
        """The tools that this home carries out for others, by their subjects."""
        self.reachable = [
            *([] if is_shared else self.users),
            *(agent.name for agent in built_in if agent.name.startswith("tools-")),
        ]
        """The names of this home's agents that take messages from the NATS server."""
        self.shared = self.users if is_shared else []
        """The names of the team's agents that do."""
        self._owner = owner_of(self.reachable)
        effects, policy = self._users_effects(home, config.effects), self._policy(home, config.policy)
        self.kinds = {*effects, *(remote or ()), *(kinds or ()), *(team_kinds or ())}
        self.runtime = Runtime(
            store,
            identity,
            [*built_in, *([] if is_shared else users)],
            kinds={**effects, **(remote or {}), **(kinds or {})},
            clean=clean,
            policy=policy,
            count=count,
            owner=self._owner,
        )

        def make(log: StreamStore, claims: Claims) -> Runtime:
            given = {**effects, **(team_kinds or {})}
            return Runtime(log, identity, ours, kinds=given, clean=clean, policy=policy, count=count, claims=claims)

        ours: list[Agent] = [*team_built_in, *(users if is_shared else [])]
        self.team: TeamAgents | None = None
        if team is not None and ours:
            try:
                from sidecar.team.agents import TeamAgents  # it loads psycopg

                self.team = TeamAgents(team, ours, make, identity.ulid)
            except ImportError as error:
                reason = f"the extra `team` is not installed ({error})"
                self.problems += [{"spec": agent.name, "reason": reason} for agent in ours]

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
        if self.team is not None:
            await self.team.start(stack)

    def owes(self) -> bool:
        return self.runtime.owes() or (self.team is not None and self.team.owes())

    def names(self) -> list[str]:
        """The names of all agents that were loaded."""
        return [*self.runtime.engines, *(self.team.names if self.team is not None else ())]

    def of(self, agent: str) -> Runtime | TeamAgents:
        """What runs an agent."""
        return self.team if self.team is not None and agent in self.team.names else self.runtime

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
        if not await self.of(args.agent).stop(args.agent, args.turn, args.epoch, command):
            raise RequestError("no-turn", f"the agent {args.agent} has no open turn with this id and epoch")
        return {"stopped": True}

    async def claim(self, args: ClaimArgs) -> dict[str, Any]:
        """Take an agent from the home that owns it."""
        if self.of(args.agent) is not self.runtime:
            raise RequestError("not-allowed", f"the agent {args.agent} is the team's: every home handles its commands")
        if args.agent not in self.runtime.engines.keys() | SHARED:
            raise UnknownAgent(args.agent)
        if not await self._owner.claim(args.agent, CLAIM_SECONDS):
            raise NotOwner(args.agent, self._owner.refusal(args.agent))
        return {"agent": args.agent}

    async def redrive(self, args: LetterArgs) -> dict[str, Any]:
        """Hand a dead letter to its agent again. If the input fails again, it stays a dead letter."""
        return {"letter": args.letter, "outcome": await (await self._with_letter(args.letter)).redrive(args.letter)}

    async def drop(self, args: LetterArgs) -> dict[str, Any]:
        await (await self._with_letter(args.letter)).drop(args.letter)
        return {"letter": args.letter, "outcome": "dropped"}

    async def _with_letter(self, letter: str) -> Runtime:
        """The runtime that has a dead letter; the home's, if none has it.

        Raises:
            TeamUnavailable: only the team may have it, and cannot be asked now.
        """
        await self.runtime.until_level()
        if letter not in self.runtime.view.dead and self.team is not None:
            shared = await self.team.running()
            await shared.until_level()
            if letter in shared.view.dead:
                return shared
        return self.runtime

    def status(self) -> dict[str, Any]:
        """What ``status`` shows about agents: every agent, including those that could not be loaded."""
        rows = [*self.runtime.status(), *(self.team.status() if self.team is not None else ())]
        return {"agents": rows, "problems": self.problems}

    async def send(self, args: SendArgs) -> dict[str, Any]:
        """Hand a command to an agent, as a person; answers when its results are durable."""
        key = args.key or self._identity.ulid()
        await self._owner.until_known(args.agent)  # a moment after the start, it may not be
        handled = await self.of(args.agent).command(args.agent, Command(f"cli:{key}", args.type, args.payload))
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
