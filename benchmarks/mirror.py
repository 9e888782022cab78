"""The mirror on JetStream against a bare publisher of atomic batches: the client library, ready-made bodies, no log."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats

from benchmarks.limits import beside
from benchmarks.report import Row
from benchmarks.store import an_event
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import OLDEST, server_version
from sidecar.config import NatsConfig
from sidecar.mirror.follower import MirrorTask
from sidecar.mirror.server.server import EmbeddedServer, State
from streams.event import StreamEvent
from streams.hashing import canonical
from streams.identity import system_identity
from streams.log.log import Log

IDENTITY = system_identity()
CHUNK = 16_000
"""Records per catch-up. There are so many that the beginning and the end, where nothing overlaps, hardly matter."""

LOOK_SECONDS = 0.005
"""How often to read the mirror's position; each read slows the mirror, which shares the event loop."""

BATCH = 1000
"""Messages per batch of the bare publisher: the most that a server accepts."""

APPEND = 200


def a_step(number: int) -> StreamEvent:
    """A step of about 1 KiB, which also has an L0 message: two messages per record."""
    payload = {
        "session": f"ses_{number % 8}",
        "turn": f"msg_{number // 50}",
        "part": f"prt_{number}",
        "kind": "tool",
        "tool": "bash",
        "status": "completed",
        "output": "x" * 400,
    }
    return IDENTITY.stamp(an_event(number).fields() | {"type": "execution.step", "payload": payload})


class Bare:
    """Publishes atomic batches of ready-made bodies; each message has only an id and the batch's own headers."""

    def __init__(self, client: Any, stream: str) -> None:
        self._client, self._stream = client, stream
        self._body = canonical(an_event(0).fields())
        self._sent = 0

    async def rate(self, seconds: float) -> float:
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            await self._batch()
            count += BATCH
        return count / (time.perf_counter() - start)

    async def _batch(self) -> None:
        batch, subject = IDENTITY.ulid(), f"{self._stream}.a"
        for number in range(1, BATCH + 1):
            self._sent += 1
            headers = {"Nats-Msg-Id": str(self._sent), "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            if number < BATCH:
                await self._client.publish(subject, self._body, headers=headers)
        answer = await self._client.request(
            subject, self._body, timeout=30, headers={**headers, "Nats-Batch-Commit": "1"}
        )
        assert b'"count":1000' in answer.data.replace(b" ", b"") or BATCH != 1000, answer.data


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure the mirror's rows; return none, and say so on stderr, if the server has no atomic batches."""
    async with serving(directory / "nats") as server:
        found = server.status()["version"]
        if server_version(found) < OLDEST:
            print(f"mirror: NATS server {found} takes no atomic batches; install a newer one", file=sys.stderr)
            return []
        options = await server.options()
        client = await nats.connect(options.servers[0], token=options.token)
        try:
            api = client.jetstream()
            await api._api_request(
                "$JS.API.STREAM.CREATE.BARE",
                b'{"name":"BARE","subjects":["BARE.>"],"storage":"file","allow_atomic":true}',
            )
            bare = Bare(client, "BARE")
            rows = []
            for label, make, floor in (
                ("mirror, atomic batches", an_event, (0.45, 0.6)),
                ("mirror, steps: records and L0 messages", a_step, None),
            ):
                rate, limit = await beside(bare.rate, _Mirroring(directory / label[8:13], server, make).rate, seconds)
                rows.append(Row(label, rate, limit, "bare atomic batches", *(floor or ())))
            return rows
        finally:
            await client.close()


class _Mirroring:
    """Grow a log while its mirror is stopped, then measure how fast the mirror catches up."""

    def __init__(self, path: Path, server: EmbeddedServer, make: Any) -> None:
        self._path, self._server, self._make = path, server, make

    async def rate(self, seconds: float) -> float:
        store = await Log.open(self._path, IDENTITY)
        sessions = Sessions(self._server.options)
        task = MirrorTask(store, store.manifest.log_id, sessions, IDENTITY.now_ms)
        try:
            done, mirrored, spent = 0, 0, 0.0
            while spent < seconds:
                for _ in range(0, CHUNK, APPEND):
                    await store.append([self._make(done + n) for n in range(APPEND)])
                    done += APPEND
                task.start()
                # Start the clock after the mirror has found its place: once per connection, not per record.
                while task.status()["state"] in ("waiting", "resuming"):
                    await asyncio.sleep(0.001)
                start, first = time.perf_counter(), task.status()["position"]
                while task.status()["position"] < store.head:
                    await asyncio.sleep(LOOK_SECONDS)
                spent += time.perf_counter() - start
                mirrored += store.head - first
                await task.close()
            return mirrored / spent
        finally:
            await task.close()
            await sessions.close()
            await store.close()


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[EmbeddedServer]:
    directory.mkdir(mode=0o700)
    server = EmbeddedServer(directory, NatsConfig(mode="embedded"), IDENTITY.nonce)
    server.start()
    try:
        async with asyncio.timeout(60):
            while server.state is not State.RUNNING:
                await asyncio.sleep(0.01)
        yield server
    finally:
        await server.stop()
