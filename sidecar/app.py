"""The sidecar's composition root: one home, one log, one listening port.

Starts every part in order, waits for a reason to stop, and stops the parts in reverse order. This module decides
nothing about hooks or events.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from bridge.opencode.capture.emitter import Means
from bridge.opencode.capture.translate import Translator
from bridge.opencode.link.frames import PROTOCOL
from bridge.opencode.redact import Redactor
from sidecar.background.forks.forks import Forks
from sidecar.background.model_tools import ModelTools
from sidecar.background.requests import WorkRequests
from sidecar.background.reservations.agent import NAME as RESERVATIONS
from sidecar.background.service import BackgroundWork
from sidecar.background.tool_calls import ToolCalls
from sidecar.care.logs import log_to
from sidecar.care.metrics import SidecarMetrics
from sidecar.care.snapshots import restore
from sidecar.care.upkeep import Upkeep
from sidecar.components import Component, Tasks, wait_idle
from sidecar.config import Config, secrets_of
from sidecar.handler import Parts, Sidecar
from sidecar.home import Home, HomeLocked, HomeNotEmpty, SidecarInfo
from sidecar.install.plugin import is_installed
from sidecar.machine_requests import MachineRequests
from sidecar.mirror.asking import Asks, ForOthers
from sidecar.mirror.service import MirrorSource, NatsService
from sidecar.processes import kill, mark_of, space_of
from sidecar.read.story.writing import StoryTables
from sidecar.record.back_fill import BackFill
from sidecar.record.ingest import Ingest
from sidecar.record.opencode2.services import Services
from sidecar.record.watching import SpoolWatch
from sidecar.requests import SidecarRequests
from sidecar.version import VERSION
from sidecar.worker import Worker
from streams.errors import StoreFenced, StreamError
from streams.identity import Identity, seeded_identity, system_identity
from streams.log.directory import read_manifest
from streams.log.log import Log
from streams.store import NOTHING

if TYPE_CHECKING:
    from sidecar.notify_config import TeamConfig
    from sidecar.team.task import Team

log = logging.getLogger("sidecar")

TAKE_OVER_SECONDS: Final = 30.0
"""How long a sidecar that a shim started waits for another sidecar that is starting or stopping."""

KILL_SECONDS: Final = 10.0
"""How long a killed process may take to end. A process takes longer only if the system is blocking it."""

CHECK_LOCK_SECONDS: Final = 1.0
"""How often a sidecar that writes nothing checks that it still holds the home. Every commit also checks this."""

_LOOK_SECONDS: Final = 0.05


async def serve(
    home: Home,
    config: Config,
    *,
    seed: int | None = None,
    idle_exit: bool = False,
    announce: Callable[[int], None] = lambda port: None,
    complain: Callable[[str], None] = lambda reason: None,
) -> int:
    """Run a sidecar until it is stopped; returns the exit code.

    SIGTERM, SIGINT and the request ``stop`` drain the sidecar or cancel its start; the exit code is then 0. If the log
    can no longer be written, the exit code is 1, so that a shim starts another sidecar, which verifies the tail. Shims
    set ``idle_exit``. The sidecar then exits when idle, waits for a sidecar that is stopping, and returns 0 if another
    sidecar is serving the home. With ``seed``, clock and ids are reproducible, and the log must be empty. ``announce``
    gets the port once everything is ready; ``complain`` gets the reason if the exit code is 1.

    Raises:
        HomeError, StreamError, OSError: the sidecar could not start; nothing was changed.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    # Read the manifest before creating anything, so that a directory with a foreign store stays unchanged.
    await asyncio.to_thread(read_manifest, home.store_path)
    home.create()
    identities = Identities.of(seed)
    async with AsyncExitStack() as stack:
        starting = asyncio.create_task(_start(home, config, identities, stopping, idle_exit, stack))
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            log.info("stopped while starting")
            return 0
        stopped.cancel()
        running = starting.result()
        if running is None:
            return 0
        announce(running.sidecar.server.port)
        failure = await _until_stopped(config, running, idle_exit)
    if failure is None:
        return 0
    complain(failure)
    return 1


@dataclass(frozen=True, slots=True)
class Identities:
    """The sources of time, ids and randomness in this process. Each part of the sidecar gets one of the three
    identities below.

    ``log`` is for what capture records. ``agents`` is for what agents record. Agents handle events while capture
    records others, so agents and capture must not share a source. ``outside`` is for what never reaches the log, such
    as the token and the nonces of the links. These values must stay secret from anybody who knows the seed.
    """

    log: Identity
    agents: Identity
    outside: Identity

    @classmethod
    def of(cls, seed: int | None) -> Identities:
        system = system_identity()
        if seed is None:
            return cls(system, system, system)
        return cls(seeded_identity(seed), seeded_identity(seed + 1), system)


async def _start(
    home: Home, config: Config, identities: Identities, stopping: asyncio.Event, idle_exit: bool, stack: AsyncExitStack
) -> Running | None:
    """Start serving; ``None`` if another sidecar serves the home. ``stack`` stops everything that was started."""
    lock = await _lock(home, wait=idle_exit)
    if lock is None:
        return None
    stack.enter_context(lock)
    log_to(home, stack.enter_context(ExitStack()))
    await _end_unlocked(home)
    story = StoryTables(identities.outside.nonce if config.team.database else None)
    store = await _open(home, identities.log, story, stack)
    if identities.log is not identities.outside and store.head != NOTHING:
        raise HomeNotEmpty(
            home.path,
            "its log has records, but a deterministic run needs an empty log",
            "choose an empty home with `--home`",
        )
    running = await _assemble(home, config, store, story, identities, stopping)
    for component in running.components:
        await component.start(stack)
    log.info("serving on port %d, version %s", running.sidecar.server.port, VERSION)
    return running


async def _end_unlocked(home: Home) -> None:
    """Kill an older sidecar that lost the home's lock.

    If the older sidecar is only suspended, it could later continue alongside this one.

    Killing is safe: what was acknowledged is durable, and the shims send everything else again.

    Raises:
        HomeLocked: the system does not let the old sidecar end.
    """
    older = await asyncio.to_thread(home.unlocked)
    if older is None:
        return
    log.warning("an older sidecar (pid %d) is still running, but its lock file was deleted: killing it", older.pid)
    deadline = asyncio.get_running_loop().time() + KILL_SECONDS
    await asyncio.to_thread(kill, older.pid, older.process)
    while await asyncio.to_thread(lambda: older.still_runs):
        if asyncio.get_running_loop().time() > deadline:
            reason = f"an older sidecar (pid {older.pid}) did not exit, even when killed"
            raise HomeLocked(home.path, reason, "end that process, then try again")
        await asyncio.sleep(_LOOK_SECONDS)


async def _open(home: Home, identity: Identity, story: StoryTables, stack: AsyncExitStack) -> Log:
    opening = asyncio.create_task(Log.open(home.store_path, identity, derived=story))
    # The thread that opens the log cannot be cancelled, so close the log even if this task is cancelled.
    stack.push_async_callback(_close, opening)
    store = await asyncio.shield(opening)
    if store.torn is not None:
        log.warning("an incomplete tail was cut off the log and saved in %s", store.torn)
    if store.head_warning is not None:
        log.warning("%s", store.head_warning)
    return store


async def _close(opening: asyncio.Task[Log]) -> None:
    await asyncio.wait((opening,))
    if opening.exception() is None:
        await opening.result().close()


async def _lock(home: Home, *, wait: bool) -> IO[bytes] | None:
    """Lock the home. With ``wait``, return ``None`` as soon as another sidecar is serving the home.

    If the lock is held but ``running`` finds no sidecar, a sidecar is starting or stopping. Returning in that case
    could leave the home without a sidecar, so this function waits.

    Raises:
        HomeLocked: another process holds the lock.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TAKE_OVER_SECONDS
    while True:
        try:
            return home.lock()
        except HomeLocked:
            if not wait:
                raise
            if home.running() is not None or loop.time() > deadline:
                return None
        await asyncio.sleep(_LOOK_SECONDS)


async def _assemble(
    home: Home, config: Config, store: Log, story: StoryTables, identities: Identities, stopping: asyncio.Event
) -> Running:
    """Create every part, but start none.

    Each part gets what it needs when it is made. Where two parts need each other, the first one gets a function that
    finds the second when it is called, which is after all are made.
    """
    identity, outside, log_id = identities.log, identities.outside, store.manifest.log_id
    capture = await restore(store)
    state = capture.state
    wanted = config.redact
    redact = Redactor(
        wanted.patterns,
        wanted.keys,
        # Redact the secrets of config.toml, because a model can read it, but the log must not contain them.
        literals={**wanted.literals, **secrets_of(config)},
        disable=wanted.disable,
        allow=wanted.allow,
        enabled=wanted.enabled,
    )
    source = MirrorSource(store, log_id, outside.now_ms, state.turn_of, redact.clean, runtime=lambda: worker.runtime)
    nats = NatsService(home, config.nats, outside.nonce, source, config.team.machine_name)
    asks = Asks(store, identities.agents, redact.clean)
    model_tools = ModelTools(log_id, config.worker.tools if config.nats.mode != "off" else {})
    is_shared = config.worker.log == "team"
    durable = BackgroundWork(
        home,
        config.phantom,
        config.notify,
        identities.agents,
        outside.nonce,
        state,
        redact.clean,
        is_installed,
        links=lambda: sidecar.server.links,
        delivers=lambda link: ingest.delivers(link),
        runtime=lambda: worker.runtime,
        worker=lambda: worker.status(),
        more_tools=model_tools.specs(),
        has_gardener=config.gardener.enabled,
        scripts_may=config.link.scripts_may,
        team=lambda: worker.team,
        machine=config.team.machine_name,
        others=lambda: machines,
        reaches_others=nats.reaches_others,
        reserving=lambda: worker.of(RESERVATIONS),
    )
    worker = Worker(
        home,
        config.worker,
        store,
        identities.agents,
        redact.clean,
        built_in=(*durable.agents, *model_tools.agents, *(() if is_shared else durable.shared)),
        team_built_in=durable.shared if is_shared else (),
        kinds=durable.kinds,
        count=lambda what, of, much: metrics.count(what, of, much),
        remote=nats.calls(config.worker, identities.agents),
        owner_of=lambda agents: nats.owner(agents, config.worker),
        team=config.team if config.team.database else None,
    )
    translator = Translator(
        identity, state, Means(redact.cleaned, asked=durable.asked, answered=durable.people.answered)
    )
    ingest = Ingest(
        store,
        translator,
        identity.now_ms,
        exclude=config.capture.exclude,
        committed=lambda seconds, events: metrics.committed(seconds, events),
        recorded=lambda records: back_fill.recorded(records),
        compare=lambda session, origin: services.compare(session, origin),
    )
    back_fill = BackFill(ingest, store, state)
    upkeep = Upkeep(
        store,
        capture,
        lambda: ingest.is_quiet,
        identity.now_ms,
        config=config.store,
        removed=worker.runtime.reload,
    )
    services = Services(ingest.host, ingest, store, log_id, lambda: spools.take())
    spools = SpoolWatch(home.spool_path, ingest, services.announce)
    tools = ToolCalls(durable, state, identities.agents, model_tools)
    token, tracing, scraping, team = home.ensure_token(outside.nonce), None, None, None
    if config.otel.endpoint:
        from sidecar.care.tracing import Tracing  # it loads an HTTP client

        tracing = Tracing(home, config.otel, store, log_id)
    if config.team.database:
        team = _team(home, config.team, store, log_id, story, outside)
    if config.metrics.port:
        from sidecar.care.scraping import Scraping  # it loads the HTTP server

        scraping = Scraping(config.metrics.port, token, lambda: metrics.text())
    parts = Parts(
        store,
        translator,
        ingest,
        back_fill,
        upkeep,
        spools,
        nats,
        services,
        worker,
        durable,
        tools,
        tracing,
        scraping,
        team,
    )
    sidecar = Sidecar(home, outside, stopping, parts, token=token, port=config.link.port)
    metrics = SidecarMetrics(sidecar.status, agents=worker.names(), kinds=worker.kinds)
    requests, answerers = sidecar.requests, durable.people.answerers
    SidecarRequests(sidecar, metrics, redact.clean, outside.now_ms).register(requests, answerers.only)
    worker.register(requests, answerers.only)
    WorkRequests(durable, identities.agents).register(requests)
    machines = MachineRequests(nats, asks, durable, answerers, requests, identities.agents)
    Forks(home, durable.hosts, state, ingest, identity, answerers, durable.works).register(requests)

    def serve() -> list[asyncio.Task[None]]:
        others = ForOthers(asks, config.machines.allow, machines.read, machines.do)
        return nats.serve(worker.served, config.worker, identities.agents, requests.answer, others)

    # The order matters, because the components stop in reverse order: first they stop serving peers, then stop reading
    # spools, then make all accepted items durable, and finally save a snapshot.
    components: list[Component | None] = [nats, upkeep, tracing, team, ingest, back_fill, services, spools, worker]
    # The link's port first, because OpenCode needs it.
    components += [_Consumers(nats, asks, worker, serve), _Door(home, sidecar), scraping, durable]
    return Running(sidecar, tuple(each for each in components if each is not None))


def _team(
    home: Home, config: TeamConfig, store: Log, log_id: str, story: StoryTables, identity: Identity
) -> Team | None:
    """The copy to the team's Postgres; ``None`` without the extra ``team``, which ``doctor`` tells."""
    try:
        from sidecar.team.task import Team  # it loads psycopg
    except ImportError as error:
        log.warning("the team gets no copy: %s", error)
        return None
    return Team(home, config, store, log_id, story, identity)


class Running(NamedTuple):
    """``components`` are the sidecar's parts, in the order in which they are started."""

    sidecar: Sidecar
    components: tuple[Component, ...]


class _Consumers:
    """A component that takes from NATS what other programs and machines ask."""

    def __init__(
        self, nats: NatsService, asks: Asks, worker: Worker, serve: Callable[[], list[asyncio.Task[None]]]
    ) -> None:
        self._nats, self._asks, self._worker, self._serve = nats, asks, worker, serve

    async def start(self, stack: AsyncExitStack) -> None:
        if self._nats.reaches_others:
            await self._asks.start()
        stack.push_async_callback(Tasks(self._serve()).cancel)
        consumers = self._nats.consume(self._worker.reachable, self._worker.team, self._worker.shared)
        if consumers is not None:
            stack.push_async_callback(consumers.close)

    def owes(self) -> bool:
        """True while a command is being handled."""
        return self._nats.commands is not None and self._nats.commands.is_busy


class _Door:
    """A component: the listening port, and ``sidecar.json``, which tells other processes the port's number."""

    def __init__(self, home: Home, sidecar: Sidecar) -> None:
        self._home, self._sidecar, self._server = home, sidecar, sidecar.server

    async def start(self, stack: AsyncExitStack) -> None:
        # Register the drain before the start, so that the server is drained even if the start is cancelled.
        stack.push_async_callback(self._server.drain)
        sidecar = self._sidecar
        port = await self._server.start()
        mark = await asyncio.to_thread(mark_of, os.getpid())
        spaces = space_of("pid"), space_of("net")
        info = SidecarInfo(os.getpid(), port, sidecar.boot, VERSION, PROTOCOL, sidecar.started_ms, mark, *spaces)
        self._home.write_info(info)
        stack.push_async_callback(self._leave)

    def owes(self) -> bool:
        """True while somebody is connected."""
        return bool(self._server.connections)

    async def _leave(self) -> None:
        self._home.remove_info(self._sidecar.boot)
        await self._server.drain(reason=self._sidecar.leaving)
        log.info("stopped")


async def _until_fenced(store: Log) -> StoreFenced:
    while True:
        await asyncio.sleep(CHECK_LOCK_SECONDS)
        try:
            store.check_lock()
        except StoreFenced as error:
            return error
        except OSError:
            continue  # the disk does not respond, which the next commit will report


async def _until_stopped(config: Config, running: Running, idle_exit: bool) -> str | None:
    """Wait for a reason to stop. Return the reason if the log can no longer be written, otherwise ``None``."""
    parts = running.sidecar.parts
    failed = parts.ingest.failed
    fenced = asyncio.create_task(_until_fenced(parts.store))
    reasons: list[asyncio.Future[Any]] = [fenced, asyncio.create_task(running.sidecar.stopping.wait())]
    if idle_exit:
        waiting = wait_idle(running.components, config.link.idle_exit_seconds, parts.spools.take)
        reasons.append(asyncio.create_task(waiting))
    try:
        await asyncio.wait((failed, *reasons), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in reasons:
            task.cancel()
    if failed.done() or fenced.done():
        error: StreamError = failed.result() if failed.done() else fenced.result()
        log.error("stopped: %s", error)
        return str(error)
    return None
