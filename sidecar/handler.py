"""The ``Handler`` of the link server: passes hooks on, and reports the sidecar's status."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from bridge.opencode.capture import shapes
from bridge.opencode.capture.shapes import mapping
from bridge.opencode.capture.translate import Origin, Translator
from bridge.opencode.link.frames import PROTOCOL, ByeReason, HookItem
from bridge.opencode.link.protocol import Refused
from sidecar.background.service import BackgroundWork
from sidecar.background.tool_calls import ToolCalls
from sidecar.care.upkeep import Upkeep
from sidecar.home import Home, is_alive
from sidecar.link.server import LinkServer, ShimConnection
from sidecar.mirror.service import NatsService
from sidecar.record.back_fill import BackFill
from sidecar.record.backlog import backlog
from sidecar.record.ingest import Ingest
from sidecar.record.opencode2.registration import place_of
from sidecar.record.opencode2.services import Services
from sidecar.record.watching import SpoolWatch
from sidecar.registry import Requests
from sidecar.version import VERSION, is_newer
from sidecar.worker import Worker
from streams.identity import Identity
from streams.log.log import Log

if TYPE_CHECKING:
    from sidecar.care.scraping import Scraping
    from sidecar.care.tracing import Tracing
    from sidecar.team.task import Team

log = logging.getLogger("sidecar")

_VERSION: Final = re.compile(r"\d[\w.+-]{0,49}", re.ASCII)

MAX_VERSIONS: Final = 16
"""Maximum number of OpenCode versions to remember. The version that has not been seen for the longest time is dropped
first.
"""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a sidecar runs."""

    store: Log
    translator: Translator
    ingest: Ingest
    back_fill: BackFill
    upkeep: Upkeep
    spools: SpoolWatch
    nats: NatsService
    services: Services
    worker: Worker
    durable: BackgroundWork
    tools: ToolCalls
    tracing: Tracing | None
    scraping: Scraping | None
    team: Team | None


class Sidecar:
    """A running sidecar, which is the ``Handler`` of its link server. ``requests`` is the table of requests, ``token``
    that of the home, and ``port`` the one to listen on; 0 takes any."""

    def __init__(
        self, home: Home, identity: Identity, stopping: asyncio.Event, parts: Parts, *, token: str, port: int
    ) -> None:
        self.boot, self.started_ms = identity.ulid(), identity.now_ms()
        self.parts, self.requests = parts, Requests()
        self.server = LinkServer(
            self, token=token, nonce=identity.nonce, boot=self.boot, version=VERSION, port=port, home=home.path
        )
        self.stopping = stopping
        self.leaving: ByeReason = "draining"
        parts.durable.reservations.changed = self.push_context
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._home, self._now_ms = home, identity.now_ms
        self._versions: dict[str, int] = {}  # when each OpenCode version was last seen, oldest first
        self._refused: dict[str, Any] | None = None
        self._config_text = _content(home.config_path)
        self._learned = WeakKeyDictionary[ShimConnection, str]()
        """OpenCode's version by link, where the plugin did not know it when it connected."""

    # --- what the link server calls ---

    async def opened(self, link: ShimConnection) -> None:
        self.parts.ingest.opened(link)
        if service := link.identity.service:
            self.parts.services.opened(_origin(link), service, link.identity.scope, link.last_seq)
        link.push_context(self._context())
        self._note_version(link.opencode_version)
        version = _shown(link.opencode_version)
        log.info("link opened: pid %d, instance %s, OpenCode %s", link.pid, link.instance, version)

    def push_context(self) -> None:
        """Tell all plugins what they must know at once when OpenCode calls a hook."""
        for link in self.server.links:
            link.push_context(self._context())

    def _context(self) -> dict[str, Any]:
        return {"lossy": self.parts.nats.wants_deltas, **self.parts.durable.reservations.context()}

    async def hooks(self, link: ShimConnection, first_seq: int, items: list[HookItem]) -> None:
        """See ``links.Handler``. Returns at once; the items are finished when they are durable."""
        if not self._version_of(link):
            self._learn_version(link, items)
        self.parts.ingest.take(_origin(link), first_seq, items, link)

    def lossy(self, link: ShimConnection, items: list[HookItem]) -> None:
        """See ``links.Handler``. The items are token deltas: never stored, published while NATS is connected."""
        self.parts.translator.counts["lossy"] += len(items)
        self.parts.nats.deltas(items)

    async def tool(self, link: ShimConnection, name: str, args: dict[str, Any], context: dict[str, Any]) -> Any:
        return await self.parts.tools.call(link, name, args, context)

    async def ready(self, link: ShimConnection) -> None:
        await self.parts.durable.observe(link)

    async def closed(self, link: ShimConnection) -> None:
        self.parts.ingest.closed(link)
        self.parts.services.closed(_origin(link))
        self.parts.spools.wake()
        log.info("link closed: pid %d, instance %s (%s)", link.pid, link.instance, link.reason or "lost")
        if link.reason == "upgrade" and is_newer(link.shim_version, VERSION):
            self._make_room(link.shim_version, link.pid)

    def refused(self, peer: Refused) -> None:
        """See ``links.Handler``. If the plugin is newer, this sidecar stops so that the plugin can start its own."""
        who = "plugin" if peer.role == "shim" else "command"
        log.warning(
            "refused a %s (%s, pid %d): it speaks link protocol %d, but this sidecar speaks %d",
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
            "at_ms": self._now_ms(),
        }

    def _make_room(self, version: str, pid: int) -> None:
        if not self.stopping.is_set():
            log.info("exiting so that a newer plugin (%s, pid %d) can start its own sidecar", _shown(version), pid)
            self.leaving = "upgrade"
            self.stopping.set()

    def _learn_version(self, link: ShimConnection, items: list[HookItem]) -> None:
        """Read OpenCode's version from a session, because the plugin learns the version late."""
        for item in items:
            source, _, properties = shapes.read(item)
            version = mapping(shapes.session_info(source, properties)).get("version")
            if isinstance(version, str) and _VERSION.fullmatch(version):
                self._learned[link] = version
                self._note_version(version)
                return

    def _version_of(self, link: ShimConnection) -> str:
        return link.opencode_version or self._learned.get(link, "")

    def _note_version(self, version: str) -> None:
        if not version:
            return
        last = next(reversed(self._versions), version)
        if last != version:
            log.info("OpenCode %s is connected; the last one was %s", _shown(version), _shown(last))
        self._versions.pop(version, None)
        self._versions[version] = self._now_ms()
        if len(self._versions) > MAX_VERSIONS:
            del self._versions[next(iter(self._versions))]

    async def request(self, method: str, args: dict[str, Any]) -> Any:
        """See ``links.Handler``: answer a request of the command line."""
        return await self.requests.answer(method, args)

    def status(self) -> dict[str, Any]:
        """Everything that ``durable-stream status`` shows."""
        parts, headless = self.parts, self.parts.durable.headless
        return {
            "sidecar": {
                "pid": os.getpid(),
                "port": self.server.port,
                "boot": self.boot,
                "version": VERSION,
                "started_ms": self.started_ms,
                "uptime_ms": round((self._loop.time() - self._started) * 1000),
            },
            "config_changed": _content(self._home.config_path) != self._config_text,
            "links": [self._link_status(link) for link in self.server.links],
            "headless": sorted(headless.pids),
            "silent": headless.silent,
            "hung": headless.killed,
            "services": parts.services.status(),
            "not_compared": parts.services.not_compared,
            "opencode_versions": [{"version": v, "linked_ms": ms} for v, ms in reversed(self._versions.items())],
            "refused_plugin": self._refused if self._refused and is_alive(self._refused["pid"]) else None,
            "door": asdict(self.server.counters),
            "counts": {
                **dict(sorted((parts.translator.counts + parts.services.translator.counts).items())),
                "appended": parts.ingest.appended,
                "duplicates": parts.ingest.duplicates,
                "differences": parts.store.differences,
                "excluded": parts.ingest.excluded + parts.services.translator.counts["excluded"],
                "kept_over_limit": parts.upkeep.kept_over_limit,
            },
            "log": {
                "head": parts.store.head,
                "torn": str(parts.store.torn) if parts.store.torn else None,
                "journal": parts.store.waiting(),
            },
            "spool": backlog(self._home.spool_path),
            "waiting": parts.ingest.waiting,
            "gaps": parts.translator.counts["gaps"] + parts.services.translator.counts["gaps"],
            "nats": parts.nats.status(),
            "otel": parts.tracing.status() if parts.tracing is not None else None,
            "team": parts.team.status() if parts.team is not None else None,
            "pages": {
                "metrics": parts.scraping.status() if parts.scraping is not None else None,
                "answers": parts.durable.people.page.status(),
            },
            "worker": parts.worker.status(),
        }

    def _link_status(self, link: ShimConnection) -> dict[str, Any]:
        return {
            "boot_id": link.boot_id,
            "instance": link.instance,
            "pid": link.pid,
            "directory": link.directory,
            "project": link.project,
            "opencode_version": self._version_of(link),
            "shim_version": link.shim_version,
            "delivers": self.parts.ingest.delivers(link),
            "service": link.identity.service,
        }


def _origin(link: ShimConnection) -> Origin:
    service = link.identity.service
    return Origin(link.boot_id, link.instance, link.here, place_of(Path(service)) if service else "")


def _content(path: Path) -> bytes:
    """The content of a small file; empty if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _shown(version: str) -> str:
    """``version`` if it is safe to log, because a peer could send any text as its version."""
    return version if _VERSION.fullmatch(version) else "unknown"
