"""A mirror in a test: a growing log, the task that mirrors it, and an independent reader.

``read_independently`` uses only the client library, as a second opinion on order, bytes and hashes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import nats
from nats.js.api import AckPolicy, ConsumerConfig

from bridge.nats.headers import read_message_id
from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import COMMANDS
from bridge.nats.mirror.messages import Mirror, is_forgotten
from sidecar.mirror.follower import MirrorTask
from streams.event import StreamEvent
from streams.hashing import canonical
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.store import Record, StreamStore
from tests.bridge.nats.records import PROJECT, event, mirror_all
from tests.memory import MemoryStore
from tests.nats_servers import HANG_SECONDS, TOKEN, RealServer

NOW_MS = 1_700_000_100_000
"""A moment after all events that ``sessions_of`` makes."""

LOG_ID = "01HF7YAT00LOG"
TURN = 10
"""Records of a turn in ``session_events``."""

BACKENDS = ("memory", "disk")


def session_events(count: int, *, first: int = 0, sessions: int = 5, text: str = "x" * 200) -> list[StreamEvent]:
    """``count`` events like captured ones: sessions alternate, begin turns, take steps, and end turns."""
    return [_event(number, sessions, text) for number in range(first, first + count)]


def _event(number: int, sessions: int, text: str) -> StreamEvent:
    turn, place = divmod(number, TURN)
    session = f"ses_{turn % sessions}"
    named = {"session": session, "message": f"msg_{turn}", "turn": f"msg_{turn}"}
    kinds: dict[int, tuple[str, dict[str, Any]]] = {
        0: ("lifecycle.session.created", {"session": session, "project": PROJECT, "lineage": "root"})
        if turn < sessions
        else ("human.input", {**named, "text": text}),
        1: ("turn.started", {**named, "trigger": "input"}),
        TURN - 1: ("turn.ended", {**named, "outcome": "completed", "steps": TURN - 3}),
    }
    step = {**named, "part": f"prt_{number}", "kind": "tool", "tool": "bash", "status": "completed", "output": text}
    kind, payload = kinds.get(place, ("execution.step", step))
    return event(number, kind, payload, stream_id=session)


async def fill(store: StreamStore, events: Iterable[StreamEvent], batch: int = 50) -> None:
    """Append the events, ``batch`` at a time."""
    waiting = list(events)
    for first in range(0, len(waiting), batch):
        await store.append(waiting[first : first + batch])


async def open_store(backend: str, path: Path) -> StreamStore:
    """Open a store of a backend, as named in ``BACKENDS``."""
    if backend == "memory":
        return MemoryStore()
    return await Log.open(path, seeded_identity(3))


def unsynced(directory: Path) -> dict[str, Any]:
    """A server that survives kills but not power loss: it need not sync each message."""
    return {"store_dir": str(directory / "store"), "max_file_store": 2**32}


@asynccontextmanager
async def mirroring(store: StreamStore, server: RealServer, **more: Any) -> AsyncIterator[MirrorTask]:
    """A mirror of the store on the server, while the block lasts."""
    sessions = Sessions(server.ask_options)
    task = MirrorTask(store, LOG_ID, sessions, lambda: NOW_MS, **more)
    task.start()
    try:
        yield task
    finally:
        await task.close()
        await sessions.close()


async def drained(task: MirrorTask) -> dict[str, Any]:
    """Wait until all is mirrored and return the status. No progress for ``HANG_SECONDS`` is a hang."""
    moved, done = time.monotonic(), -1
    while (status := task.status())["state"] != "idle" or status["lag"]:
        if task.counts.total() != done:
            moved, done = time.monotonic(), task.counts.total()
        assert time.monotonic() < moved + HANG_SECONDS, f"it is not mirrored: {status}"
        await asyncio.sleep(0.01)
    return status


async def rebuilt(task: MirrorTask) -> dict[str, Any]:
    """Have the mirror publish everything again; wait until it has, and return the status."""
    before = task.counts["rebuilt"]
    task.rebuild()
    while task.counts["rebuilt"] == before:
        await asyncio.sleep(0.01)
    return await drained(task)


class Seen(NamedTuple):
    """A message as the independent reader sees it."""

    subject: str
    sequence: int
    headers: dict[str, str]
    body: bytes


async def read_independently(
    server: RealServer, subject: str = "evt.>", stream: str = "MESHFORGE_EVENTS"
) -> list[Seen]:
    """All messages of a stream, read with the client library alone."""
    client = await nats.connect(f"nats://127.0.0.1:{server.port}", token=TOKEN)
    try:
        context = client.jetstream()
        pull = await context.pull_subscribe(
            subject, stream=stream, config=ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=60)
        )
        left = (await pull.consumer_info()).num_pending or 0
        seen: list[Seen] = []
        while len(seen) < left:
            for message in await pull.fetch(min(500, left - len(seen)), timeout=10):
                place = message.metadata.sequence.stream
                seen.append(Seen(message.subject, place, dict(message.headers or {}), message.data))
        return seen
    finally:
        await client.close()


async def queued(sessions: Sessions, stream: str = COMMANDS) -> list[keeping.StreamMessage]:
    """What a work queue holds; nothing is taken from it."""
    session = await sessions.get()
    found: list[keeping.StreamMessage] = []
    after = 0
    while message := await keeping.next_message(session, stream, since=after + 1):
        found.append(message)
        after = message.sequence
    return found


def chain_hashes(seen: Iterable[Seen]) -> dict[str, str]:
    """Each stream's chain hash, computed from message bodies alone; every hash header is checked."""
    heads: dict[str, bytes] = {}
    for message in seen:
        fields = json.loads(message.body)
        if message.headers["DS-Form"] == "whole":
            payload = json.dumps(fields["payload"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            fields["payload"] = {"$sha256": sha256(payload.encode()).hexdigest()}
        told = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        stream = fields["stream_id"]
        heads[stream] = sha256(heads.get(stream, bytes(32)) + told).digest()
        assert heads[stream].hex() == message.headers["DS-Hash"], message.headers
    return {stream: head.hex() for stream, head in heads.items()}


async def check_equal(store: StreamStore, server: RealServer, *, l0: bool = True) -> list[Seen]:
    """Check that the mirror equals the log: each record once, in order, with its bytes; so its L0 messages."""
    records = [record async for record in store.read_all()]
    seen = await read_independently(server)
    assert [read_message_id(each.headers)[:2] for each in seen] == [(record.event.id, "") for record in records]
    for record, message in zip(records, seen, strict=True):
        assert message.body == canonical(record.event.fields())
        assert message.headers["DS-Position"] == str(record.position)
        assert message.headers["DS-Offset"] == str(record.offset)
        assert message.headers["DS-Hash"] == record.hash
        assert (message.headers["DS-Form"] == "forgotten") == is_forgotten(record.event)
    chain_hashes(seen)
    if l0:
        await check_l0(records, server)
    return seen


async def check_l0(records: Iterable[Record], server: RealServer) -> None:
    """Check each L0 message: it is there once, and in order within its subject."""
    wanted: dict[str, list[tuple[str, str]]] = {}
    for made in mirror_all(records, Mirror(LOG_ID)):
        for message in made.messages[:-1]:
            wanted.setdefault(message.subject, []).append(read_message_id(message.headers)[:2])
    found: dict[str, list[tuple[str, str]]] = {}
    for each in await read_independently(server, "cg.>", "cg_evt_v1"):
        found.setdefault(each.subject, []).append(read_message_id(each.headers)[:2])
    twice = [name for names in found.values() for name, count in Counter(names).items() if count > 1]
    assert twice == []
    assert {subject: sorted(ids) for subject, ids in found.items()} == {k: sorted(v) for k, v in wanted.items()}
