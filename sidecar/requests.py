"""The requests about the sidecar itself, its log and NATS. Other parts register their own requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from bridge.opencode.link.protocol import RequestError
from sidecar.care.export_files import import_export
from sidecar.care.metrics import SidecarMetrics
from sidecar.handler import Sidecar
from sidecar.record.opencode2.http import ServiceGone
from sidecar.registry import Args, NoArgs, Only, Requests
from streams.lineage import MAX_NAME, traceparent
from streams.log.prune_plan import PruneRequest


class PruneArgs(Args):
    request: PruneRequest = Field(description="`older_than_ms`, `max_bytes`, `streams`")


class MarkArgs(Args):
    stream: str = Field(description="the full name of a session's stream")
    mark: Literal["pinned", "unpinned", "named"] = Field(description="`pinned`, `unpinned` or `named`")
    name: str = Field(default="", max_length=MAX_NAME, description="for `named`; empty takes the name away")


class ForgetArgs(Args):
    streams: list[str] = Field(description="full names, forgotten entirely")
    sessions: list[str] = Field(default=[], description="ids, whose records are forgotten in every other stream")


class ImportArgs(Args):
    path: str = Field(description="a file of `export`, absolute")


class SidecarRequests:
    """``clean`` redacts payloads by this home's rules; ``now_ms`` is the time, in ms UTC."""

    def __init__(
        self, sidecar: Sidecar, metrics: SidecarMetrics, clean: Callable[[Any], Any], now_ms: Callable[[], int]
    ) -> None:
        self._sidecar, self._parts = sidecar, sidecar.parts
        self._metrics, self._clean, self._now_ms = metrics, clean, now_ms

    def register(self, requests: Requests, only: Only) -> None:
        sidecar, nats = self._sidecar, self._parts.nats
        requests.register("ping", NoArgs, lambda _: {"boot": sidecar.boot}, "`boot`")
        printed, response = "what `durable-stream status --json` prints", "`text`: the response to `GET /metrics`"
        requests.register("status", NoArgs, lambda _: sidecar.status(), printed)
        requests.register("metrics", NoArgs, lambda _: {"text": self._metrics.text().decode()}, response)
        stopped = "`stopping`, `pid`; `linked` and `headless`: pids of OpenCodes that will start another sidecar"
        requests.register("stop", NoArgs, self.stop, stopped)
        done = "`plan`; `done`: what was removed, or null"
        requests.register("prune", PruneArgs, only("prune", self.prune), done)
        requests.register("forget", ForgetArgs, only("forget", self.forget), "counts of what was replaced")
        requests.register("mark", MarkArgs, self.mark, "`stream`, `pinned`, `title`")
        imported = "`services` that were read, `sessions` that were recorded: their numbers"
        requests.register("import_history", NoArgs, self.import_history, imported)
        counts = "`added`, `known` (already in the log), `forgotten` (and left out): numbers of records"
        requests.register("import_file", ImportArgs, self.import_file, counts)
        address = "`port`, `token`, `server_id` of the embedded server"
        requests.register("nats", NoArgs, lambda _: nats.address(), address)
        requests.register("mirror", NoArgs, lambda _: nats.mirror_status(), "the mirror's progress")
        requests.register("mirror_rebuild", NoArgs, only("rebuild", lambda _: nats.rebuild()), "as `mirror`")

    async def stop(self, args: NoArgs) -> dict[str, Any]:
        """Stop the sidecar, after sending the answer, and each headless OpenCode that has no work.

        Every OpenCode that is left starts another sidecar.
        """
        durable = self._parts.durable
        linked = {link["pid"] for link in self._sidecar.status()["links"]} - durable.headless.pids
        try:
            headless = await durable.rest()
        finally:
            asyncio.get_running_loop().call_soon(self._sidecar.stopping.set)  # only now: the answer goes first
        return {"stopping": True, "pid": os.getpid(), "linked": sorted(linked), "headless": headless}

    async def prune(self, args: PruneArgs) -> dict[str, Any]:
        await self._parts.spools.take()  # record the end of sessions whose OpenCode has died
        upkeep = self._parts.upkeep
        plan, done = await upkeep.to_its_end(upkeep.prune(args.request))
        return {"plan": plan.as_json(), "done": None if done is None else done._asdict()}

    async def forget(self, args: ForgetArgs) -> dict[str, Any]:
        return await self._parts.upkeep.to_its_end(self._forget(args))

    async def _forget(self, args: ForgetArgs) -> dict[str, Any]:
        await self._parts.spools.take()  # the spool of a dead OpenCode may also have items of the session
        upkeep = self._parts.upkeep
        touched = [*args.streams, *await upkeep.streams_beside(args.streams, args.sessions)]
        forgotten = await upkeep.forget(args.streams, args.sessions)
        self._parts.nats.forgotten(touched)
        return forgotten._asdict()

    async def mark(self, args: MarkArgs) -> dict[str, Any]:
        """Record that a person pinned or named a stream. The mark is durable when this method returns."""
        if (own := await self._parts.upkeep.ask(lambda catalog: catalog.own_session(args.stream))) is None:
            raise RequestError("bad-arguments", f"{args.stream!r:.100} is not the stream of a session")
        identity, type_ = self._parts.ingest.host.identity, f"stream.{args.mark}"
        event = identity.stamp(
            {
                "type": type_,
                "stream_id": args.stream,
                "idempotency_key": f"{type_}:{identity.ulid()}",
                "actor": "user",
                "source": {"agent": "sidecar", "adapter": "durable-stream"},
                "traceparent": traceparent(own.id, own.id),
                "payload": self._clean({"name": args.name}) if args.mark == "named" else {},
            }
        )
        await self._parts.ingest.add([event])
        name = own.id
        own = await self._parts.upkeep.ask(lambda catalog: catalog.sessions[name])
        return {"stream": args.stream, "pinned": own.pinned, "title": own.title}

    async def import_history(self, args: NoArgs) -> dict[str, int]:
        try:
            return await self._parts.services.import_history()
        except ServiceGone:
            raise RequestError(
                "opencode-failed", "the OpenCode 2 service stopped during the request; run the command again"
            ) from None

    async def import_file(self, args: ImportArgs) -> dict[str, int]:
        log_id = self._parts.store.manifest.log_id
        return await import_export(Path(args.path), self._parts.ingest.add, self._clean, self._now_ms(), log_id)
