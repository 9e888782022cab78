"""Many homes that copy to one Postgres: how much it takes, how late it has it, and what that costs.

``python -m benchmarks.team_scale [--homes 1 4 16] [--seconds 60] [--rate 50] [--search]``. Each home is a real sidecar,
and gets hooks over a real link at a steady rate. The sidecars also run once without a team, so that the difference is
what copying costs. With ``--search``, the database has the index of texts.

A record's lag is the time from its hook to the commit that has it in Postgres, by the server's own times of commits.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Final

from benchmarks.link import sidecar
from benchmarks.report import Row, table
from bridge.opencode.link.frames import HookItem, ShimIdentity
from sidecar.home import Home
from sidecar.link.client import ShimClient
from streams.identity import system_identity
from streams.log.reader import LogReader
from tests.postgres import Postgres

IDENTITY = system_identity()
TURN_CALLS: Final = 6
TURN_EVENTS: Final = 2 + 3 * TURN_CALLS
"""How many events the hooks of a turn become: its prompt, its start, and what each call is."""

SLICES_A_SECOND: Final = 5
READ: Final = 5
"""How often each command reads; the median counts."""

PATIENCE_SECONDS: Final = 600.0
TEXT: Final = "It reads the file, changes a line and runs the tests again. " * 9
READS: Final = (("streams", "--limit", "20"), ("costs",), ("query", "--type", "turn.started", "--limit", "20"))


def hooks(home: int) -> Iterator[list[HookItem]]:
    """The hooks of a home without end, those of about one event at a time."""
    session = f"ses_{home:06d}bench"
    numbers = count()

    def bus(kind: str, properties: dict[str, Any]) -> HookItem:
        event = {"id": f"evt_{next(numbers)}", "type": kind, "properties": {"sessionID": session, **properties}}
        return HookItem("event", time.time_ns() // 1_000_000, {"event": event}, None)

    def part(fields: dict[str, Any]) -> HookItem:
        return bus("message.part.updated", {"part": {"sessionID": session, **fields}})

    yield [bus("session.created", {"info": {"id": session, "title": f"Bench {home}", "directory": "/bench"}})]
    for turn in count():
        asked, answer = f"msg_{turn:08d}a", f"msg_{turn:08d}b"
        user = {"id": asked, "role": "user", "sessionID": session, "agent": "build", "time": {"created": 1}}
        text = {"id": f"prt_{turn:08d}", "type": "text", "text": TEXT[:120], "messageID": asked}
        said = {"message": user, "parts": [{"sessionID": session, **text}]}
        yield [HookItem("chat.message", time.time_ns() // 1_000_000, {"sessionID": session}, said)]
        info = {"id": answer, "role": "assistant", "parentID": asked, "agent": "build", "time": {"created": 1}}
        yield [bus("message.updated", {"info": info})]
        for call in range(TURN_CALLS):
            own = {"messageID": answer}
            ids = [f"prt_{turn:08d}{call:02d}{letter}" for letter in "abc"]
            state = {
                "status": "completed",
                "input": {"command": f"make test-{call}", "description": "Runs the tests"},
                "output": TEXT,
                "time": {"start": 1, "end": 1201},
            }
            ran = {"id": ids[0], "type": "tool", "tool": "bash", "callID": f"call_{turn}_{call}", "state": state}
            yield [part(own | ran)]
            yield [part(own | {"id": ids[1], "type": "text", "text": TEXT, "time": {"start": 1, "end": 2}})]
            tokens = {"input": 900, "output": 120, "reasoning": 0, "cache": {"read": 4000, "write": 0}}
            end = {"id": ids[2], "type": "step-finish", "reason": "tool-calls", "cost": 0.0125, "tokens": tokens}
            yield [part(own | end)]
        yield [bus("session.idle", {})]


async def feed(home: Home, number: int, rate: float, seconds: float) -> None:
    """Send hooks of some ``rate`` events a second to a running sidecar."""
    identity = ShimIdentity("bench", IDENTITY.nonce()[:32], IDENTITY.nonce()[:16], 1, "", "/bench", "", "", 0)
    async with await ShimClient.connect(home, identity=identity, nonce=IDENTITY.nonce) as client:
        made, start = hooks(number), time.perf_counter()
        for slice_ in range(round(seconds * SLICES_A_SECOND)):
            await client.send([*chain.from_iterable(islice(made, round(rate / SLICES_A_SECOND)))])
            await client.drained()
            await asyncio.sleep(max(0.0, start + (slice_ + 1) / SLICES_A_SECOND - time.perf_counter()))


@asynccontextmanager
async def sidecars(top: Path, many: int, server: Postgres | None) -> AsyncIterator[list[tuple[Home, int]]]:
    """Homes, each with a sidecar and its pid; they copy to ``server`` if there is one."""
    async with AsyncExitStack() as stack:
        found = []
        for number in range(many):
            home = Home(top / f"{number:02d}")
            home.create()
            if server is not None:
                told = f'[team]\ndatabase = "{server.address()}"\nmachine = "machine-{number:02d}"\n'
                home.config_path.write_text(told)
            found.append((home, (await stack.enter_async_context(sidecar(home))).pid))
        yield found


def cpu_of(pids: list[int]) -> float:
    """Seconds of CPU that processes and their ended children used. Linux only."""
    ticks = 0
    for pid in pids:
        with suppress(FileNotFoundError):  # it has ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_of_server(server: Postgres) -> float:
    """Of the server and all its processes, ended ones included."""
    pid = server.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_of([pid, *map(int, children)])


async def run(top: Path, many: int, rate: float, seconds: float, *, has_search: bool) -> list[Row]:
    """Feed ``many`` homes, with a team and without one."""
    async with sidecars(top / f"alone-{many}", many, None) as homes:
        alone, events = await _fed(homes, rate, seconds)
        alone /= events
    settings = {"track_commit_timestamp": "on", "max_connections": max(100, many + 20)}
    server = await asyncio.to_thread(lambda: Postgres(**settings).start())
    try:
        if has_search:
            with server.connect() as connection:
                connection.execute("CREATE EXTENSION pg_trgm SCHEMA public")
        async with sidecars(top / f"team-{many}", many, server) as homes:
            await _copied(server, homes)
            before, lsn = cpu_of_server(server), server.ask("SELECT pg_current_wal_lsn()")[0][0]
            start = time.perf_counter()
            used, events = await _fed(homes, rate, seconds)
            await _copied(server, homes)
            taken = time.perf_counter() - start
            spent = cpu_of_server(server) - before
            rows = _figures(server, events, taken, spent, used / events - alone, lsn)
            rows += [await _read(homes[0][0], command) for command in READS]
        return [Row(f"{many} homes: {row.label}", *row_rest(row)) for row in rows]
    finally:
        await asyncio.to_thread(server.close)


def row_rest(row: Row) -> tuple[float, float | None, str]:
    return row.value, row.limit, row.unit


async def _fed(homes: list[tuple[Home, int]], rate: float, seconds: float) -> tuple[float, int]:
    """Seconds of CPU of all sidecars, and how many events they recorded."""
    pids = [pid for _, pid in homes]
    before = cpu_of(pids)
    heads = sum(LogReader(home.store_path).head for home, _ in homes)
    await asyncio.gather(*(feed(home, number, rate, seconds) for number, (home, _) in enumerate(homes)))
    return cpu_of(pids) - before, sum(LogReader(home.store_path).head for home, _ in homes) - heads


async def _copied(server: Postgres, homes: list[tuple[Home, int]]) -> None:
    """Wait until all that was recorded is in Postgres, with its story."""
    wanted = sorted(LogReader(home.store_path).head for home, _ in homes)
    until = time.monotonic() + PATIENCE_SECONDS
    query = "SELECT least(head, story_head) FROM durable_stream.homes ORDER BY 1"
    while True:
        has_tables = server.ask("SELECT to_regclass('durable_stream.homes') IS NOT NULL")[0][0]
        if has_tables and [row[0] for row in await asyncio.to_thread(server.ask, query)] >= wanted:
            return
        if time.monotonic() > until:
            raise RuntimeError("the copy does not get level")
        await asyncio.sleep(0.1)


_LAG: Final = """SELECT percentile_cont(ARRAY[0.5, 0.99, 1]) WITHIN GROUP (ORDER BY lag) FROM (
    SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 - ts / 1000.0::float8 AS lag
    FROM records WHERE type <> 'lifecycle.sidecar.started') AS each"""
_SIZES: Final = """SELECT relname, pg_table_size(oid), pg_indexes_size(oid) FROM pg_class
    WHERE relnamespace = 'durable_stream'::regnamespace AND relkind = 'r'"""
_TEXTS: Final = "SELECT coalesce(sum(pg_relation_size(oid)), 0) FROM pg_class WHERE relname = 'records_text'"


def sizes(server: Postgres, events: int) -> list[Row]:
    """Bytes for each event: records and story, tables and indexes."""
    found = {name: (table_, index) for name, table_, index in server.ask(_SIZES)}
    own, story = found.pop("records"), [sum(each) for each in zip(*found.values(), strict=True)]
    texts = int(server.ask(_TEXTS)[0][0])
    parts = {"records": own[0], "their indexes": own[1] - texts, "index of texts": texts}
    parts |= {"story": story[0], "its indexes": story[1]}
    return [Row(f"bytes an event, {name}", size / events, None, "B") for name, size in parts.items()]


def _figures(server: Postgres, events: int, taken: float, spent: float, shipping: float, lsn: str) -> list[Row]:
    ((middle, late, worst),), (wal,) = (
        server.ask(_LAG)[0],
        server.ask("SELECT pg_current_wal_lsn() - %s::pg_lsn", lsn)[0],
    )
    own = "pid <> pg_backend_pid() AND application_name = 'durable-stream'"
    (connections,) = server.ask(f"SELECT count(*) FROM pg_stat_activity WHERE {own}")[0]
    return [
        Row("events copied a second", events / taken, None, "/s"),
        Row("lag, median", middle, None, "s"),
        Row("lag, 99 of 100", late, None, "s"),
        Row("lag, worst", worst, None, "s"),
        Row("CPU of Postgres, of one core", spent / taken * 100, None, "%"),
        Row("CPU of Postgres, an event", spent / events * 1e6, None, "µs"),
        Row("CPU of a sidecar for the copy, an event", shipping * 1e6, None, "µs"),
        Row("WAL, an event", float(wal) / events, None, "B"),
        Row("connections", connections, None, ""),
        *sizes(server, events),
    ]


async def _read(home: Home, words: tuple[str, ...]) -> Row:
    """How long a command takes with all homes of the team, beside this home alone."""
    taken: dict[str, list[float]] = {"": [], "--team": []}
    for _ in range(READ):
        for option, times in taken.items():
            command = [sys.executable, "-m", "sidecar.cli", "--home", str(home.path), *words, *option.split()]
            start = time.perf_counter()
            await asyncio.to_thread(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))  # noqa: B023
            times.append(time.perf_counter() - start)
    alone, team = map(statistics.median, taken.values())
    return Row(f"{words[0]} --team", 1 / team, 1 / alone, "of this home")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.team_scale", description=__doc__)
    parser.add_argument("--homes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=50.0, help="events a second for each home (default 50)")
    parser.add_argument("--search", action="store_true", help="with the index of texts")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=os.environ.get("BENCH_DIR")) as name:
        for many in given.homes:
            rows = asyncio.run(run(Path(name), many, given.rate, given.seconds, has_search=given.search))
            print(table(rows), flush=True)


if __name__ == "__main__":
    main()
