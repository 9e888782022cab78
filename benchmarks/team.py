"""The copy to a team's Postgres against bare ``COPY`` of the same records into one table without an index."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks.limits import beside
from benchmarks.million import build, records
from benchmarks.report import Row
from sidecar.read.story.writing import StoryTables
from sidecar.team.connection import connect
from sidecar.team.schema import RECORDS
from sidecar.team.shipping import Shipping
from streams.identity import seeded_identity
from streams.log.reader import LogReader
from tests.postgres import Postgres

COUNT = 12_000
"""Records in the log that is copied."""

AT_ONCE = 2_000


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure how fast a whole log is copied, with its story."""
    store = directory / "team"
    await build(store, records(COUNT), StoryTables(seeded_identity(3).nonce))
    server = await asyncio.to_thread(lambda: Postgres().start())
    try:
        copies = _Copies(store, server)
        rate, limit = await beside(lambda _: copies.bare(), lambda _: copies.shipped(), seconds)
        return [Row("team, records and story", rate, limit, "bare COPY", 0.25, 0.4)]
    finally:
        await asyncio.to_thread(server.close)


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
