"""The requests about the sidecar itself, its log and NATS. Other parts register their own requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field

from bridge.opencode.link.link import RequestError
from sidecar.care.exported import ExportError, import_export
from sidecar.care.metrics import SidecarMetrics
from sidecar.care.upkeep import Upkeep
from sidecar.handler import Sidecar
from sidecar.mirror.service import NatsService
from sidecar.record.ingest import Ingest
from sidecar.record.opencode2.http import ServiceGone
from sidecar.record.opencode2.services import Services
from sidecar.record.watching import SpoolWatch
from sidecar.registry import Args, NoArgs, Requests
from streams.log.directory import Backend
from streams.log.prune_plan import PruneRequest


class MigrateArgs(Args):
    """See ``LogRequests.migrate``."""

    to: Backend = Field(description="`jsonl` or `sqlite`")


class PruneArgs(Args):
    """See ``LogRequests.prune``."""

    request: PruneRequest = Field(description="`older_than_ms`, `max_bytes`, `streams`")


class ForgetArgs(Args):
    """See ``LogRequests.forget``."""

    streams: list[str] = Field(description="full names, forgotten entirely")
    sessions: list[str] = Field(default=[], description="ids, whose records are forgotten in every other stream")


class ImportArgs(Args):
    """See ``ImportRequests.file``."""

    path: str = Field(description="a file of `export`, absolute")


class SidecarRequests:
    """The requests about the process."""

    def __init__(self, sidecar: Sidecar, metrics: SidecarMetrics) -> None:
        self._sidecar, self._metrics = sidecar, metrics

    def register(self, requests: Requests) -> None:
        """Add these requests to the table."""
        requests.register("ping", NoArgs, self.ping, "`boot`")
        requests.register("status", NoArgs, self.status, "what `durable-stream status --json` prints")
        requests.register("metrics", NoArgs, self.metrics, "`text`: the response to `GET /metrics`")
        requests.register(
            "stop",
            NoArgs,
            self.stop,
            "`stopping`, `pid`; `linked` and `headless`: pids of OpenCodes that will start another sidecar",
        )

    async def ping(self, args: NoArgs) -> dict[str, Any]:
        """Name this run of the sidecar."""
        return {"boot": self._sidecar.boot}

    async def status(self, args: NoArgs) -> dict[str, Any]:
        """Report the status of every part."""
        return self._sidecar.status()

    async def metrics(self, args: NoArgs) -> dict[str, Any]:
        """Return all metrics in the Prometheus text format."""
        return {"text": self._metrics.text().decode()}

    async def stop(self, args: NoArgs) -> dict[str, Any]:
        """Stop the sidecar, after sending the answer, and the headless OpenCode, unless it has work.

        Every OpenCode that is left starts another sidecar.
        """
        asyncio.get_running_loop().call_soon(self._sidecar.stopping.set)
        durable, headless = self._sidecar.durable, None
        linked = {link["pid"] for link in self._sidecar.status()["links"]}
        if durable is not None and durable.headless.pid is not None:
            linked -= durable.headless.pids
            if durable.owes():
                headless = durable.headless.pid
            else:
                await durable.headless.stop()
        return {"stopping": True, "pid": os.getpid(), "linked": sorted(linked), "headless": headless}


class LogRequests:
    """The requests that migrate the log or remove records from it."""

    def __init__(self, upkeep: Upkeep, spools: SpoolWatch, nats: NatsService) -> None:
        self._upkeep, self._spools, self._nats = upkeep, spools, nats

    def register(self, requests: Requests) -> None:
        """Add these requests to the table."""
        requests.register("migrate", MigrateArgs, self.migrate, "as `migration`")
        requests.register("migration", NoArgs, self.migration, "the state of the current or last migration")
        freed = "`freed`: bytes"
        requests.register("discard_old", NoArgs, self.discard_old, freed)
        requests.register("prune", PruneArgs, self.prune, "`plan`; `done`: what was removed, or null")
        requests.register("forget", ForgetArgs, self.forget, "counts of what was replaced")

    async def migrate(self, args: MigrateArgs) -> dict[str, Any]:
        """Begin to migrate the log to another backend."""
        return self._upkeep.migrate(args.to)

    async def migration(self, args: NoArgs) -> dict[str, Any]:
        """Report the progress of the migration."""
        return self._upkeep.migration()

    async def discard_old(self, args: NoArgs) -> dict[str, Any]:
        """Delete the old store that a migration left."""
        return {"freed": await self._upkeep.discard()}

    async def prune(self, args: PruneArgs) -> dict[str, Any]:
        """Remove old streams."""
        await self._spools.take()  # record the end of sessions whose OpenCode has died
        plan, done = await self._upkeep.prune(args.request)
        return {"plan": plan.as_json(), "done": None if done is None else done._asdict()}

    async def forget(self, args: ForgetArgs) -> dict[str, Any]:
        """Replace payloads by their digests."""
        await self._spools.take()  # the spool of a dead OpenCode may also have items of the session
        touched = [*args.streams, *await self._upkeep.streams_beside(args.streams, args.sessions)]
        forgotten = await self._upkeep.forget(args.streams, args.sessions)
        self._nats.forgotten(touched)
        return forgotten._asdict()


class ImportRequests:
    """The requests that import sessions from elsewhere."""

    def __init__(
        self, ingest: Ingest, services: Services, clean: Callable[[Any], Any], now_ms: Callable[[], int], log_id: str
    ) -> None:
        self._ingest, self._services, self._clean, self._now_ms = ingest, services, clean, now_ms
        self._log_id = log_id

    def register(self, requests: Requests) -> None:
        """Add these requests to the table."""
        imported = "`services` that were read, `sessions` that were recorded: their numbers"
        requests.register("import_history", NoArgs, self.import_history, imported)
        counts = "`added`, `known` (already in the log), `forgotten` (and left out): numbers of records"
        requests.register("import_file", ImportArgs, self.file, counts)

    async def import_history(self, args: NoArgs) -> dict[str, int]:
        """Record the old sessions of the OpenCode 2 services."""
        try:
            return await self._services.import_history()
        except ServiceGone:
            raise RequestError(
                "opencode-failed", "the OpenCode 2 service stopped during the request; run the command again"
            ) from None

    async def file(self, args: ImportArgs) -> dict[str, int]:
        """Record the content of an export."""
        try:
            path, add = Path(args.path), self._ingest.add
            imported = await import_export(path, add, self._clean, self._now_ms(), self._log_id)
        except ExportError as error:
            raise RequestError(error.code, error.reason) from None
        return imported._asdict()


class NatsRequests:
    """The requests about NATS and the mirror."""

    def __init__(self, nats: NatsService) -> None:
        self._nats = nats

    def register(self, requests: Requests) -> None:
        """Add these requests to the table."""
        requests.register("nats", NoArgs, self.address, "`port`, `token`, `server_id` of the embedded server")
        requests.register("mirror", NoArgs, self.mirror, "the mirror's progress")
        requests.register("mirror_rebuild", NoArgs, self.rebuild, "as `mirror_rebuilding`")
        requests.register("mirror_rebuilding", NoArgs, self.rebuilding, "the state of the current or last rebuild")

    async def address(self, args: NoArgs) -> dict[str, Any]:
        """Return how to reach the embedded server."""
        return await self._nats.address()

    async def mirror(self, args: NoArgs) -> dict[str, Any]:
        """Report the state of the mirror."""
        return self._nats.mirror_status()

    async def rebuild(self, args: NoArgs) -> dict[str, Any]:
        """Begin to publish the whole log again."""
        return self._nats.rebuild()

    async def rebuilding(self, args: NoArgs) -> dict[str, Any]:
        """Report the progress of the rebuild."""
        return self._nats.rebuilding()


def register_requests(
    sidecar: Sidecar,
    upkeep: Upkeep,
    spools: SpoolWatch,
    nats: NatsService,
    services: Services,
    metrics: SidecarMetrics,
    ingest: Ingest,
    clean: Callable[[Any], Any],
    now_ms: Callable[[], int],
    log_id: str,
) -> None:
    """Add all requests of this module to the sidecar's table."""
    groups = (
        SidecarRequests(sidecar, metrics),
        LogRequests(upkeep, spools, nats),
        ImportRequests(ingest, services, clean, now_ms, log_id),
        NatsRequests(nats),
    )
    for group in groups:
        group.register(sidecar.requests)
