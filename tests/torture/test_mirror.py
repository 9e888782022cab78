"""After any faults of server, mirror and log, in any order, the mirror equals the log.

Each cycle appends records and does one thing, drawn from a seeded list; now and then all is drained and compared by
an independent reader. Records arrive while the server is away, and never wait for it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from bridge.nats.jetstream.options import ConnectOptions
from bridge.nats.jetstream.sessions import Sessions
from sidecar.mirror.follower import MirrorTask
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.mirrors import LOG_ID, NOW_MS, check_equal, drained, fill, mirroring, session_events, unsynced
from tests.nats_servers import RealServer, real_server
from tests.streams.sizes import is_set, size
from tests.torture.figures import MAX_GROWTH_MIB, held_mib, note, seeded

CYCLES = size("MIRROR_CYCLES", 9)
RECORDS = size("MIRROR_CYCLE_RECORDS", 80)
SESSIONS = 60
KILLS = size("MIRROR_KILLS", 3)
HOLDS = (0.05, 0.5, 3.5) if is_set("MIRROR_CYCLES") else (0.05,)
"""For how many seconds a server is held."""

CHECKED = 10
"""Cycles after which mirror and log are compared."""


class Tormented:
    """A log, its mirror and a server, with the faults that may hit them."""

    def __init__(self, store: Log, server: RealServer) -> None:
        self.store, self.server = store, server
        self.count = 0
        self.longest_append_s = 0.0
        self.draw = seeded("mirror")
        self.sessions = Sessions(server.ask_options)
        self.task = MirrorTask(store, LOG_ID, self.sessions, lambda: NOW_MS)
        self.task.start()

    async def append(self) -> None:
        """Append records in small batches, and note the slowest append."""
        events = session_events(RECORDS, first=self.count, sessions=SESSIONS)
        for first in range(0, RECORDS, 20):
            start = time.monotonic()
            await fill(self.store, events[first : first + 20])
            self.longest_append_s = max(self.longest_append_s, time.monotonic() - start)
        self.count += RECORDS

    def faults(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "killed": self.killed,
            "held": self.held,
            "wiped": self.wiped,
            "crashed": self.crashed,
            "forgotten": self.forgotten,
            "moved": self.moved,
            "locked": self.locked,
            "rebuilt": self.rebuilt,
            "paused": self.paused,
        }

    async def killed(self) -> None:
        self.server.kill()
        await self.append()
        self.server.start()

    async def held(self) -> None:
        self.server.hold()
        await self.append()
        await asyncio.sleep(self.draw.choice(HOLDS))
        self.server.resume()

    async def wiped(self) -> None:
        self.server.kill()
        self.server.wipe()
        self.server.start()

    async def crashed(self) -> None:
        """Stop the mirror at a random moment and start another one."""
        appending = asyncio.create_task(self.append())
        await asyncio.sleep(self.draw.random() * 0.1)
        await self.again()
        await appending

    async def again(self) -> None:
        await self.task.close()
        await self.sessions.close()
        self.sessions = Sessions(self.server.ask_options)
        self.task = MirrorTask(self.store, LOG_ID, self.sessions, lambda: NOW_MS)
        self.task.start()

    async def forgotten(self) -> None:
        stream = f"ses_{self.draw.randrange(SESSIONS)}"
        await self.store.forget([stream], at_ms=NOW_MS)
        self.task.forgotten([stream])

    async def moved(self) -> None:
        """Move the log's records from its journal to its database while the mirror reads them."""
        appending = asyncio.create_task(self.append())
        while not appending.done():
            await asyncio.to_thread(self.store.mover.drain, self.store.head)
        await appending

    async def locked(self) -> None:
        """Let another program hold the database, so that the journal keeps what comes."""
        with closing(
            sqlite3.connect(self.store.store / "log.db", isolation_level=None, timeout=30, check_same_thread=False)
        ) as other:
            await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
            await self.append()

    async def rebuilt(self) -> None:
        self.task.rebuild()

    async def paused(self) -> None:
        await self.task.close()
        await self.append()
        self.task.start()

    async def close(self) -> None:
        await self.task.close()
        await self.sessions.close()


async def test_whatever_happens_the_mirror_ends_as_the_log(tmp_path: Path) -> None:
    store = await Log.open(tmp_path / "store", seeded_identity(3))
    done: Counter[str] = Counter()
    before = 0.0
    with real_server(tmp_path / "nats", jetstream=unsynced(tmp_path / "nats")) as server:
        one = Tormented(store, server)
        faults = one.faults()
        # Each of them once before any comes twice.
        order = one.draw.sample(list(faults), len(faults))
        for cycle in range(CYCLES):
            name = order[cycle] if cycle < len(order) else one.draw.choice(list(faults))
            await one.append()
            await faults[name]()
            done[name] += 1
            if cycle % CHECKED == CHECKED - 1 or cycle == CYCLES - 1:
                await drained(one.task)
                # The L0 messages of payloads that are now forgotten are gone, too.
                await check_equal(store, server, l0="forgotten" not in done)
                before = before or held_mib()  # what the test itself needs is there now
        await one.close()
    await store.close()
    grown = held_mib() - before
    note("mirror", records=one.count, cycles=CYCLES, append_max_s=one.longest_append_s, rss_growth=grown, **done)
    assert grown < MAX_GROWTH_MIB


def mirror_until_killed(path: Path, options: ConnectOptions, rebuilds: list[float]) -> None:
    """A process that mirrors the log in a directory, as long as it lives; after these seconds it is to rebuild."""

    async def given() -> ConnectOptions:
        return options

    async def work() -> None:
        log = await Log.open(path, seeded_identity(5))
        task = MirrorTask(log, LOG_ID, Sessions(given), lambda: NOW_MS)
        task.start()
        for seconds in rebuilds:
            await asyncio.sleep(seconds)
            task.rebuild()
        await asyncio.Event().wait()

    asyncio.run(work())


@pytest.mark.parametrize("rebuilt", [False, True])
async def test_neither_a_kill_of_the_mirror_nor_of_the_server_loses_or_doubles_anything(
    tmp_path: Path, rebuilt: bool
) -> None:
    """Also not while a rebuild empties and fills the stream."""
    draw, path, rebuilds_seen = seeded(f"mirror kills {rebuilt}"), tmp_path / "store", 0
    store = await Log.open(path, seeded_identity(3))
    await fill(store, session_events(4000, sessions=40), batch=500)
    await store.close()
    with real_server(tmp_path / "nats", jetstream=unsynced(tmp_path / "nats")) as own:
        spawning = multiprocessing.get_context("spawn")
        for _ in range(KILLS):
            rebuilds = [draw.uniform(0, 0.4) for _ in range(4)] if rebuilt else []
            process = spawning.Process(target=mirror_until_killed, args=(path, own.options, rebuilds))
            process.start()
            # It takes a second until the process mirrors, and about one to mirror all.
            await asyncio.to_thread(process.join, draw.uniform(0.9, 2.2))
            victim = draw.choice(["mirror", "server", "both"])
            if victim != "mirror":
                own.kill()
                own.start()
            if victim == "server":
                await asyncio.to_thread(process.join, draw.uniform(0.1, 1.0))
            process.kill()
            process.join()
            process.close()
            if rebuilt:
                store = await Log.open(path, seeded_identity(3))
                async with mirroring(store, own) as task:
                    task.rebuild()
                    await asyncio.sleep(draw.uniform(0, 0.3))
                    task.rebuild()
                    await drained(task)
                    rebuilds_seen += task.counts["rebuilt"]
                await check_equal(store, own)
                await store.close()
        store = await Log.open(path, seeded_identity(3))
        async with mirroring(store, own) as task:
            await drained(task)
            assert not task.counts["republished"]
        note(f"mirror kills, {rebuilt=}", kills=KILLS, rebuilds=rebuilds_seen)
        await check_equal(store, own)
        await store.close()
