"""A turn whose OpenCode process is gone ends automatically, within seconds or at the sidecar's next start."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sidecar.home import Home
from sidecar.read.find_by_id import ask_catalog
from sidecar.read.story.catalog import Catalog
from streams.event import StreamEvent
from streams.log.reader import LogReader
from tests.sidecar.cli.helpers import MAY_REMOVE, run
from tests.sidecar.life import COMMAND, Shim, kill, shims, start_as, wait_for_sidecars
from tests.sidecar.support import RECORDINGS, running, serving, wait_for

T = TypeVar("T")

NO_SIDECAR = ["/no/such/command"]
SOON_SECONDS = 10.0
"""Within this, on a machine that is busy with other tests, the end must be in the log."""


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDINGS / f"{name}.jsonl").read_text().splitlines()]


def place(name: str, type_: str) -> int:
    """The place after the first bus event of a type in a recording."""
    found = (n for n, line in enumerate(lines(name), 1) if type_ in json.dumps(line["input"])[:90])
    return next(found)


def replay(shim: Shim, name: str, begin: int = 0, end: int | None = None) -> None:
    shim.ask("replay", file=str(RECORDINGS / f"{name}.jsonl"), to=end or len(lines(name)), **{"from": begin})


async def events(home: Home, type_: str) -> list[StreamEvent]:
    reader = LogReader(home.store_path)
    found = [record.event async for record in reader.read_all() if record.event.type == type_]
    await reader.close()
    return found


async def wait_outcomes(home: Home, wanted: list[str]) -> float:
    """Wait until these turns ended so, and no others did; how many seconds it took."""
    began = time.monotonic()
    while (found := [e.payload["outcome"] for e in await events(home, "turn.ended")]) != wanted:
        assert time.monotonic() < began + SOON_SECONDS, found
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def told(home: Home, question: Callable[[Catalog], T]) -> T:
    return await ask_catalog(LogReader(home.store_path), question)


async def status(home: Home, stream: str) -> str:
    return await told(home, lambda catalog: catalog.status(stream))


async def asked(shim: Shim, home: Home) -> str:
    """Bring a session to where it waits for a permission; its stream."""
    replay(shim, "permission_once", 0, place("permission_once", "permission.asked"))
    shim.until("welcomes", 1)
    while not (waiting := await told(home, lambda catalog: catalog.asks())):
        await asyncio.sleep(0.02)
    return waiting[0].session


async def test_a_killed_opencode_s_turn_ends_at_once_and_so_does_what_it_asked(home: Home) -> None:
    home.config_path.write_text(MAY_REMOVE)
    with shims(1, home.path) as (shim,):
        stream = await asked(shim, home)
        assert await status(home, stream) == "waiting"
        assert await events(home, "turn.ended") == []
        began = time.time() * 1000
        shim.kill()
        await wait_outcomes(home, ["interrupted"])
    (ended,) = await events(home, "turn.ended")
    (started,) = await events(home, "turn.started")
    assert ended.causation_id == started.id and started.metadata["pid"] == shim.process.pid
    assert 0 <= ended.ts - began < SOON_SECONDS * 1000
    assert await status(home, stream) == "idle" and await told(home, lambda catalog: catalog.asks()) == []
    pruned = run(home.path, "prune", "--stream", stream, "--yes", "--json")
    assert pruned.objects()[0]["plan"]["kept"] == [], pruned.err
    assert await told(home, lambda catalog: [*catalog.streams]) == []


async def test_both_killed_the_next_sidecar_says_so(home: Home) -> None:
    with shims(1, home.path) as (shim,):
        stream = await asked(shim, home)
        shim.process.send_signal(19)  # it must not start another sidecar
        kill(running(home).pid)
        shim.kill()
    wait_for_sidecars(home, 0)
    last = (await told(home, lambda catalog: catalog.sums)).last_ts
    assert await status(home, stream) == "idle", "readers see that nobody can answer any more"
    preview = run(home.path, "prune", "--stream", stream, "--json")
    assert preview.objects()[0]["plan"]["kept"] == [], "no sidecar is needed to see that nobody runs it"
    start_as(COMMAND, home)
    await wait_outcomes(home, ["interrupted"])
    assert (await events(home, "turn.ended"))[0].ts == last, "nobody knows when after its last sign of life"
    running_now = running(home)
    kill(running_now.pid)
    start_as(COMMAND, home)
    wait_for(lambda: (info := home.running()) and info.pid != running_now.pid, "another sidecar")
    assert len(await events(home, "turn.ended")) == 1


async def test_what_a_dead_process_left_in_its_spool_comes_before_the_end(home: Home) -> None:
    with shims(1, home.path, command=NO_SIDECAR) as (shim,):
        replay(shim, "permission_once", 0, place("permission_once", "permission.replied") + 1)
        shim.kill()
    assert list(home.spool_path.iterdir())
    start_as(COMMAND, home)
    await wait_outcomes(home, ["interrupted"])
    assert [e.payload["state"] for e in await events(home, "workflow.checkpoint")] == ["asked", "replied"]
    reader = LogReader(home.store_path)
    assert [record.event.type async for record in reader.read_all()][-1] == "turn.ended"


async def test_a_turn_goes_on_over_the_death_of_the_sidecar_while_its_process_lives(home: Home) -> None:
    with shims(1, home.path) as (shim,):
        await asked(shim, home)
        kill(running(home).pid)
        shim.until("welcomes", 2)
        assert await events(home, "turn.ended") == []
        replay(shim, "permission_once", place("permission_once", "permission.asked"))
        await wait_outcomes(home, ["completed"])


async def test_a_recording_that_ends_in_a_turn_is_nobody_s_death(home: Home, tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    told = (RECORDINGS / "permission_once.jsonl").read_text().splitlines()
    cut.write_text("\n".join(told[: place("permission_once", "permission.asked")]) + "\n")
    played = run(home.path, "play", str(cut), "--speed", "max")
    assert played.code == 0, played.err
    assert run(home.path, "stop").code == 0
    with serving(home):
        pass
    assert await events(home, "turn.ended") == []
    (started,) = await events(home, "turn.started")
    assert "pid" not in started.metadata
