"""A home's questions to its copy in a team's Postgres beside the same questions to its own SQLite."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from benchmarks.million import EVENTS, build, index, records
from benchmarks.report import Row
from benchmarks.team_scale import sizes
from sidecar.background.reading import costs_of
from sidecar.read.find_by_id import catalog_of, newest
from sidecar.read.past.moment import state
from sidecar.read.story.past import asked
from sidecar.read.story.writing import StoryTables
from sidecar.team.reading import Reading
from sidecar.team.schema import HOME, SCHEMA
from sidecar.team.shipping import Shipping
from streams.identity import seeded_identity
from streams.log.reader import LogReader
from streams.query import Filter
from tests.postgres import Postgres

LEAST: Final = 5
"""How often each question is asked at least."""

SEARCHED: Final = 50_000
"""Records in the log that is searched: the index of texts takes long to make."""

Question = Callable[[LogReader, int], Awaitable[Any]]
"""Asks a reader, perhaps about a session of that number."""


async def _streams(reader: LogReader, _: int) -> list[Any]:
    catalog, _fault = await catalog_of(reader)
    names = [*islice(catalog.newest_first(), 20)]
    catalog.read(names)
    return [catalog.stream_json(name) for name in names]


async def _all_streams(reader: LogReader, _: int) -> list[Any]:
    catalog, _fault = await catalog_of(reader)
    catalog.streams.values(), catalog.sessions.values()  # read all at once, as the command does
    return [catalog.stream_json(name) for name in catalog.streams]


async def _last(reader: LogReader, _: int) -> list[Any]:
    return [record.position for record in (await newest(reader, Filter(), 20))[0]]


async def _stream(reader: LogReader, number: int) -> list[Any]:
    return [record.position async for record in reader.query(Filter(streams=(f"ses_{number:08d}root",)))]


async def _type(reader: LogReader, _: int) -> list[Any]:
    found, _fault = await newest(reader, Filter(types=("lifecycle.session.ended",)), 20)
    return [record.position for record in found]


async def _costs(reader: LogReader, _: int) -> list[Any]:
    return [each.key for each in (await costs_of(reader, "model", Filter())).sums()]


async def _state(reader: LogReader, number: int) -> Any:
    _name, found = await asked(
        reader, lambda past: (past.session, state(past, past.count // 2)), f"ses_{number:08d}root"
    )
    return found["position"]


async def _text(reader: LogReader, number: int) -> list[Any]:
    return [record.position async for record in reader.query(Filter(text=f"Session {number}"))]


Asked = tuple[str, Question, float, float]
"""A question with its floor and aim: how quick Postgres must be, where SQLite is 1."""

QUESTIONS: Final[tuple[Asked, ...]] = (
    ("streams, the newest 20", _streams, 0.1, 0.3),
    ("streams, all", _all_streams, 0.25, 0.6),
    ("the newest 20 records", _last, 0.3, 0.8),
    ("all of a stream of 500", _stream, 0.25, 0.6),
    ("the newest 20 of a rare type", _type, 0.07, 0.2),
    ("costs by model", _costs, 0.5, 1),
    ("a session at event 250", _state, 0.03, 0.1),
)
SEARCH: Final[tuple[Asked, ...]] = (("a rare word, with both indexes", _text, 0.03, 0.1),)


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure over a log of a million events, and a search over a shorter one."""
    count = int(os.environ.get("BENCH_EVENTS", EVENTS))
    store = directory / "team-reading"
    await build(store, records(count), StoryTables(seeded_identity(3).nonce))
    server = await asyncio.to_thread(lambda: Postgres().start())
    try:
        rows = await _beside(store, server, count, seconds, QUESTIONS)
        rows += [replace(row, label=f"team, {row.label}") for row in sizes(server, count)]
        shutil.rmtree(store)
        _run(server, f"DROP SCHEMA {SCHEMA}, {HOME} CASCADE")
        _run(server, "CREATE EXTENSION pg_trgm SCHEMA public")
        count, searched = min(count, SEARCHED), directory / "team-searching"
        await build(searched, records(count), StoryTables(seeded_identity(3).nonce))
        await asyncio.to_thread(index, searched)
        return [*rows, *await _beside(searched, server, count, seconds, SEARCH)]
    finally:
        await asyncio.to_thread(server.close)


async def _beside(store: Path, server: Postgres, count: int, seconds: float, questions: tuple[Asked, ...]) -> list[Row]:
    start = time.perf_counter()
    await asyncio.to_thread(_ship, store, server)
    rows = [Row(f"team, copying {count:,} records", count / (time.perf_counter() - start), None, "/s")]
    _run(server, "ANALYZE")
    number = count // 1000  # of a session in the middle
    with closing(Reading(server.config())) as reading:
        (home,) = await asyncio.to_thread(reading.homes)
        reading.turn_to(home)
        for label, question, floor, aim in questions:
            ours: list[float] = []
            theirs: list[float] = []
            until = time.perf_counter() + seconds
            while len(ours) < LEAST or time.perf_counter() < until:
                found = await _timed(theirs, question(LogReader(store), number))
                if await _timed(ours, question(reading.reader(home), number)) != found or not found:
                    raise RuntimeError(f"{label}: the answers differ")
            rate, limit = 1 / statistics.median(ours), 1 / statistics.median(theirs)
            rows.append(Row(f"team, {label}", rate, limit, "SQLite", floor, aim))
    return rows


def _run(server: Postgres, statement: str) -> None:
    with server.connect() as connection:
        connection.execute(statement.encode())


def _ship(store: Path, server: Postgres) -> None:
    shipping = Shipping(server.config(), LogReader(store), "bench", "bench", lambda making, change: None)
    while shipping.step():
        pass
    shipping.close()


async def _timed(into: list[float], answer: Awaitable[Any]) -> Any:
    start = time.perf_counter()
    found = await answer
    into.append(time.perf_counter() - start)
    return found
