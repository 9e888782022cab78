"""A log of a million events, as a sidecar would write it, and the commands that use it.

The records go into the database as the mover puts them there; only the journal and its syncs are left out.

``python -m benchmarks.million HOME [--events N]`` measures what a person waits for beside a sidecar whose log has so
many events. It builds the log in ``HOME`` unless it is there, and leaves it for the next run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.link import record_for, sidecar
from benchmarks.report import Row, table
from sidecar.home import Home
from sidecar.read.story.writing import StoryTables
from streams.hashing import GENESIS, chain, encode
from streams.identity import Identity, seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.stores.journal.lines import format_line, parse_stored
from streams.stores.plan import Placed
from streams.stores.sqlite.database import Database
from streams.stores.sqlite.search_index import SearchIndex, remove_search
from streams.stores.stored import Stored

EVENTS = 1_000_000
SESSION_TURNS = 24
"""Turns per session. With the steps below, a session has about 500 events."""

TURN_CALLS = 6
CHUNK = 4096
STARTS = 5
RECORDING_SECONDS = 20.0
SEARCH: Final = ("query", "--text", "nothing holds this", "--limit", "5")
COMMANDS: Final = (
    ("streams", "--limit", "5"),
    ("tree", "--limit", "5"),
    ("log", "ses_00000000root", "--last", "5"),
    ("query", "--type", "lifecycle.*", "--limit", "5"),
    SEARCH,
    ("verify",),
)
RARE = "quizzaciously"
"""A word that one event has: the title of this session."""
RARE_SESSION = 1000
HOOKS = 10_000
WAITED_FOR: Final = (
    ("log", "--last", "20"),
    ("streams", "--limit", "20"),
    ("streams",),
    ("status",),
    ("query", "--text", RARE),
)
TEXT = "It reads the file, changes a line and runs the tests again. " * 9


def session_events(identity: Identity, number: int, turns: int) -> Iterator[dict[str, object]]:
    """The events that one session and its child leave in the log."""
    root, child = f"ses_{number:08d}root", f"ses_{number:08d}child"
    boot = f"boot{number // 20:06d}"

    def one(type_: str, key: str, session: str, payload: dict[str, object], turn: str | None) -> dict[str, object]:
        return {
            "type": type_,
            "stream_id": root,
            "actor": "user" if type_ == "human.input" else "build",
            "source": {"agent": "build", "adapter": "opencode"},
            "idempotency_key": f"{type_}:{session}:{key}",
            "correlation_id": turn,
            "payload": {"session": session, **payload},
            "metadata": {"boot": boot, "event": f"evt_{number}_{key}"},
        }

    title = f"Session {number}" + f" {RARE}" * (number == RARE_SESSION)
    yield one("lifecycle.session.created", root, root, {"title": title, "directory": "/bench"}, None)
    created = {"title": "A child", "parent": root, "directory": "/bench"}
    yield one("lifecycle.session.created", child, child, created, None)
    for turn in range(turns):
        session = child if turn == turns // 2 else root
        message, answer = f"msg_{number:08d}{turn:06d}user", f"msg_{number:08d}{turn:06d}zansw"
        asked = "agent.input" if session == child else "human.input"
        yield one(asked, message, session, {"message": message, "text": TEXT[:120]}, message)
        started = {"message": message, "assistant_message": answer, "agent": "build", "trigger": "prompt"}
        yield one("turn.started", message, session, started, message)
        for call in range(TURN_CALLS):
            part = f"prt_{number:08d}{turn:06d}{call:04d}"
            tool = {
                "kind": "tool",
                "part": part,
                "turn": message,
                "call": f"call_{number:08d}{turn:04d}{call:04d}",
                "tool": "bash",
                "input": {"command": f"make test-{call}", "description": "Runs the tests"},
                "output": TEXT,
                "status": "completed",
                "duration_ms": 1200,
            }
            yield one("execution.step", part, session, tool, message)
            tokens = {"input": 900, "output": 120, "reasoning": 0, "cache": {"read": 4000, "write": 0}}
            inference = {"kind": "inference", "turn": message, "tokens": tokens, "cost": 0.0125, "finish": "tool-calls"}
            yield one("execution.step", f"{part}i", session, inference, message)
            said = {"kind": "text", "turn": message, "part": f"{part}o", "text": TEXT}
            yield one("execution.output", f"{part}o", session, said, message)
        yield one("turn.ended", message, session, {"message": message, "outcome": "completed"}, message)
    yield one("lifecycle.session.ended", root, root, {"reason": "deleted"}, None)


def records(count: int, turns: int = SESSION_TURNS) -> Iterator[Stored]:
    """The first ``count`` records of such a log, each in its own batch; a session has this many turns."""
    identity = seeded_identity(1)
    position = number = 0
    while True:
        previous, cause = GENESIS, None
        for offset, fields in enumerate(session_events(identity, number, turns)):
            if position == count:
                return
            event = identity.stamp({**fields, "causation_id": cause})
            cause = event.id
            encoded = encode(event)
            previous = chain(previous, encoded.digest_form)
            yield stored(Placed(encoded, offset, position, previous))
            position += 1
        number += 1


def stored(placed: Placed) -> Stored:
    """The record as the mover reads it from the journal, in a batch of its own."""
    return parse_stored(format_line(placed, 0, 1)[:-1])


async def build(store: Path, made: Iterable[Stored], story: StoryTables | None = None) -> None:
    """Build a log of these records in ``store``, which must be new, with the story's tables. A million take some
    minutes."""
    await (await Log.open(store, seeded_identity(2))).close()
    database, left = await asyncio.to_thread(Database, store, lambda: None, story or StoryTables()), iter(made)
    await asyncio.to_thread(database.derive)
    while chunk := list(islice(left, CHUNK)):
        await asyncio.to_thread(database.move, chunk)
    await database.close()


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure start time and memory of ``serve`` with a long log, and the time to open a store."""
    count = int(os.environ.get("BENCH_EVENTS", EVENTS))
    name = f"{count:,} events" if count != EVENTS else "1 M events"
    home = Home(directory / "million")
    home.create()
    await build(home.store_path, records(count))
    rows = [Row(f"opening the log, {name}", await _opened(home.store_path), None, "s")]
    rows.append(Row(f"serve ready, {name}, no snapshot", (await _served(home, 0)).ready, None, "s"))
    taken = [await _served(home, 0) for _ in range(STARTS)]
    ready = statistics.median(each.ready for each in taken)
    rows.append(Row(f"serve ready, {name}", ready, None, "s", 2, 0.5))
    empty = Home(directory / "million-none")
    taken = [await _served(empty, 0) for _ in range(STARTS)]
    rows.append(Row("serve ready, an empty log", statistics.median(each.ready for each in taken), None, "s"))
    recording = await _served(home, RECORDING_SECONDS)
    rows.append(Row(f"memory, {name}", recording.memory, None, "MiB", 200, 100))
    rows.append(Row("memory gained while recording continued", recording.gained, None, "MiB"))
    rows += await _commands(home, name)
    shutil.rmtree(home.path)
    return rows


class Served(NamedTuple):
    """One run of a sidecar: seconds until it served, its peak resident MiB, and the MiB that recording added."""

    ready: float
    memory: float
    gained: float


async def _opened(store: Path) -> float:
    start = time.perf_counter()
    log = await Log.open(store, seeded_identity(3))
    taken = time.perf_counter() - start
    await log.close()
    return taken


async def _served(home: Home, seconds: float) -> Served:
    """Start a sidecar; with ``seconds``, record for that time and sample its memory at each quarter."""
    start = time.perf_counter()
    async with sidecar(home) as process:
        ready = time.perf_counter() - start
        seen = [resident(process.pid)]
        if seconds:
            reader = LogReader(home.store_path)
            before, sent = reader.head, 0
            # The sidecar warms up during the first half of the time, so only later growth of its memory counts.
            for _ in range(4):
                sent += await record_for(home, seconds / 4)
                seen.append(resident(process.pid))
            if reader.head - before < sent:
                raise RuntimeError(f"of {sent} events {reader.head - before} were recorded")
    return Served(ready, max(seen), seen[-1] - seen[len(seen) // 2])


def resident(pid: int) -> float:
    """Return a process's resident MiB."""
    if sys.platform == "linux":
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    printed = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], check=True, capture_output=True, text=True)
    return int(printed.stdout) / 1024


async def _commands(home: Home, name: str) -> list[Row]:
    """Measure the commands that only read, without a sidecar."""
    remove_search(home.store_path)  # the row without an index must not depend on how far the sidecar came
    rows = [Row(f"{' '.join(arguments)}, {name}", await _command(home, arguments), None, "s") for arguments in COMMANDS]
    await asyncio.to_thread(index, home.store_path)
    rows.append(Row("the same query --text, with a complete index", await _command(home, SEARCH), None, "s"))
    return rows


async def _command(home: Home, arguments: tuple[str, ...]) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-m", "sidecar.cli", "--home", str(home.path), *arguments]
    # Only the duration and a failure of the command matter here, so discard its output.
    done = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if await done.wait() > ("status" in arguments):  # its 1 says that OpenCode has no plugin
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}")
    return time.perf_counter() - start


def index(store: Path) -> None:
    """Build the search index, as a sidecar does beside its other work."""
    index = SearchIndex(store)
    try:
        while index.advance(CHUNK):
            pass
    finally:
        index.close()


async def waited_for(home: Home, count: int) -> list[Row]:
    """Measure what a person waits for; the first start reads the whole log, unless an earlier run has done so."""
    if not home.store_path.exists():
        home.create()
        await build(home.store_path, records(count))
    index(home.store_path)
    rows = [Row("first start", (await _served(home, 0)).ready, None, "s")]
    start = time.perf_counter()
    async with sidecar(home) as process:
        rows.append(Row("serve ready", time.perf_counter() - start, None, "s"))
        rows.append(Row("memory of the sidecar at start", resident(process.pid), None, "MiB"))
        for command in WAITED_FOR:
            taken = [await _command(home, command) for _ in range(STARTS)]
            rows.append(Row(" ".join(command), statistics.median(taken), None, "s"))
        hooks = 0
        while hooks < HOOKS:
            hooks += await record_for(home, 1)
        rows.append(Row(f"memory after {hooks:,} hooks", resident(process.pid), None, "MiB"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.million", description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--events", type=int, default=EVENTS)
    given = parser.parse_args()
    print(table(asyncio.run(waited_for(Home(given.home), given.events))))


if __name__ == "__main__":
    main()
