"""The link: from a shim's socket to the durable ack, through a real sidecar process."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from benchmarks.limits import beside, raw_rate
from benchmarks.report import Row
from bridge.opencode.link.frames import HookItem, ShimIdentity
from sidecar.home import Home
from sidecar.link.client import ShimClient
from streams.identity import system_identity
from streams.log.reader import LogReader

IDENTITY = system_identity()
ASKED, ANSWER = "msg_1", "msg_2"
"""In ascending order, like OpenCode's ids: an answer with a lower id than its question would pass for history that a
fork copied."""
START_SECONDS = 3600.0
"""A start that takes longer counts as hung; a first start may read ten million events."""


def _bus(number: int, type_: str, properties: dict[str, object]) -> HookItem:
    event = {"id": f"evt_{number}", "type": type_, "properties": {"sessionID": "ses_bench", **properties}}
    return HookItem("event", 1_700_000_000_000 + number, {"event": event}, None)


def first_hooks() -> list[HookItem]:
    """The hooks of a session and a turn to which the parts belong."""
    info = {"id": "ses_bench", "title": "bench", "directory": "/bench"}
    message = {"id": ANSWER, "role": "assistant", "parentID": ASKED, "agent": "build", "time": {"created": 1}}
    return [_bus(-2, "session.created", {"info": info}), _bus(-1, "message.updated", {"info": message})]


def a_hook(number: int) -> HookItem:
    """A finished text part: one hook, one event of about 1 KiB."""
    part = {
        "id": f"prt_{number}",
        "messageID": ANSWER,
        "sessionID": "ses_bench",
        "type": "text",
        "text": "x" * 500,
        "time": {"start": 1, "end": 2},
    }
    return _bus(number, "message.part.updated", {"part": part})


_numbers = count()
"""Numbers for the hooks of ``record_for``, so that each makes its own event."""

WINDOWS: Final[tuple[tuple[int, float | None, float | None], ...]] = ((1, None, None), (64, 2.2, 2.8), (512, 1.7, 3.0))
"""Each window, with floor and aim."""


@asynccontextmanager
async def sidecar(home: Home) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Run a sidecar for ``home``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sidecar.cli", "--home", str(home.path), "serve"],
        stdout=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            while home.running() is None:
                await asyncio.sleep(0.01)
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        await asyncio.to_thread(process.wait)


async def record_for(home: Home, seconds: float) -> int:
    """Send hooks to a running sidecar for this many seconds, 64 at a time; return how many made an event."""
    identity = ShimIdentity("bench", IDENTITY.nonce()[:32], IDENTITY.nonce()[:16], 1, "", "/bench", "", "", 0)
    async with await ShimClient.connect(home, identity=identity, nonce=IDENTITY.nonce) as client:
        await client.send(first_hooks())
        sent, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            await client.send([a_hook(next(_numbers)) for _ in range(64)])
            await client.drained()
            sent += 64
    return sent


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure from hook to durable ack with three windows, and how soon after the last one the search index is
    complete."""
    rows = []
    for window, floor, aim in WINDOWS:
        home = Home(directory / f"window-{window}")
        home.create()
        async with sidecar(home):
            identity = ShimIdentity("bench", IDENTITY.nonce()[:32], IDENTITY.nonce()[:16], 1, "", "/bench", "", "", 0)
            async with await ShimClient.connect(home, identity=identity, nonce=IDENTITY.nonce) as client:
                client._link.welcomed = replace(client.welcome, window=window)  # as if the sidecar had offered it
                await client.send(first_hooks())
                await client.drained()
                sent = 0

                async def work(s: float, client: ShimClient = client, size: int = min(window, 64)) -> float:
                    nonlocal sent
                    before, start = sent, time.perf_counter()
                    while time.perf_counter() - start < s:
                        await client.send([a_hook(sent + n) for n in range(size)])
                        sent += size
                    await client.drained()
                    return (sent - before) / (time.perf_counter() - start)

                rate, limit = await beside(lambda s: raw_rate(directory, s), work, seconds)
                late = await _indexed_after(home)
            recorded = LogReader(home.store_path).head
            if recorded < sent:
                raise RuntimeError(f"of {sent} hooks {recorded} were recorded")
        rows.append(Row(f"hook to durable ack, window {window}", rate, limit, "R", floor, aim))
        promise = (1.0, 0.1) if window == 1 else (None, None)
        rows.append(Row(f"last ack to a complete search index, window {window}", late, None, "s", *promise))
    return rows


async def _indexed_after(home: Home) -> float:
    """How many seconds from now the search index holds every record."""
    start, head = time.perf_counter(), LogReader(home.store_path).head
    async with asyncio.timeout(START_SECONDS):
        while _indexed(home.store_path / "search.db") < head:
            await asyncio.sleep(0.001)
    return time.perf_counter() - start


def _indexed(path: Path) -> int:
    """The last indexed position; -1 while the index is being created."""
    if not path.exists():
        return -1
    with closing(sqlite3.connect(path.as_uri() + "?mode=ro", uri=True)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'progress'").fetchone():
            return -1
        return int(connection.execute("SELECT position FROM progress").fetchone()[0])
