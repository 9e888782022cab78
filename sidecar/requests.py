"""The ``Handler`` of the link server: passes hooks on and answers the command line's requests."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from bridge.nats.jetstream.errors import NatsUnavailable
from bridge.opencode.capture.translate import Origin, Translator
from bridge.opencode.link.frames import PROTOCOL, ByeReason, HookItem
from bridge.opencode.link.link import Refused
from sidecar.capture.ingest import Ingest
from sidecar.capture.spools import backlog, boots, take_left
from sidecar.config import Config
from sidecar.home import Home, is_alive
from sidecar.keeping.upkeep import Upkeep
from sidecar.link.server import LinkServer, RequestError, ShimConnection
from sidecar.nats.service import MirrorSource, NatsService
from sidecar.opencode2.http import ServiceGone
from sidecar.opencode2.services import Services
from sidecar.version import VERSION, is_newer
from streams.errors import StreamError
from streams.identity import system_identity
from streams.log.directory import FORMATS
from streams.log.log import Log
from streams.log.prune_plan import PruneRequest

log = logging.getLogger("sidecar")

SPOOL_SCAN_SECONDS: Final = 15.0
"""How often the sidecar looks for spools of dead processes; it also looks when a link closes."""

DEATH_SCAN_SECONDS: Final = 1.0
"""How often it checks the process of an open turn whose OpenCode has no link: it may have just died."""

_VERSION: Final = re.compile(r"\d[\w.+-]{0,49}", re.ASCII)

MAX_VERSIONS: Final = 16
"""Most OpenCode versions to remember; the one seen longest ago is dropped."""


class Sidecar:
    """The ``Handler`` of the link server, and what it owns. Created by ``serve``."""

    def __init__(
        self,
        home: Home,
        config: Config,
        store: Log,
        ingest: Ingest,
        translator: Translator,
        upkeep: Upkeep,
        services: Services,
    ) -> None:
        self.upkeep, self.services = upkeep, services
        self.boot = ""
        self.server: LinkServer | None = None
        self.nats: NatsService | None = None
        self.stopping = asyncio.Event()
        self.leaving: ByeReason = "draining"
        self.started_ms = 0
        self._home, self._config, self._store = home, config, store
        self._ingest, self._translator = ingest, translator
        self._scan = asyncio.Event()
        self._taking = asyncio.Lock()
        self._is_uncertain = False
        self._versions: dict[str, int] = {}  # OpenCode's, with when it was last seen, in that order
        self._refused: dict[str, Any] | None = None
        self._config_text = _content(home.config_path)

    # What the link server calls

    async def opened(self, link: ShimConnection) -> None:
        """See ``links.Handler``."""
        self._ingest.opened(link)
        self.services.opened(link.boot_id, link.instance, link.identity.service)
        link.push_context({"lossy": self.nats is not None and self.nats.wants_deltas})
        self._note_version(link.opencode_version)
        version = _shown(link.opencode_version)
        log.info("link opened: pid %d, instance %s, OpenCode %s", link.pid, link.instance, version)

    async def hooks(self, link: ShimConnection, first_seq: int, items: list[HookItem]) -> None:
        """See ``links.Handler``. Returns at once; the items are finished when they are durable."""
        if not link.opencode_version:
            self._learn_version(link, items)
        self._ingest.take(Origin(link.boot_id, link.instance, link.pid), first_seq, items, link)

    def lossy(self, link: ShimConnection, items: list[HookItem]) -> None:
        """See ``links.Handler``. These are token deltas: never stored, published while NATS is connected."""
        self._translator.counts["lossy"] += len(items)
        if self.nats is not None:
            self.nats.deltas(items)

    async def closed(self, link: ShimConnection) -> None:
        """See ``links.Handler``."""
        self._ingest.closed(link)
        self.services.closed(link.boot_id, link.instance)
        self._scan.set()
        log.info("link closed: pid %d, instance %s (%s)", link.pid, link.instance, link.reason or "lost")
        if link.reason == "upgrade" and is_newer(link.shim_version, VERSION):
            self._make_room(link.shim_version, link.pid)

    def refused(self, peer: Refused) -> None:
        """See ``links.Handler``. If the plugin is newer, this sidecar stops so that the plugin can start its own."""
        who = "plugin" if peer.role == "shim" else "command"
        log.warning(
            "refused a %s (%s, pid %d): it speaks link protocol %d, this sidecar %d",
            who,
            _shown(peer.version),
            peer.pid,
            peer.protocol,
            PROTOCOL,
        )
        if peer.role != "shim":
            return
        if peer.protocol > PROTOCOL:
            self._make_room(peer.version, peer.pid)
            return
        self._refused = {
            "pid": peer.pid,
            "shim_version": peer.version,
            "protocol": peer.protocol,
            "at_ms": system_identity().now_ms(),
        }

    def _make_room(self, version: str, pid: int) -> None:
        if not self.stopping.is_set():
            log.info("leaving: a newer plugin (%s, pid %d) starts its own sidecar", _shown(version), pid)
            self.leaving = "upgrade"
            self.stopping.set()

    def _learn_version(self, link: ShimConnection, items: list[HookItem]) -> None:
        """Read OpenCode's version from a session, because the plugin learns it late."""
        for item in items:
            try:
                version = item.input["event"]["properties"]["info"]["version"]
            except (LookupError, TypeError):
                continue
            if isinstance(version, str) and _VERSION.fullmatch(version):
                link.opencode_version = version
                self._note_version(version)
                return

    def _note_version(self, version: str) -> None:
        if not version:
            return
        last = next(reversed(self._versions), version)
        if last != version:
            log.info("OpenCode %s is linked; the last one was %s", _shown(version), _shown(last))
        self._versions.pop(version, None)
        self._versions[version] = system_identity().now_ms()
        if len(self._versions) > MAX_VERSIONS:
            del self._versions[next(iter(self._versions))]

    async def request(self, method: str, args: dict[str, Any]) -> Any:
        """See ``links.Handler``: answer a request of the command line."""
        try:
            return await self._requested(method, args)
        except StreamError as error:
            # The text is meant for the caller.
            raise RequestError(error.code, str(error)) from None
        except OSError as error:
            log.warning("request %s failed: %s", method[:40], error)
            where = f"{error.filename}: " if error.filename else ""
            told = f"the sidecar could not read or write its files: {where}{error.strerror or error}"
            hint = "check that its disk has space, is writable and works, then run the same command again"
            raise RequestError("disk-error", f"{told}; {hint}") from None

    async def _requested(self, method: str, args: dict[str, Any]) -> Any:
        match method:
            case "ping":
                return {"boot": self.boot}
            case "status":
                return self.status()
            case "stop":
                asyncio.get_running_loop().call_soon(self.stopping.set)
                return {"stopping": True, "pid": os.getpid()}
            case "migrate":
                if args.get("to") not in FORMATS:
                    raise RequestError("bad-arguments", "name the backend to move to: jsonl or sqlite")
                return self.upkeep.migrate(args["to"])
            case "migration":
                return self.upkeep.migration()
            case "discard_old":
                return {"freed": await self.upkeep.discard()}
            case "prune":
                return await self._prune(args)
            case "forget":
                streams, sessions = _names(args.get("streams")), _names(args.get("sessions", []))
                if streams is None or sessions is None:
                    raise RequestError("bad-arguments", "name the streams and sessions to forget")
                await self._take_spools()  # the spool of an OpenCode that died may belong to the session too
                touched = [*streams, *await self.upkeep.streams_beside(streams, sessions)]
                forgotten = await self.upkeep.forget(streams, sessions)
                if self.nats is not None:
                    self.nats.forgotten(touched)
                return forgotten._asdict()
            case "import_history":
                return await self._import_history()
            case "nats" | "mirror" | "mirror_rebuild" | "mirror_rebuilding":
                return await self._ask_nats(method)
        raise RequestError("unknown-request", f"this sidecar does not know {method[:40]!r}: upgrade it")

    async def _import_history(self) -> dict[str, int]:
        try:
            return await self.services.import_history()
        except ServiceGone:
            raise RequestError("opencode-failed", "the service of OpenCode 2 ended meanwhile: run it again") from None

    async def _ask_nats(self, method: str) -> dict[str, Any]:
        try:
            if self.nats is None:
                raise NatsUnavailable("NATS is not started yet", "try again in a moment")
            match method:
                case "nats":
                    return await self.nats.address()
                case "mirror":
                    return self.nats.mirror_status()
                case "mirror_rebuild":
                    return self.nats.rebuild()
            return self.nats.rebuilding()
        except NatsUnavailable as error:
            raise RequestError(error.code, str(error)) from None

    async def _prune(self, args: dict[str, Any]) -> dict[str, Any]:
        try:
            request = TypeAdapter(PruneRequest).validate_python(args.get("request"))
        except ValidationError as error:
            raise RequestError("bad-arguments", f"invalid prune request: {error.error_count()} faults") from None
        await self._take_spools()  # a session whose OpenCode died is finished then
        plan, done = await self.upkeep.prune(request)
        return {"plan": plan.as_json(), "done": None if done is None else done._asdict()}

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
            "config_changed": _content(self._home.config_path) != self._config_text,
            "links": [self._link_status(link) for link in self.server.links],
            "services": self.services.status(),
            "opencode_versions": [{"version": v, "linked_ms": ms} for v, ms in reversed(self._versions.items())],
            "refused_plugin": self._refused if self._refused and is_alive(self._refused["pid"]) else None,
            "door": asdict(self.server.counters),
            "counts": {
                **dict(sorted((self._translator.counts + self.services.translator.counts).items())),
                "appended": self._ingest.appended,
                "duplicates": self._ingest.duplicates,
                "differences": self._store.differences,
                "excluded": self._ingest.excluded,
                "kept_over_limit": self.upkeep.kept_over_limit,
            },
            "log": {
                "head": self._store.head,
                "backend": self._store.backend,
                "torn": str(self._store.torn) if self._store.torn else None,
                "segments": self.upkeep.segments(),
            },
            "migration": self.upkeep.migration(),
            "spool": {"files": spool.files, "bytes": spool.bytes},
            "held": self._ingest.held,
            "gaps": self._translator.counts["gaps"] + self.services.translator.counts["gaps"],
            "nats": self.nats.status() if self.nats is not None else None,
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
            "service": link.identity.service,
        }

    # What the mirror needs

    def mirrored(self, now_ms: Callable[[], int]) -> MirrorSource:
        """The source that the NATS mirror copies."""
        return MirrorSource(
            self._store, self._store.manifest.log_id, now_ms, self._translator.state.turn_of, self._translator.clean
        )

    # Background tasks

    async def watch_spools(self) -> None:
        """Record the spools of dead processes at the start, after each closed link, and periodically."""
        while True:
            self._scan.clear()
            await self._take_spools()
            try:
                async with asyncio.timeout(DEATH_SCAN_SECONDS if self._is_uncertain else SPOOL_SCAN_SECONDS):
                    await self._scan.wait()
            except TimeoutError:
                continue

    async def _take_spools(self) -> int:
        """Take in what dead processes left, then end their turns."""
        async with self._taking:
            taken = await take_left(self._home.spool_path, self._ingest)
            unlinked = self._ingest.dead()
            # Looked for after the process was found dead: it can leave no further spool.
            spooled = await asyncio.to_thread(boots, self._home.spool_path) if unlinked else set()
            over = {boot for boot, dead in unlinked.items() if dead and boot not in spooled}
            over = {boot for boot in over if not self._ingest.holds(boot)}
            self._is_uncertain = over != set(unlinked)
            if over:
                await self._ingest.end_turns(over)
        if taken:
            log.info("took %d items from spools", taken)
        return taken

    async def wait_idle(self) -> None:
        """Return after the configured time without a link and without work.

        Work means items that are not durable yet, and spools whose process is gone. The spool of a running process
        does not count: its shim sends it, and starts a sidecar if it needs one.
        """
        loop = asyncio.get_running_loop()
        limit = self._config.link.idle_exit_seconds
        idle_since = loop.time()
        while True:
            await asyncio.sleep(max(0.0, min(idle_since + limit - loop.time(), 1.0)))
            # Check the spools once more before leaving; a peer may connect meanwhile.
            if self._is_owing() or (
                loop.time() - idle_since >= limit and (await self._take_spools() or self._is_owing())
            ):
                idle_since = loop.time()
            elif loop.time() - idle_since >= limit:
                return

    def _is_owing(self) -> bool:
        assert self.server is not None
        return bool(self.server.connections or self._ingest.held or self._taking.locked() or self.upkeep.is_busy)


def _content(path: Path) -> bytes:
    """What is in a small file; empty if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _shown(version: str) -> str:
    """Return the version if it is safe to log, else "unknown": a peer could send any text as its version."""
    return version if _VERSION.fullmatch(version) else "unknown"


def _names(given: Any) -> list[str] | None:
    """Return ``given`` if it is a list of strings, else None."""
    return given if isinstance(given, list) and all(isinstance(name, str) for name in given) else None
