"""A home whose log is mirrored on a real server, and damage to the copy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NotFound
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import EVENTS, UNLIMITED
from bridge.nats.jetstream.streams import StreamMessage, read_back
from bridge.opencode.capture.translate import Translator
from sidecar.home import Home
from sidecar.mirror.follower import MirrorTask
from streams.event import StreamEvent
from streams.identity import seeded_identity, system_identity
from streams.log.completeness import located
from streams.log.log import Log
from tests.nats_servers import TOKEN, RealServer, until
from tests.sidecar.cli.helpers import MAY_REMOVE, Done, events_of, run, run_and_stop

T = TypeVar("T")
_SEEDS = count(100)
RECORDINGS = ("chat", "task_nested", "two_queued")


class Copy:
    """One home and its copy on ``server``."""

    def __init__(self, path: Path, server: RealServer, *, max_bytes: int = UNLIMITED) -> None:
        self.home, self.server, self.max_bytes = Home(path), server, max_bytes

    def configure(self) -> None:
        """Make the home and configure the server."""
        self.home.create()
        self.home.config_path.write_text(
            f'{MAY_REMOVE}[nats]\nmode = "external"\nservers = ["nats://{TOKEN}@127.0.0.1:{self.server.port}"]\n'
        )

    def make(self, *recordings: str) -> Copy:
        """Make a log of these recordings, with new ids, in a home configured for the server."""
        seed = 2 * next(_SEEDS)
        self.configure()

        async def write() -> None:
            log = await Log.open(self.home.store_path, seeded_identity(seed))
            translator = Translator(seeded_identity(seed + 1))
            made = [event for name in recordings or RECORDINGS for event in events_of(name, translator)]
            # The server keeps the messages for programs for a week only, and the recordings are older.
            late = system_identity().now_ms() - max(event.ts for event in made)
            for event in made:
                moved = StreamEvent.trusted({**event.fields(), "ts": event.ts + late})
                await log.append([moved], on_known="keep_first")
            await log.close()

        asyncio.run(write())
        return self

    def add(self, events: Iterable[StreamEvent]) -> Copy:
        """Append events to the log."""

        async def work(log: Log) -> None:
            for event in events:
                await log.append([event])

        self.with_log(work)
        return self

    @property
    def log_id(self) -> str:
        manifest = located(self.home.store_path)
        assert manifest is not None
        return manifest.log_id

    async def _with_log(self, work: Callable[[Log], Awaitable[T]]) -> T:
        log = await Log.open(self.home.store_path, seeded_identity(9))
        try:
            return await work(log)
        finally:
            await log.close()

    def with_log(self, work: Callable[[Log], Awaitable[T]]) -> T:
        """Call a function with the log, while no sidecar runs."""
        return asyncio.run(self._with_log(work))

    def publish(self) -> Copy:
        """Mirror everything that is not mirrored yet."""

        async def work(log: Log) -> None:
            sessions = Sessions(self.server.ask_options)
            task = MirrorTask(log, log.manifest.log_id, sessions, system_identity().now_ms, max_bytes=self.max_bytes)
            task.start()
            try:
                await until(lambda: task.status()["state"] == "idle" and not task.status()["lag"], "all is mirrored")
            finally:
                await task.close()
                await sessions.close()

        self.with_log(work)
        return self

    def on_server(self, work: Callable[[JetStream], Awaitable[T]]) -> T:
        """Call a function with a connection."""

        async def connected() -> T:
            session = await JetStream.connect(self.server.options)
            try:
                return await work(session)
            finally:
                await session.close()

        return asyncio.run(connected())

    def messages(self, stream: str = EVENTS) -> list[StreamMessage]:
        """All messages of a stream, from every home."""

        async def read(session: JetStream) -> list[StreamMessage]:
            try:
                return [found async for found in read_back(session, stream)]
            except NotFound:
                return []

        return self.on_server(read)

    def delete(self, stream: str, *sequences: int) -> None:
        async def work(session: JetStream) -> None:
            for sequence in sequences:
                await session.api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})

        self.on_server(work)

    def verify(self) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
        """Exit code, differences and summary of ``mirror verify --json``."""
        done = run(self.home.path, "mirror", "verify", "--json")
        assert done.err == "", done
        *found, last = done.objects()
        return done.code, [each["difference"] for each in found], last["summary"]

    def rebuild(self) -> Done:
        return run_and_stop(self.home.path, "mirror", "rebuild", "--yes", "--json")


def shown(found: list[dict[str, Any]]) -> str:
    return json.dumps(found, indent=1)
