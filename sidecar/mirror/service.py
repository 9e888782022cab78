"""NATS in the sidecar: off, connected to configured servers, or connected to an embedded server.

NATS never keeps the sidecar from recording. Every problem appears in ``status`` and in the log, and the failed step is
retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bridge.nats.jetstream.errors import NatsUnavailable
from bridge.nats.jetstream.options import ConnectOptions, PullSettings
from bridge.opencode.link.frames import HookItem
from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.owner import ALONE, Owner
from sidecar.config import NatsConfig, WorkerConfig
from sidecar.home import Home
from sidecar.mirror.settings import external_options, mirror_bytes
from sidecar.private_files import HomeError, private_directory
from streams.bus.contract import Delivery, Poison
from streams.identity import Identity
from streams.store import StreamStore

if TYPE_CHECKING:
    from bridge.nats.jetstream.bus import JetStreamEventBus
    from bridge.nats.jetstream.sessions import Sessions
    from sidecar.agents.runtime import Runtime
    from sidecar.mirror.actions import Answer
    from sidecar.mirror.asking import ForOthers
    from sidecar.mirror.calling import RemoteCalls, RemoteKind
    from sidecar.mirror.commands import CommandConsumers, Commanded
    from sidecar.mirror.deltas import DeltaStream
    from sidecar.mirror.follower import MirrorTask
    from sidecar.mirror.machines import Machines
    from sidecar.mirror.owning import Owning
    from sidecar.mirror.remote_tools import ServedTools
    from sidecar.mirror.server.server import EmbeddedServer

log = logging.getLogger("sidecar.mirror")

DRAIN_SECONDS: Final = 2.0
"""How long a stopping sidecar waits for the mirror to catch up. The next sidecar continues the mirror."""


class MirrorSource(NamedTuple):
    """What the service reads: the log with its id, the clock, capture's knowledge for token deltas, and the agents.

    ``turn_of`` returns the user message that a session is currently answering; ``clean`` redacts a text; ``runtime``
    returns what runs the agents.
    """

    store: StreamStore
    log_id: str
    now_ms: Callable[[], int]
    turn_of: Callable[[str], str | None]
    clean: Callable[[Any], Any]
    runtime: Callable[[], Runtime]


class NatsService:
    """Runs everything that ``[nats]`` configures. ``open`` returns at once. Bound to its event loop."""

    def __init__(
        self, home: Home, config: NatsConfig, new_token: Callable[[], str], source: MirrorSource, machine: str = ""
    ) -> None:
        """``machine`` is the name of this machine."""
        self._home, self._config, self._new_token = home, config, new_token
        self._source, self._machine = source, machine
        self.machines: Machines | None = None
        """The other machines on the server; ``None`` unless the server is one that they can reach."""
        self.mirror: MirrorTask | None = None
        """The mirror of the log; ``None`` while ``[nats]`` is off or unusable."""
        self.commands: CommandConsumers | None = None
        """The consumers of the home's agents; ``None`` before ``consume``."""
        self._owning: Owning | None = None
        self._calls: RemoteCalls | None = None
        self._served: ServedTools | None = None
        self._deltas: DeltaStream | None = None
        self._problem = ""
        self._server: EmbeddedServer | None = None
        self._bus: JetStreamEventBus | None = None
        self.sessions: Sessions | None = None
        """The connection, shared by all publishers; ``None`` while ``[nats]`` is off or unusable."""

    async def start(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self.close)
        self.open()

    def owes(self) -> bool:
        """Always false, because the next sidecar continues the mirror where this one stopped."""
        return False

    def open(self) -> None:
        """Start in the background. The caller holds the home's lock."""
        if self._config.mode == "off":
            return
        # The library takes a tenth of a second to load, so load it only if NATS is switched on.
        from bridge.nats.jetstream.bus import JetStreamEventBus
        from bridge.nats.jetstream.sessions import Sessions
        from bridge.nats.jetstream.stream_plan import wanted
        from sidecar.mirror.deltas import DeltaStream
        from sidecar.mirror.follower import MirrorTask
        from sidecar.mirror.server.server import EmbeddedServer

        if self._config.mode == "embedded":
            try:
                private_directory(self._home.nats_path)
            except HomeError as error:
                self._fail(str(error))
                return
            self._server = EmbeddedServer(self._home.nats_path, self._config, self._new_token)
            self._server.start()
        self.sessions = Sessions(self._options)
        max_bytes = mirror_bytes(self._config)
        streams = wanted(max_bytes=max_bytes)
        log_id = self._source.log_id
        pulling = PullSettings(ack_wait_s=self._config.ack_wait_seconds)
        self._bus = JetStreamEventBus(self.sessions, pulling, streams, log_id=log_id, record=self._record)
        self.mirror = MirrorTask(
            self._source.store,
            log_id,
            self.sessions,
            self._source.now_ms,
            max_bytes=max_bytes,
            max_store=self._config.max_store_bytes if self._server is not None else 0,
        )
        self.mirror.start()
        if self._config.deltas:
            self._deltas = DeltaStream(
                self.sessions, log_id, self._source.turn_of, self.mirror.project_of, self._source.clean
            )

    def owner(self, agents: Sequence[str], worker: WorkerConfig) -> Owner:
        """What decides which of these agents this home owns, once ``consume`` was called.

        All are its own unless the server is one that other homes can reach.
        """
        if not self.reaches_others:
            return ALONE
        from bridge.nats.l0.calls import tool_pattern
        from bridge.nats.subjects import consumer_name, machine_pattern
        from sidecar.mirror.actions import ACTIONS_PATTERN, INTERNAL, PMO, WORKER
        from sidecar.mirror.machines import DURABLE, MACHINE
        from sidecar.mirror.owning import Owning
        from sidecar.mirror.remote_tools import tool_consumer

        more = {WORKER: (consumer_name(WORKER), ACTIONS_PATTERN)} if worker.ui_allowed else {}
        more |= {PMO: (tool_consumer(INTERNAL), tool_pattern(INTERNAL))} if worker.internal_allowed else {}
        more |= {MACHINE: (DURABLE, machine_pattern(self._machine))}
        self._owning = Owning(agents, more)
        return self._owning

    def calls(self, worker: WorkerConfig, identity: Identity) -> dict[str, RemoteKind]:
        """The effects that other processes carry out, by kind: those of ``[worker.tools]``."""
        if self._config.mode == "off" or not worker.tools:
            return {}
        from sidecar.mirror.calling import RemoteCalls

        store, log_id, _, _, clean, runtime = self._source
        self._calls = RemoteCalls(lambda: self._bus, store, identity, log_id, clean, runtime)
        return self._calls.kinds(worker.tools)

    async def _record(self, durable: str, delivery: Delivery, poison: Poison) -> Poison:
        """Record a message that is not an agent's as a dead letter. An agent's consumer records its own."""
        from sidecar.mirror.commands import DEAD_LETTER, recorded

        if DEAD_LETTER in poison.headers:
            return poison
        # The name of a stream may have dots, but no percent signs.
        name = durable.removesuffix("_consumer").replace("%2E", ".").replace("%", "~")
        return await recorded(self._source.runtime(), name, delivery, poison.reason)

    @property
    def reaches_others(self) -> bool:
        """Whether other homes can be on the server."""
        return self._config.mode == "external"

    def serve(
        self,
        tools: Mapping[str, EffectKind],
        worker: WorkerConfig,
        identity: Identity,
        answer: Answer,
        others: ForOthers | None = None,
    ) -> list[asyncio.Task[None]]:
        """Do for other programs, and for other machines, on the server what the configuration allows: tasks, which the
        caller cancels."""
        if self._bus is None:
            return []
        source = self._source
        runs: list[Coroutine[Any, Any, None]] = []
        if self.reaches_others and others is not None:
            from sidecar.mirror.actions import Deeds
            from sidecar.mirror.machines import MACHINE, Machines

            machines = self.machines = Machines(
                self._machine, self._bus, others, lambda do: Deeds(source.store, identity, do, source.clean)
            )
            runs.append(self._owned(MACHINE, machines.run))
        if tools:
            from sidecar.mirror.remote_tools import ServedTools

            self._served = ServedTools(self._bus, tools, source.now_ms, source.clean)
            runs.append(self._served.run())
        if worker.internal_allowed or worker.ui_allowed:
            from sidecar.mirror.actions import INTERNAL, PMO, WORKER, Deeds, InternalTools, UiActions
            from sidecar.mirror.remote_tools import ServedTools

            deeds = Deeds(source.store, identity, answer, source.clean)
            if worker.internal_allowed:
                internal = {INTERNAL: InternalTools(deeds, worker.internal_allowed)}
                served = ServedTools(self._bus, internal, source.now_ms, source.clean, exclusive=True)
                runs.append(self._owned(PMO, served.run))
            if worker.ui_allowed:
                runs.append(self._owned(WORKER, UiActions(self._bus, deeds, worker.ui_allowed, source.now_ms).run))
        return [asyncio.create_task(run) for run in runs]

    def _owned(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> Coroutine[Any, Any, None]:
        return run() if self._owning is None else self._owning.while_owned(name, run)

    def consume(
        self, agents: Sequence[str], team: Commanded | None = None, shared: Sequence[str] = ()
    ) -> CommandConsumers | None:
        """Take commands for these agents from NATS, in the background. Close the result before the runtime. ``team``
        runs the agents ``shared``, whose commands other homes take, too.

        Returns ``None`` if there is no connection or no agent.
        """
        if self._bus is None:
            return None
        runtime = self._source.runtime()
        if self._owning is not None:
            self._owning.start(self._bus, runtime.own, runtime.resume)
        if not agents and not shared:
            return None
        from sidecar.mirror.commands import CommandConsumers

        self.commands = CommandConsumers(runtime, self._bus, agents=agents, owning=self._owning, calls=self._calls)
        if team is not None:
            self.commands.add(team, self._bus, shared)
        self.commands.start()
        return self.commands

    @property
    def wants_deltas(self) -> bool:
        return self._deltas is not None

    def deltas(self, items: Iterable[HookItem]) -> None:
        """Accept token deltas from a shim. Returns at once."""
        if self._deltas is not None:
            self._deltas.take(items)

    def forgotten(self, streams: Collection[str]) -> None:
        """Erase the copies of payloads that the log forgot in these streams, in the background."""
        if self.mirror is not None:
            self.mirror.forgotten(streams)

    async def close(self) -> None:
        """Mirror the remaining records for up to ``DRAIN_SECONDS``, then close the connection and stop the server.
        Idempotent."""
        if self._owning is not None:
            await self._owning.close()
        if self._deltas is not None:
            await self._deltas.close()
        if self.mirror is not None:
            await self.mirror.close(drain_seconds=DRAIN_SECONDS)
        if self.sessions is not None:
            await self.sessions.close()
        if self._server is not None:
            await self._server.stop()

    def status(self) -> dict[str, Any]:
        """What ``status`` shows about NATS: ``mode``, ``connected``, ``servers`` (host and port without secrets, or
        null), ``version``, ``problem``; ``server`` and ``mirror`` (the status of the embedded server and of the mirror,
        or null); ``deltas`` (counts); ``owned`` (see ``Owning.status``); ``tools`` (see
        ``ServedTools.status``); ``commands`` (each agent's consumer); ``machines`` (see ``Machines.status``, and
        ``problem``; or null).
        """
        session = self.sessions.current if self.sessions is not None else None
        server = self._server.status() if self._server is not None else None
        problem = self._problem or (server["problem"] if server is not None else "")
        if not problem and session is None and self.sessions is not None:
            problem = self.sessions.problem
        return {
            "mode": self._config.mode,
            "connected": session is not None,
            "servers": self._shown(server),
            "version": session.server.version if session is not None else None,
            "problem": problem,
            "server": server,
            "mirror": self.mirror.status() if self.mirror is not None else None,
            "deltas": self._deltas.counts if self._deltas is not None else None,
            "owned": self._owning.status() if self._owning is not None else [],
            "tools": self._served.status() if self._served is not None else [],
            "commands": self.commands.status() if self.commands is not None else [],
            "machines": self._others(),
        }

    def machine_taken(self) -> str:
        """Why this home cannot ask other machines, if another home has the name of this one; empty if none has."""
        from sidecar.mirror.machines import MACHINE

        taken = self._owning is not None and self._owning.is_taken(MACHINE)
        return self._owning.refusal(MACHINE) if self._owning is not None and taken else ""

    def _others(self) -> dict[str, Any] | None:
        if self.machines is None or self._owning is None:
            return None
        from sidecar.mirror.machines import MACHINE

        return {**self.machines.status(), "problem": self._owning.refusal(MACHINE)}

    def _shown(self, server: dict[str, Any] | None) -> str | None:
        if self._config.mode == "external":
            return external_options(self._config).shown
        return f"127.0.0.1:{server['port']}" if server is not None and server["port"] is not None else None

    def mirror_status(self) -> dict[str, Any]:
        """What ``mirror status`` shows: the same as ``status``, and the mirror's own status. ``problem`` is a problem
        of either of the two.
        """
        whole = self.status()
        at_rest = {"state": "off" if self._config.mode == "off" else "waiting"}
        found = whole["mirror"] or {**at_rest, "position": -1, "head": -1, "lag": 0, "problem": ""}
        problem = found["problem"] or whole["problem"]
        about = {name: whole[name] for name in ("mode", "connected", "servers", "version", "server")}
        return {**about, **found, "problem": problem}

    def rebuild(self) -> dict[str, Any]:
        """Have the log published again. Returns the same as ``mirror_status``, whose ``rebuilt`` grows by 1.

        Raises:
            NatsUnavailable: there is no mirror; the text says why.
        """
        if self.mirror is None:
            raise NatsUnavailable(
                self._problem or "NATS was off when this sidecar started", "run `durable-stream stop`, then try again"
            )
        self.mirror.rebuild()
        return self.mirror_status()

    async def address(self) -> dict[str, Any]:
        """How another process of this user reaches the embedded server now: ``port``, ``token`` and ``server_id``.

        Raises:
            NatsUnavailable: the server is not running, or there is none; the text says why.
        """
        if self._server is None:
            began = f"the running sidecar was started with NATS mode {self._config.mode}"
            restart = "run `durable-stream stop`; the next sidecar uses the current config.toml"
            raise NatsUnavailable(self._problem or began, "" if self._problem else restart)
        options = await self._server.options()
        port = self._server.status()["port"]
        return {"port": port, "token": options.token, "server_id": options.server_id}

    async def _options(self) -> ConnectOptions:
        if self._server is not None:
            return await self._server.options()
        if self._config.mode != "external":
            raise NatsUnavailable("no NATS server is running")
        return external_options(self._config)

    def _fail(self, problem: str) -> None:
        self._problem = problem
        log.error("no NATS: %s", problem)
