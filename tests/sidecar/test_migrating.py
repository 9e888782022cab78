"""``migrate`` with real processes, also by itself, and the limits of ``[store]``, which a running sidecar enforces."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sidecar.home import Home
from streams.event import StreamEvent
from streams.identity import system_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.stores.directory import Backend, read_manifest
from tests.sidecar import life
from tests.sidecar.cli.helpers import command, run
from tests.sidecar.support import HANG_SECONDS, RECORDINGS, REPOSITORY, running, start, wait_for
from tests.streams.builders import event

PLAYED = ["chat", "task_parallel", "permission_child"]


def keys(home: Home) -> Counter[str]:
    async def read() -> Counter[str]:
        reader = LogReader(home.store_path)
        found = Counter([record.event.idempotency_key async for record in reader.read_all()])
        await reader.close()
        return found

    return asyncio.run(read())


def backend(home: Home) -> str:
    manifest = read_manifest(home.store_path)
    assert manifest is not None
    return manifest.backend


def play(home: Home, name: str, speed: str = "max") -> subprocess.Popen[str]:
    file = str(RECORDINGS / f"{name}.jsonl")
    return subprocess.Popen(
        command(home.path, "play", file, "--speed", speed), stdout=subprocess.DEVNULL, text=True, cwd=REPOSITORY
    )


def test_there_and_back_while_it_records(home: Home, tmp_path: Path) -> None:
    """Recordings play in parallel while the log migrates there and back; nothing is lost or duplicated."""
    whole = Home(tmp_path / "whole")
    for name in PLAYED:
        assert run(whole.path, "play", str(RECORDINGS / f"{name}.jsonl")).code == 0
    run(whole.path, "stop")
    sidecar = start(home)
    running(home)
    assert play(home, PLAYED[0]).wait(HANG_SECONDS) == 0
    players = [play(home, name, speed="20") for name in PLAYED[1:]]
    for to in ("sqlite", "jsonl", "sqlite"):
        moved = run(home.path, "migrate", "--to", to, "--json")
        assert moved.code == 0, moved.err
        assert json.loads(moved.out)["moved"] is True and backend(home) == to
    assert [player.wait(HANG_SECONDS) for player in players] == [0] * len(players)
    assert run(home.path, "verify").code == 0
    assert keys(home) == keys(whole)
    assert run(home.path, "migrate", "--rollback").code == 0 and backend(home) == "jsonl"
    assert run(home.path, "migrate", "--discard-old").code == 0
    assert run(home.path, "stop").code == 0
    sidecar.wait(HANG_SECONDS)
    assert not (home.store_path / "log.db").exists()
    assert keys(home) == keys(whole)


HELD = (
    sys.executable,
    "-c",
    "import os, sys, time, sidecar.care.upkeep, streams.log.migrate, streams.stores.sqlite.store as s; "
    "sidecar.care.upkeep.LOOK_SECONDS, streams.log.migrate.CHUNK, streams.log.migrate.CLOSE_ENOUGH = 0.1, 8, 16; "
    "hold = sys.argv[sys.argv.index('--home') + 1] + '/hold'; "
    "wait = lambda: [time.sleep(0.01) for _ in iter(lambda: os.path.exists(hold), False)]; "
    "copy = s.SqliteStore._copy; s.SqliteStore._copy = lambda *a: (copy(*a), wait())[0]; "
    "from sidecar.cli import main; main()",
)
"""A sidecar with frequent upkeep, which pauses in the middle of a migration while a file ``hold`` exists."""


def test_by_itself_while_a_shim_records_and_the_sidecar_is_killed(home: Home) -> None:
    """The log grows past the limit and migrates; after a kill the next sidecar continues; nothing is lost."""
    home.config_path.write_text("[store]\nmigrate_at_bytes = 200000\nsegment_bytes = 65536\n")
    hold = home.path / "hold"
    hold.touch()
    with life.shims(1, home.path, command=HELD) as (shim,):
        sent = 0

        def record(count: int) -> None:
            nonlocal sent
            shim.ask("events", **{"from": sent, "count": count, "text": "x" * 300})
            sent += count

        record(300)
        while not (home.store_path / "log.db").exists():
            record(50)
            assert sent < 10_000, "the log migrates automatically"
        first = running(home)
        os.kill(first.pid, signal.SIGKILL)
        assert backend(home) == "jsonl", "killed in the middle"
        record(50)
        wait_for(lambda: (info := home.running()) is not None and info.pid != first.pid, "the next sidecar")
        moving = wait_for(
            lambda: (found := life.status(home).get("migration")) and found["running"] and found, "a move"
        )
        printed = run(home.path, "status").out
        record(50)
        hold.unlink()
        wait_for(lambda: backend(home) == "sqlite", "the log moved")
        record(50)
        shim.until("acked", sent)
        moved = life.status(home)["migration"]
    assert (moving["backend"], moving["progress"]["to"], moving["failed"]) == ("jsonl", "sqlite", None)
    assert re.search(r"^moving   to sqlite while recording: \d+ of \d+ records copied, \d+ %$", printed, re.M), printed
    assert (moved["backend"], moved["running"], moved["failed"]) == ("sqlite", False, None)
    assert moved["kept"]["backend"] == "jsonl"
    assert "kept     the old jsonl store" in run(home.path, "status").out
    assert run(home.path, "stop").code == 0
    assert "kept     the old jsonl store" in run(home.path, "status").out
    assert run(home.path, "verify").code == 0
    ticks = Counter(key for key in keys(home) if "life.tick" in key)
    assert len(ticks) == sent and set(ticks.values()) == {1}


DAY_MS = 86_400_000
LOOKING_OFTEN = (
    sys.executable,
    "-c",
    "from sidecar.care import upkeep; upkeep.LOOK_SECONDS, upkeep.PRUNE_SECONDS = 0.05, 0.1; "
    "from sidecar.cli import main; main()",
)
"""A sidecar that looks after its log often."""


def record(home: Home, backend: Backend, batches: Sequence[Sequence[StreamEvent]]) -> None:
    async def append() -> None:
        log = await Log.open(home.store_path, system_identity(), backend=backend)
        for batch in batches:
            await log.append(batch)
        await log.close()

    asyncio.run(append())


def of(stream: str, days: float, *, records: int = 5, text: str = "") -> list[StreamEvent]:
    """Records of a stream, ``days`` old."""
    ts = system_identity().now_ms() - round(days * DAY_MS)
    return [event(f"{stream}-{n}", stream=stream, ts=ts, payload={"text": text}) for n in range(records)]


def turn_under_way(stream: str, days: float) -> list[StreamEvent]:
    ts = system_identity().now_ms() - round(days * DAY_MS)
    created, started = {"session": stream}, {"session": stream, "message": "msg_1"}
    return [
        event(f"{stream}-made", type_="lifecycle.session.created", stream=stream, ts=ts, payload=created),
        event(f"{stream}-begun", type_="turn.started", stream=stream, ts=ts, payload=started),
    ]


def streams(home: Home) -> set[str]:
    async def read() -> set[str]:
        reader = LogReader(home.store_path)
        found = {record.event.stream_id async for record in reader.read_all()}
        await reader.close()
        return found

    return asyncio.run(read())


def serve_until_pruned(home: Home) -> None:
    life.start_as(LOOKING_OFTEN, home)
    running(home)
    wait_for(lambda: "pruned" in life.logged(home), "the log is pruned")
    assert run(home.path, "stop").code == 0


def test_what_is_too_old_goes_from_every_stream_but_never_from_an_open_turn(home: Home) -> None:
    home.config_path.write_text("[store]\nmax_age_days = 1\n")
    made = [of("ses_old", 40), of("system", 30), of("elsewhere", 20), of("ses_new", 0.5)]
    made += [of("ses_pinned", 40), [event("pin", stream="ses_pinned", type_="stream.pinned", ts=made[0][0].ts)]]
    record(home, "jsonl", [*made, turn_under_way("ses_busy", 2), turn_under_way("ses_stale", 8)])
    serve_until_pruned(home)
    assert streams(home) == {"ses_new", "ses_busy", "ses_pinned"}
    assert run(home.path, "verify").code == 0


def test_the_oldest_streams_go_until_the_log_is_small_enough(home: Home) -> None:
    home.config_path.write_text("[store]\nmax_bytes = 900000\n")
    source = random.Random(1)
    big = {"records": 20, "text": source.randbytes(10_000).hex()}
    made = [of("system", 60), of("elsewhere", 50, **big), turn_under_way("ses_busy", 3)]  # type: ignore[arg-type]
    made += [of("ses_old", 40, **big), of("ses_late", 30), of("ses_new", 0.5, **big)]  # type: ignore[arg-type]
    record(home, "sqlite", made)
    serve_until_pruned(home)
    assert streams(home) == {"system", "ses_busy", "ses_late", "ses_new"}
    assert run(home.path, "verify").code == 0


def test_a_log_within_its_limits_stays(home: Home) -> None:
    home.config_path.write_text("[store]\nmax_bytes = 100000000\nmax_age_days = 100\n")
    record(home, "sqlite", [of("ses_old", 40)])
    life.start_as(LOOKING_OFTEN, home)
    running(home)
    found = wait_for(lambda: life.status(home)["sidecar"]["uptime_ms"] > 500, "it has looked several times")
    assert found and run(home.path, "stop").code == 0 and streams(home) == {"ses_old"}
    assert "pruned" not in life.logged(home) and run(home.path, "verify").code == 0
