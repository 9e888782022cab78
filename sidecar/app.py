"""The sidecar's composition root: one home, one log, one listening port.

Starts everything in order, waits for a reason to stop, and takes everything
down in the opposite order. Nothing here decides about hooks or events.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from logging.handlers import RotatingFileHandler
from typing import Any, Final

from bridge.opencode.frames import PROTOCOL, HookItem
from bridge.opencode.redact import Redactor
from bridge.opencode.state import CaptureState
from bridge.opencode.translate import Origin, Translator
from sidecar.config import Config
from sidecar.home import Home, HomeLocked, SidecarInfo
from sidecar.ingest import Ingest
from sidecar.server import LinkServer, RequestError, ShimConnection
from sidecar.spools import backlog, take_dead
from sidecar.version import VERSION
from streams.errors import StreamError
from streams.identity import Identity, system_identity
from streams.stores.jsonl import JsonlStore

log = logging.getLogger("sidecar")

SPOOL_SCAN_SECONDS: Final = 15.0
"""How often spools of dead processes are looked for; also when a link closes."""


class Sidecar:
    """The ``Handler`` behind the link server, and what it owns. Made by ``serve``."""

    def __init__(self, home: Home, config: Config, store: JsonlStore, ingest: Ingest, translator: Translator) -> None:
        self.boot = ""
        self.server: LinkServer | None = None
        self.stopping = asyncio.Event()
        self.started_ms = 0
        self._home, self._config, self._store = home, config, store
        self._ingest, self._translator = ingest, translator
        self._scan = asyncio.Event()
        self._busy_until = asyncio.get_running_loop().time()

    # What the link server calls

    async def opened(self, link: ShimConnection) -> None:
        """See ``links.Handler``."""
        self._ingest.opened(link)
        link.push_context({"lossy": False})
        log.info("link opened: pid %d, instance %s, OpenCode %s", link.pid, link.instance, link.opencode_version)

    async def hooks(self, link: ShimConnection, first_seq: int, items: list[HookItem]) -> None:
        """See ``links.Handler``. Returns at once; items are finished when durable."""
        self._ingest.take(Origin(link.boot_id, link.instance), first_seq, items, link)

    def lossy(self, link: ShimConnection, items: list[HookItem]) -> None:
        """See ``links.Handler``. Nobody listens to deltas yet."""
        self._translator.counts["lossy"] += len(items)

    async def closed(self, link: ShimConnection) -> None:
        """See ``links.Handler``."""
        self._ingest.closed(link)
        self._scan.set()
        log.info("link closed: pid %d, instance %s (%s)", link.pid, link.instance, link.reason or "lost")

    async def request(self, method: str, args: dict[str, Any]) -> Any:
        """See ``links.Handler``: the command line's ``ping``, ``status`` and ``stop``."""
        match method:
            case "ping":
                return {"boot": self.boot}
            case "status":
                return self.status()
            case "stop":
                asyncio.get_running_loop().call_soon(self.stopping.set)
                return {"stopping": True, "pid": os.getpid()}
        raise RequestError("unknown_method", f"this sidecar does not know {method[:40]!r}: upgrade it")

    def status(self) -> dict[str, Any]:
        """Everything ``durable-stream status`` shows."""
        assert self.server is not None
        spool = backlog(self._home.spool_path)
        now_ms = system_identity().now_ms()
        return {
            "sidecar": {
                "pid": os.getpid(),
                "port": self.server.port,
                "boot": self.boot,
                "version": VERSION,
                "started_ms": self.started_ms,
                "uptime_ms": now_ms - self.started_ms,
            },
            "links": [self._link_status(link) for link in self.server.links],
            "counts": {
                **dict(sorted(self._translator.counts.items())),
                "appended": self._ingest.appended,
                "duplicates": self._ingest.duplicates,
                "differences": self._store.differences,
                "excluded": self._ingest.excluded,
            },
            "log": {"head": self._store.head, "torn": str(self._store.torn) if self._store.torn else None},
            "spool": {"files": spool.files, "bytes": spool.bytes},
            "held": self._ingest.held,
            "gaps": self._translator.counts["gaps"],
        }

    def _link_status(self, link: ShimConnection) -> dict[str, Any]:
        return {
            "boot_id": link.boot_id,
            "instance": link.instance,
            "pid": link.pid,
            "directory": link.directory,
            "project": link.project,
            "opencode_version": link.opencode_version,
            "shim_version": link.shim_version,
            "delivers": self._ingest.delivers(link),
        }

    # What runs beside the links

    async def watch_spools(self) -> None:
        """Take in dead processes' spools: at the start, after each closed link, and from time to time."""
        while True:
            self._scan.clear()
            taken = await take_dead(self._home.spool_path, self._ingest)
            if taken:
                log.info("took %d items from spools", taken)
            try:
                async with asyncio.timeout(SPOOL_SCAN_SECONDS):
                    await self._scan.wait()
            except TimeoutError:
                continue

    async def wait_idle(self) -> None:
        """Return when nobody was linked and nothing was owed for the configured time."""
        loop = asyncio.get_running_loop()
        idle_since = loop.time()
        limit = self._config.link.idle_exit_seconds
        while (idle := loop.time() - idle_since) < limit:
            await asyncio.sleep(min(limit - idle, 1.0))
            assert self.server is not None
            if self.server.connections or self._ingest.held:
                idle_since = loop.time()


async def serve(
    home: Home, config: Config, *, idle_exit: bool = False, announce: Callable[[int], None] = lambda port: None
) -> int:
    """Run a sidecar until it is stopped; returns the exit code.

    SIGTERM, SIGINT and the request ``stop`` drain it: 0. A log that cannot be
    written any more ends it with 1, so that a shim starts a fresh one, which
    verifies the tail. ``idle_exit`` is how shims start it: it leaves when idle,
    and silently when another one already serves the home. ``announce`` is told the
    port once everything is ready.

    Raises:
        HomeError, StreamError, OSError: it could not start; nothing was changed.
    """
    home.create()
    identity = system_identity()
    async with AsyncExitStack() as stack:
        try:
            stack.enter_context(home.lock())
        except HomeLocked:
            if idle_exit:
                return 0
            raise
        _log_to(home, stack)
        store = await JsonlStore.open(home.store_path, identity, segment_bytes=config.store.segment_bytes)
        stack.push_async_callback(store.close)
        if store.torn is not None:
            log.warning("an incomplete tail was cut off the log and kept in %s", store.torn)
        if store.head_lost:
            log.warning("the head file was missing or damaged: records lost at the log's very end would not be noticed")
        sidecar, ingest = await _assemble(home, config, store, identity)
        stack.push_async_callback(ingest.close)
        return await _run(home, config, sidecar, ingest, identity, idle_exit, announce)


async def _assemble(home: Home, config: Config, store: JsonlStore, identity: Identity) -> tuple[Sidecar, Ingest]:
    state = CaptureState()
    async for record in store.read_all():
        state.apply(record.event)
    redact = Redactor(config.redact.patterns, config.redact.keys, enabled=config.redact.enabled)
    translator = Translator(identity, state, clean=redact.clean, hold_s=config.link.hold_seconds)
    ingest = Ingest(store, translator, exclude=config.capture.exclude)
    return Sidecar(home, config, store, ingest, translator), ingest


async def _run(
    home: Home,
    config: Config,
    sidecar: Sidecar,
    ingest: Ingest,
    identity: Identity,
    idle_exit: bool,
    announce: Callable[[int], None],
) -> int:
    link = config.link
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
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, sidecar.stopping.set)
    async with server:
        home.write_info(SidecarInfo(os.getpid(), server.port, sidecar.boot, VERSION, PROTOCOL, sidecar.started_ms))
        log.info("serving on port %d, version %s", server.port, VERSION)
        announce(server.port)
        reasons: list[asyncio.Future[Any]] = [asyncio.create_task(sidecar.stopping.wait()), ingest.failed]
        if idle_exit:
            reasons.append(asyncio.create_task(sidecar.wait_idle()))
        spools = asyncio.create_task(sidecar.watch_spools())
        try:
            await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        finally:
            home.remove_info()
            for task in (spools, *reasons[:1], *reasons[2:]):
                task.cancel()
    if ingest.failed.done():
        error: StreamError = ingest.failed.result()
        log.error("stopped: %s", error)
        return 1
    log.info("stopped")
    return 0


def note_failure(home: Home, error: Exception) -> None:
    """Write why a sidecar could not start or go on into its log, if there is a home to write into."""
    with suppress(OSError), ExitStack() as stack:
        _log_to(home, stack)
        log.error("could not serve: %s", error if str(error) else type(error).__name__)


def _log_to(home: Home, stack: AsyncExitStack | ExitStack) -> None:
    """The sidecar's own log: rotated, mode 0600, never payloads."""
    fd = os.open(home.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    os.close(fd)
    handler = RotatingFileHandler(home.log_path, maxBytes=1024 * 1024, backupCount=2, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("sidecar")
    root.setLevel(logging.INFO)
    root.addHandler(handler)

    def close() -> None:
        root.removeHandler(handler)
        handler.close()

    stack.callback(close)
