"""Compares our log with peers: also with 64 in flight, equally durable, in the same rounds, each used in its best
documented way.

The unit is one event of 1 KiB that its writer knows to be on the disk.

- ``eventsourcing``: ``SQLiteApplicationRecorder.insert_events``, which a repository's ``save`` calls in the end. It
  sets WAL; SQLite's default is ``synchronous=FULL``. Two rows: 64 threads that save one event each, and one caller that
  saves 64 at once, which must have been collected before.
- ``dbos``: ``DBOS.write_stream`` in 64 workflows at a time, which is the closest it has to a durable append: each call
is
  a transaction of its SQLite system database, like each step of a workflow.
- Redis streams: ``XADD`` with ``appendonly yes`` and ``appendfsync always``. Redis syncs once for all waiting
  commands. Two rows: 64 connections with one command each, and one pipeline of 64.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks import limits
from benchmarks.limits import GROUP, ROW_BYTES
from benchmarks.report import Row
from benchmarks.store import IDENTITY, all_moved, append_rate
from streams.log.log import Log

BODY = b"x" * ROW_BYTES
WRITES = 8
"""Writes per workflow. Endless workflows, 64 at a time, starve each other at SQLite's lock."""

START_SECONDS = 20.0
NOT_HERE = {
    "redis-server": "Redis streams: redis-server is not on PATH",
    "peers": "peers: install the extra `bench` (pip install '.[bench]')",
}


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure our log against each peer; a ratio above 1 means ours is faster."""
    try:
        import dbos  # noqa: F401
        import eventsourcing.sqlite  # noqa: F401
        import redis.asyncio  # noqa: F401
    except ImportError:
        print(NOT_HERE["peers"], file=sys.stderr)
        return []
    home = directory / "peers"
    log = await Log.open(home / "store", IDENTITY)
    rows: list[Row] = []

    async def against(name: str, peer: Callable[[float], Awaitable[float]], *, together: bool = False) -> None:
        # A peer that is handed 64 events at a time is compared with one call of ours for 64.
        callers, a_call, label = (1, GROUP, "a call") if together else (GROUP, 1, "in flight")
        await peer(seconds / 10)  # warm up before measuring
        theirs: list[float] = []
        taken: list[float] = []
        for _ in range(limits.ROUNDS):
            theirs.append(await peer(seconds / limits.ROUNDS))
            # The mover works beside our appends, but must not slow down the peer.
            taken.append(await append_rate(log, callers, seconds / limits.ROUNDS, a_call=a_call))
            await all_moved(log)
        rate, limit = statistics.median(taken), statistics.median(theirs)
        rows.append(Row(f"append, {GROUP} {label}", rate, limit, name, is_peer=True))

    recorder = EventSourcing(home / "eventsourcing.db")
    await against("eventsourcing, 64 threads", recorder.one_by_one)
    await against("eventsourcing, 64 a save", recorder.together, together=True)
    recorder.close()
    with Dbos(home / "dbos.db") as peer:
        await against("dbos, 64 workflows", peer.rate)
    if shutil.which("redis-server") is None:
        print(NOT_HERE["redis-server"], file=sys.stderr)
    else:
        async with redis_server(home / "redis") as port:
            await against("Redis, 64 connections", lambda s: redis_connections(port, s))
            await against("Redis, a pipeline of 64", lambda s: redis_pipeline(port, s), together=True)
    await log.close()
    return rows


def _in_threads(work: Callable[[threading.Event], int], seconds: float) -> float:
    """Events per second of 64 threads that work until stopped."""
    stop = threading.Event()
    done: list[int] = []
    threads = [threading.Thread(target=lambda: done.append(work(stop))) for _ in range(GROUP)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - start)


class EventSourcing:
    """The recorder of ``eventsourcing`` over a file."""

    def __init__(self, path: Path) -> None:
        from eventsourcing.persistence import StoredEvent
        from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

        # The timeouts are long, because 64 threads share the library's one writing connection.
        self._datastore = SQLiteDatastore(str(path), pool_timeout=60, lock_timeout=60)
        self._recorder = SQLiteApplicationRecorder(self._datastore)
        self._recorder.create_table()
        self._event = StoredEvent
        self._numbers = count()
        from uuid import uuid4

        self._new_id = uuid4

    async def one_by_one(self, seconds: float) -> float:
        """64 threads, each saving one event at a time to its own aggregate."""

        def work(stop: threading.Event) -> int:
            originator, saved = self._new_id(), 0
            while not stop.is_set():
                self._recorder.insert_events([self._event(originator, saved + 1, "bench:Event", BODY)])
                saved += 1
            return saved

        return await asyncio.to_thread(_in_threads, work, seconds)

    async def together(self, seconds: float) -> float:
        """One caller that saves 64 events at a time."""

        def work() -> float:
            originator, saved, start = self._new_id(), 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                versions = range(saved + 1, saved + GROUP + 1)
                self._recorder.insert_events([self._event(originator, v, "bench:Event", BODY) for v in versions])
                saved += GROUP
            return saved / (time.perf_counter() - start)

        return await asyncio.to_thread(work)

    def close(self) -> None:
        self._datastore.close()


class Dbos:
    """``dbos`` with a SQLite system database."""

    def __init__(self, path: Path) -> None:
        from dbos import DBOS

        logging.getLogger("dbos").setLevel(logging.ERROR)
        self._dbos: Any = DBOS
        DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{path}", "log_level": "ERROR"})
        body = BODY.decode()

        @DBOS.workflow()
        def writes() -> None:
            for _ in range(WRITES):
                DBOS.write_stream("events", body)

        self._writes = writes

    def __enter__(self) -> Dbos:
        self._dbos.launch()
        return self

    def __exit__(self, *_: object) -> None:
        self._dbos.destroy()

    async def rate(self, seconds: float) -> float:
        """64 workflows at a time, each of which writes to its stream and waits until that is stored.

        The time includes each workflow's start and end: two more transactions for eight writes.
        """

        def work() -> float:
            written, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                for handle in [self._dbos.start_workflow(self._writes) for _ in range(GROUP)]:
                    handle.get_result(polling_interval_sec=0.05)
                written += GROUP * WRITES
            return written / (time.perf_counter() - start)

        return await asyncio.to_thread(work)


@asynccontextmanager
async def redis_server(directory: Path) -> AsyncIterator[int]:
    """Run a separate server on a free port that syncs before it answers."""
    directory.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {"--bind": "127.0.0.1", "--port": str(port), "--dir": str(directory), "--save": ""}
    options |= {"--appendonly": "yes", "--appendfsync": "always", "--auto-aof-rewrite-percentage": "0"}
    process = await asyncio.create_subprocess_exec(
        "redis-server", *(part for option in options.items() for part in option), stdout=subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            while not _listens(port):
                await asyncio.sleep(0.05)
        yield port
    finally:
        process.terminate()
        await process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == os.EX_OK


async def redis_connections(port: int, seconds: float) -> float:
    """64 connections, each with one XADD in flight."""
    from redis.asyncio import Redis

    async def one(deadline: float) -> int:
        client = Redis(host="127.0.0.1", port=port)
        added = 0
        while time.perf_counter() < deadline:
            await client.xadd("events", {"event": BODY})
            added += 1
        await client.aclose()
        return added

    start = time.perf_counter()
    added = await asyncio.gather(*(one(start + seconds) for _ in range(GROUP)))
    return sum(added) / (time.perf_counter() - start)


async def redis_pipeline(port: int, seconds: float) -> float:
    """One connection that sends 64 XADDs, then reads 64 answers."""
    from redis.asyncio import Redis

    client = Redis(host="127.0.0.1", port=port)
    added, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        pipeline = client.pipeline(transaction=False)
        for _ in range(GROUP):
            pipeline.xadd("events", {"event": BODY})
        await pipeline.execute()
        added += GROUP
    await client.aclose()
    return added / (time.perf_counter() - start)
