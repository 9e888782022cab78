"""The sidecar's composition root: one home, one log, one listening port.

Starts every part in order, waits for a reason to stop, and stops the parts in
the opposite order. Makes no decision about hooks or events.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Final

from bridge.opencode.capture.translate import Translator
from bridge.opencode.capture.v2.translate import HostTranslator
from bridge.opencode.link.frames import PROTOCOL
from bridge.opencode.redact import Redactor
from sidecar.capture.ingest import Ingest
from sidecar.config import Config
from sidecar.home import Home, HomeLock, HomeLocked, SidecarInfo
from sidecar.keeping.upkeep import Upkeep, restore
from sidecar.link.server import LinkServer
from sidecar.logs import log_to
from sidecar.nats.service import NatsService
from sidecar.opencode2.services import Services
from sidecar.requests import Sidecar
from sidecar.version import VERSION
from streams.errors import StreamError
from streams.identity import Identity, system_identity
from streams.log.directory import read_manifest
from streams.log.log import Log

log = logging.getLogger("sidecar")

TAKE_OVER_SECONDS: Final = 30.0
"""How long a sidecar that a shim started waits for another one that is starting or stopping."""

_LOOK_SECONDS: Final = 0.05


async def serve(
    home: Home,
    config: Config,
    *,
    idle_exit: bool = False,
    announce: Callable[[int], None] = lambda port: None,
    complain: Callable[[str], None] = lambda reason: None,
) -> int:
    """Run a sidecar until it is stopped; returns the exit code.

    SIGTERM, SIGINT and the request ``stop`` drain it, or cancel its start: 0. If
    the log can no longer be written, it returns 1, so that a shim starts another
    sidecar, which verifies the tail. Shims pass ``idle_exit``: it exits when idle,
    returns 0 if another sidecar serves the home, and waits for one that is
    stopping. ``announce`` gets the port once everything is ready; ``complain``
    gets the reason for a 1.

    Raises:
        HomeError, StreamError, OSError: it could not start; nothing was changed.
    """
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    # Before anything is created, so that a foreign directory stays unchanged.
    await asyncio.to_thread(read_manifest, home.store_path)
    home.create()
    async with AsyncExitStack() as stack:
        starting = asyncio.create_task(_start(home, config, idle_exit, stack))
        stopped = asyncio.create_task(told.wait())
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            log.info("stopped while starting")
            return 0
        stopped.cancel()
        started = starting.result()
        if started is None:
            return 0
        sidecar, ingest = started
        sidecar.stopping = told
        failure = await _run(home, config, sidecar, ingest, idle_exit, announce)
        if failure is None:
            return 0
        complain(failure)
        return 1


async def _start(home: Home, config: Config, idle_exit: bool, stack: AsyncExitStack) -> tuple[Sidecar, Ingest] | None:
    """Lock the home and open its log; None if another sidecar serves it. ``stack`` stops everything started here."""
    lock = await _lock(home, wait=idle_exit)
    if lock is None:
        return None
    stack.enter_context(lock)
    log_to(home, stack.enter_context(ExitStack()), config.log)
    identity = system_identity()
    opening = asyncio.create_task(
        Log.open(home.store_path, identity, backend=config.store.backend, segment_bytes=config.store.segment_bytes)
    )
    # Opening runs in a thread, which cannot be cancelled, so the log must be closed in any case.
    stack.push_async_callback(_close, opening)
    store = await asyncio.shield(opening)
    if store.torn is not None:
        log.warning("an incomplete tail was cut off the log and kept in %s", store.torn)
    if store.head_warning is not None:
        log.warning("%s", store.head_warning)
    for lost in store.lost:
        log.warning(
            "records %d to %d were written before and are lost: hints/%s", lost.after + 1, lost.until, lost.name
        )
    sidecar, ingest = await _assemble(home, config, store, identity)
    sidecar.nats = NatsService(home, config.nats, identity.nonce, sidecar.mirrored(identity.now_ms))
    stack.push_async_callback(sidecar.nats.close)
    sidecar.nats.start()
    # Runs in the opposite order: stop migrations, write what is pending, then take a snapshot.
    stack.push_async_callback(sidecar.upkeep.keep_last)
    stack.push_async_callback(ingest.close)
    stack.push_async_callback(sidecar.services.close)
    stack.push_async_callback(sidecar.upkeep.close)
    return sidecar, ingest


async def _close(opening: asyncio.Task[Log]) -> None:
    await asyncio.wait((opening,))
    if opening.exception() is None:
        await opening.result().close()


async def _lock(home: Home, *, wait: bool) -> HomeLock | None:
    """Lock the home. With ``wait``, return None as soon as another sidecar serves it.

    If the lock is held but ``running`` finds no sidecar, one is starting or stopping.
    Returning then could leave the home without a sidecar, so this waits.

    Raises:
        HomeLocked: another process holds it.
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


async def _assemble(home: Home, config: Config, store: Log, identity: Identity) -> tuple[Sidecar, Ingest]:
    state, kept = await restore(store)
    wanted = config.redact
    redact = Redactor(
        wanted.patterns,
        wanted.keys,
        literals=wanted.literals,
        disable=wanted.disable,
        allow=wanted.allow,
        enabled=wanted.enabled,
    )
    translator = Translator(identity, state, clean=redact.clean, hold_s=config.link.hold_seconds)
    ingest = Ingest(store, translator, exclude=config.capture.exclude)
    upkeep = Upkeep(store, state, lambda: ingest.is_quiet, identity.now_ms, kept=kept, config=config.store)
    services = Services(HostTranslator(identity, state, clean=redact.clean), ingest, store.manifest.log_id)
    return Sidecar(home, config, store, ingest, translator, upkeep, services), ingest


async def _run(
    home: Home,
    config: Config,
    sidecar: Sidecar,
    ingest: Ingest,
    idle_exit: bool,
    announce: Callable[[int], None],
) -> str | None:
    """Serve until there is a reason to stop; return it if the log can no longer be written, else None."""
    link = config.link
    identity = system_identity()
    sidecar.boot, sidecar.started_ms = identity.ulid(), identity.now_ms()
    server = sidecar.server = LinkServer(
        sidecar,
        token=home.ensure_token(identity.nonce),
        nonce=identity.nonce,
        boot=sidecar.boot,
        version=VERSION,
        port=link.port,
        window=link.window,
        max_frame_bytes=link.max_frame_bytes,
        max_connections=link.max_connections,
        handshake_seconds=link.handshake_seconds,
    )
    async with server:
        home.write_info(SidecarInfo(os.getpid(), server.port, sidecar.boot, VERSION, PROTOCOL, sidecar.started_ms))
        log.info("serving on port %d, version %s", server.port, VERSION)
        announce(server.port)
        reasons: list[asyncio.Future[Any]] = [asyncio.create_task(sidecar.stopping.wait()), ingest.failed]
        if idle_exit:
            reasons.append(asyncio.create_task(sidecar.wait_idle()))
        spools = asyncio.create_task(sidecar.watch_spools())
        upkeep = asyncio.create_task(sidecar.upkeep.run())
        try:
            await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        finally:
            home.remove_info()
            for task in (spools, upkeep, *reasons[:1], *reasons[2:]):
                task.cancel()
        await server.drain(reason=sidecar.leaving)
    if ingest.failed.done():
        error: StreamError = ingest.failed.result()
        log.error("stopped: %s", error)
        return str(error)
    log.info("stopped")
    return None
