"""Capture: appends, hook to durable ack over the link, replay.

Every figure is a ratio against a limit of the same machine in the same
minute: raw write and fsync one by one (R), or ``orjson.loads`` of the same lines.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import orjson

from benchmarks.report import Row
from bridge.opencode.frames import HookItem, ShimIdentity
from bridge.opencode.redact import Redactor
from bridge.opencode.translate import Origin, Translator
from sidecar.client import Address, ShimClient
from sidecar.ingest import Ingest
from sidecar.server import LinkServer, ShimConnection
from streams.event import StreamEvent
from streams.identity import Identity, system_identity
from streams.stores.jsonl import JsonlStore
from streams.stores.segments import parse_record

IDENTITY = system_identity()
PAYLOAD = {"session": "ses_bench", "text": "x" * 560, "tokens": {"input": 10, "output": 5}}


def an_event(number: int) -> StreamEvent:
    """An event of about 1 KiB as it is stored."""
    return IDENTITY.stamp(
        {
            "type": "execution.output",
            "stream_id": f"ses_{number % 8}",
            "actor": "build",
            "source": {"agent": "build", "adapter": "opencode"},
            "idempotency_key": f"bench:{IDENTITY.ulid()}",
            "payload": PAYLOAD,
        }
    )


def raw_rate(directory: Path, seconds: float) -> float:
    """R: writes of 1 KiB a second, each followed by its own sync."""
    line = b"x" * 1023 + b"\n"
    fd = os.open(directory / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    count, start = 0, time.perf_counter()
    try:
        while time.perf_counter() - start < seconds:
            os.write(fd, line)
            os.fdatasync(fd)
            count += 1
    finally:
        os.close(fd)
    return count / (time.perf_counter() - start)


async def append_rate(store: JsonlStore, in_flight: int, seconds: float) -> float:
    """Appends a second with so many waiting at a time; encoding is included, making the events is not."""
    done, spent = 0, 0.0
    while spent < seconds:
        batch = iter([an_event(done + n) for n in range(4000)])

        async def one(events: Iterator[StreamEvent] = batch) -> None:
            for event in events:
                await store.append([event])

        start = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(in_flight)))
        spent += time.perf_counter() - start
        done += 4000
    return done / spent


class _Handler:
    """The sidecar's part of a link without the rest of the sidecar."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest

    async def opened(self, link: ShimConnection) -> None:
        self._ingest.opened(link)

    async def hooks(self, link: ShimConnection, first_seq: int, items: list[HookItem]) -> None:
        self._ingest.take(Origin(link.boot_id, link.instance), first_seq, items, link)

    def lossy(self, link: ShimConnection, items: list[HookItem]) -> None:
        """None are sent."""

    async def closed(self, link: ShimConnection) -> None:
        self._ingest.closed(link)

    async def request(self, method: str, args: dict[str, object]) -> object:
        return None


def a_hook(number: int) -> HookItem:
    """A text part that ended: one hook, one event of about 1 KiB."""
    part = {
        "id": f"prt_{number}",
        "messageID": "msg_a",
        "sessionID": "ses_bench",
        "type": "text",
        "text": "x" * 500,
        "time": {"start": 1, "end": 2},
    }
    event = {
        "id": f"evt_{number}",
        "type": "message.part.updated",
        "properties": {"sessionID": "ses_bench", "part": part},
    }
    return HookItem("event", 1_700_000_000_000 + number, {"event": event}, None)


def first_hooks() -> list[HookItem]:
    """A session and a turn for the parts to belong to."""
    info = {"id": "ses_bench", "title": "bench", "directory": "/bench"}
    message = {"id": "msg_a", "role": "assistant", "parentID": "msg_u", "agent": "build", "time": {"created": 1}}
    return [
        _bus("session.created", {"sessionID": "ses_bench", "info": info}),
        _bus("message.updated", {"sessionID": "ses_bench", "info": message}),
    ]


def _bus(type_: str, properties: dict[str, object]) -> HookItem:
    return HookItem("event", 1, {"event": {"id": f"evt_{type_}", "type": type_, "properties": properties}}, None)


async def link_rate(directory: Path, window: int, seconds: float, identity: Identity = IDENTITY) -> float:
    """Hooks a second from a shim's socket to their durable ack, with so many unacknowledged."""
    store = await JsonlStore.open(directory / f"link-{window}", identity)
    ingest = Ingest(store, Translator(identity, clean=Redactor().clean))
    token = identity.nonce()
    server = LinkServer(_Handler(ingest), token=token, nonce=identity.nonce, boot="b", version="bench", window=window)
    shim = ShimIdentity("bench", identity.nonce()[:32], identity.nonce()[:16], 1, "", "/bench", "", "", 0)
    async with (
        server,
        await ShimClient.connect(Address(server.port, token), identity=shim, nonce=identity.nonce) as client,
    ):
        await client.send(first_hooks())
        await client.drained()
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            size = min(window, 64)
            await client.send([a_hook(count + n) for n in range(size)])
            count += size
        await client.drained()
        rate = count / (time.perf_counter() - start)
    await ingest.close()
    await store.close()
    return rate


def _timed(lines: list[bytes], read: Callable[[bytes], object]) -> float:
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for line in lines:
            read(line)
        best = min(best, time.perf_counter() - start)
    return len(lines) / best


async def measure(seconds: float) -> list[Row]:
    """All capture rows."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=os.environ.get("BENCH_DIR")) as name:
        directory = Path(name)

        async def against_raw(label: str, floor: float, aim: float, work: Callable[[], Awaitable[float]]) -> None:
            before = raw_rate(directory, seconds / 2)
            rate = await work()
            limit = (before + raw_rate(directory, seconds / 2)) / 2
            rows.append(Row(label, rate, limit, "R", floor, aim))

        store = await JsonlStore.open(directory / "store", IDENTITY)
        await against_raw("jsonl append, 1 in flight", 0.45, 0.85, lambda: append_rate(store, 1, seconds))
        await against_raw("jsonl append, 64 in flight", 5, 14, lambda: append_rate(store, 64, seconds))
        await store.close()
        for window, floor, aim in ((1, 0, 0), (64, 2.5, 5), (512, 0, 0)):
            label = f"hook to durable ack, window {window}"
            await against_raw(label, floor, aim, lambda w=window: link_rate(directory, w, seconds))  # type: ignore[misc]
        path = next((directory / "store" / "log").iterdir())
        lines = path.read_bytes().split(b"\n")[:-1][:20000]
        limit = _timed(lines, orjson.loads)
        rows.append(Row("replay, typed records", _timed(lines, parse_record), limit, "orjson.loads", 0.35, 0.6))
    return rows
