"""``kill -9`` at every step between a message's arrival and its effect.

A process takes commands, answers them with events, messages and effects, and is killed at a named point, at any of its
passings. The next one goes on, until nothing is left to do. ``TORTURE_RUNTIME_KILLS`` sets how often at each point.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections import Counter
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any

import pytest

from sidecar.agents.inputs import agent_stream, effects_stream
from sidecar.agents.stops import POINTS, Point
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.store import Record
from streams.stores.directory import Backend
from tests.sidecar.agents import crashing_process
from tests.sidecar.agents.crashing_process import AGENT, Clerk, append, lines
from tests.streams.opened import collect
from tests.streams.sizes import size
from tests.torture.figures import note, seeded

KILLS = size("RUNTIME_KILLS", 1)
KILLS_A_HOME = 10
TYPES = ("plain", "honest", "unsafe")
COMMANDS = 6
"""New commands before each life."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.sidecar.agents.crashing_process"])


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
async def test_killed_at_any_point_nothing_is_lost_or_done_twice(
    tmp_path: Path, backend: Backend, point: Point
) -> None:
    random = seeded(f"runtime {backend} {point}")
    total: Counter[str] = Counter()
    homes = max(KILLS // KILLS_A_HOME, 1)
    for number in range(homes):
        path = tmp_path / str(number)
        path.mkdir()
        kills = await asyncio.to_thread(live_and_die, path, backend, point, random, KILLS // homes)
        total += await check(path)
        total["kills"] += kills
    note("runtime", lost=0, doubled=0, **total)


def live_and_die(path: Path, backend: Backend, point: Point, random: Random, kills: int) -> int:
    """Kill ``kills`` processes at the point, each after new commands; then let one end. Returns the kills."""
    done = given = 0
    for _ in range(kills * 20):
        for _ in range(COMMANDS):
            type_ = random.choice(TYPES)
            append(path / "commands", json.dumps({"key": f"k{given}", "type": type_, "n": given}))
            given += 1
        done += live(path, backend, point, random.randint(1, 4)) is None
        if done == kills:
            break
    assert done == kills, "the point was not passed"
    status = live(path, backend, None, 0)
    assert status is not None
    (path / "status").write_text(json.dumps(status[0]))
    return done


def live(path: Path, backend: Backend, point: Point | None, passing: int) -> list[dict[str, Any]] | None:
    """One process: its report, or ``None`` if it was killed."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=crashing_process.run, args=(path, backend, point, passing, theirs))
    process.start()
    theirs.close()
    try:
        report: list[dict[str, Any]] | None = ours.recv()
    except EOFError:
        report = None
    process.join(60)
    # 255: starting another process, in another thread, may read the code first.
    assert process.exitcode in ((-SIGKILL, 255) if report is None else (0, 255))
    return report


async def check(path: Path) -> Counter[str]:
    """Compare the log and the outside with what must be; returns counts."""
    assert [str(finding) async for finding in Verification(path / "store").run()] == []
    reader = LogReader(path / "store")
    try:
        own = await collect(reader.read(agent_stream(AGENT)))
        ledger = await collect(reader.read(effects_stream(AGENT)))
    finally:
        await reader.close()
    given = [json.loads(line)["key"] for line in lines(path / "commands")]
    assert sorted(lines(path / "acked")) == sorted(given)
    status = json.loads((path / "status").read_text())
    assert status["dead"] == 0
    count = check_commands(own, ledger, given)

    # Every message, with an id by which its receiver drops repetitions.
    published = {tuple(json.loads(line)) for line in lines(path / "published")}
    assert published == {(r.event.id, r.event.payload["n"]) for r in own if r.event.metadata.get("route") == "bus"}
    return Counter(inputs=count) + check_effects(path, own, ledger, status["in_doubt"])


def check_commands(own: list[Record], ledger: list[Record], given: list[str]) -> int:
    """Every command of these keys once, and its outputs with it, as if nothing had happened. Returns how many."""
    inputs = [r.event for r in own if r.event.metadata["role"] == "input"]
    commands = {event.metadata["key"]: event for event in inputs if "key" in event.metadata}
    assert Counter(event.metadata["key"] for event in inputs if "key" in event.metadata) == Counter(given)
    clean = Clerk()
    own, at = [record for record in own if record.event.metadata["role"] != "dead"], 1
    while at < len(own):
        event = own[at].event
        type_, payload = event.type, event.payload
        if type_ == "agent.received":
            type_ = payload["type"]
            payload = next(r.event.payload for r in ledger if r.event.id == event.payload["event"])
        at += 1
        for output in clean.receive({"type": type_, "payload": payload}):
            recorded = own[at].event
            assert recorded.causation_id == event.id
            if "effect" in output:
                assert (recorded.payload["kind"], recorded.payload["args"]) == (output["effect"], output["payload"])
            else:
                assert (recorded.type, recorded.payload) == (output["type"], output["payload"])
                clean.apply(output)
            at += 1
    assert clean.count == len(commands)

    return clean.count


def check_effects(path: Path, own: list[Record], ledger: list[Record], in_doubt: int) -> Counter[str]:
    """Every effect: done once where the key is honoured; else once, or shown as in doubt."""
    inputs = [r.event for r in own if r.event.metadata["role"] == "input"]
    requests = {r.event.id: r.event.payload for r in own if r.event.metadata["role"] == "effect"}
    ends = Counter(r.event.payload["request"] for r in ledger if r.event.payload.get("final"))
    doubts = {r.event.payload["request"] for r in ledger if r.event.type == "effect.in_doubt"}
    received = Counter(event.payload["event"] for event in inputs if "event" in event.payload)
    assert set(received.values()) <= {1}
    assert set(received) == {
        r.event.id for r in ledger if r.event.payload.get("final") or r.event.type == "effect.in_doubt"
    }
    honest, unsafe = Counter(lines(path / "honest")), Counter(lines(path / "unsafe"))
    for id_, request in requests.items():
        assert ends[id_] == (id_ not in doubts)
        if request["kind"] == "honest":
            assert id_ not in doubts
            assert honest[request["key"]] == 1
        else:
            assert unsafe[request["key"]] <= 1 if id_ in doubts else unsafe[request["key"]] == 1
    assert set(honest) | set(unsafe) == {
        request["key"] for id_, request in requests.items() if id_ not in doubts or unsafe[request["key"]]
    }
    assert in_doubt == len(doubts)
    return Counter(effects=len(requests), in_doubt=len(doubts))
