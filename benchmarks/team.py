"""The copy to a team's Postgres against bare ``COPY`` of the same records into one table without an index; an agent of
the team against bare conditional updates of one row.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benchmarks.limits import beside
from benchmarks.million import build, records
from benchmarks.report import Row
from benchmarks.runtime import Echo
from benchmarks.store import IDENTITY
from sidecar.agents.loading import UserAgent
from sidecar.agents.runtime import Runtime
from sidecar.read.story.writing import StoryTables
from sidecar.team.claims import TeamClaims
from sidecar.team.connection import connect
from sidecar.team.log import open_log
from sidecar.team.schema import RECORDS
from sidecar.team.shipping import Shipping
from streams.bus.command import Command
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.reader import LogReader
from tests.postgres import Postgres

COUNT = 12_000
"""Records in the log that is copied."""

AT_ONCE = 2_000

SMALL = {"text": "x" * 200}
"""The payload of a command."""


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure how fast a whole log is copied, with its story."""
    store = directory / "team"
    await build(store, records(COUNT), StoryTables(seeded_identity(3).nonce))
    server = await asyncio.to_thread(lambda: Postgres().start())
    try:
        copies = _Copies(store, server)
        rate, limit = await beside(lambda _: copies.bare(), lambda _: copies.shipped(), seconds)
        rows = [Row("team, records and story", rate, limit, "bare COPY", 0.25, 0.4)]
        return rows + await _agents(server, seconds)
    finally:
        await asyncio.to_thread(server.close)


async def _agents(server: Postgres, seconds: float) -> list[Row]:
    """Commands of an agent, two records each: appended to the team's log, and from the command to its result."""
    config = server.config("bench")
    log = await open_log(config)
    claims = TeamClaims(log, "bench")
    runtime = Runtime(log, IDENTITY, [UserAgent("benchmarks:Echo", Echo)], claims=claims)
    await runtime.start()
    bare, end = _Epochs(server), 0

    async def append(commands: int) -> float:
        nonlocal end
        batch = [_record() for _ in range(2 * commands)]
        begun = time.perf_counter()
        await log.append(batch, expected={batch[0].stream_id: end})
        end += len(batch)
        return time.perf_counter() - begun

    async def handle(commands: int) -> float:
        given = [Command(IDENTITY.ulid(), "say", SMALL) for _ in range(commands)]
        begun = time.perf_counter()
        await asyncio.gather(*(runtime.command("echo", each) for each in given))
        return time.perf_counter() - begun

    async def rate_of(slice_: float, work: Callable[[int], Awaitable[float]], commands: int) -> float:
        spent, count = 0.0, 0
        while spent < slice_:
            spent += await work(commands)
            count += commands
        return count / spent

    rows = []
    for label, work, commands, *promise in (
        ("1 command to its result", handle, 1),
        ("16 commands to their results", handle, 16),
        ("an append of 1 command", append, 1, 0.25, 0.4),
        ("an append of 16 commands", append, 16, 4.0, 7.0),
    ):
        if work is append:
            await runtime.close()  # it would read all of it
        await rate_of(seconds / 10, work, commands)
        rate, limit = await beside(bare.rate, partial(rate_of, work=work, commands=commands), seconds)
        rows.append(Row(f"team's agents, {label}", rate, limit, "bare update", *promise))
    bare.close()
    await claims.close()
    await log.close()
    return rows


def _record() -> StreamEvent:
    return IDENTITY.stamp(
        {
            "type": "echo.said",
            "stream_id": "agent/bench",
            "actor": "bench",
            "source": {"agent": "bench", "adapter": "runtime"},
            "idempotency_key": f"bench:{IDENTITY.ulid()}",
            "payload": SMALL,
        }
    )


class _Epochs:
    """The limit: conditional updates of one row, one after the other."""

    def __init__(self, server: Postgres) -> None:
        self._connection = connect(server.config("bench"))
        self._connection.prepare_threshold = 1
        self._connection.execute("CREATE TABLE public.epochs (id INT PRIMARY KEY, epoch INT) WITH (fillfactor = 50)")
        self._connection.execute("INSERT INTO public.epochs VALUES (1, 0)")
        self._epoch = 0

    def rate(self, seconds: float) -> float:
        begun, first = time.perf_counter(), self._epoch
        while time.perf_counter() - begun < seconds:
            query = "UPDATE public.epochs SET epoch = epoch + 1 WHERE id = 1 AND epoch = %s"
            assert self._connection.execute(query, [self._epoch]).rowcount == 1
            self._epoch += 1
        return (self._epoch - first) / (time.perf_counter() - begun)

    def close(self) -> None:
        self._connection.close()


class _Copies:
    """Copies of one log. Each goes into empty tables, so each slice takes as long as it takes."""

    def __init__(self, store: Path, server: Postgres) -> None:
        self._reader, self._server, self._config = LogReader(store), server, server.config("bench")
        with connect(self._config) as connection:
            connection.execute(_BARE)

    async def bare(self) -> float:
        return await asyncio.to_thread(self._bare)

    def _bare(self) -> float:
        copied = self._reader.copied()
        assert copied is not None
        with copied as log, connect(self._config) as connection, connection.cursor() as cursor:
            cursor.execute("TRUNCATE public.bare")
            begun, after = time.perf_counter(), -1
            while rows := log.records(after, AT_ONCE, 2**40):
                with cursor.copy("COPY public.bare FROM STDIN (FORMAT BINARY)") as copy:
                    copy.set_types(RECORDS)
                    for row in rows:
                        copy.write_row((1, *row))
                after = rows[-1][0]
            return COUNT / (time.perf_counter() - begun)

    async def shipped(self) -> float:
        return await asyncio.to_thread(self._shipped)

    def _shipped(self) -> float:
        self._server.empty()
        shipping = Shipping(self._config, self._reader, "bench", "bench", lambda making, change: None)
        begun = time.perf_counter()
        while shipping.step():
            pass
        spent = time.perf_counter() - begun
        shipping.close()
        return COUNT / spent


_BARE = """CREATE TABLE public.bare (
    home INT, position BIGINT, stream BIGINT, place BIGINT, ts BIGINT, type TEXT, actor TEXT, correlation_id TEXT,
    causation_id TEXT, event_id TEXT, key BYTEA, hash BYTEA, crc BIGINT, batch_index BIGINT, batch_count BIGINT,
    event BYTEA)"""
