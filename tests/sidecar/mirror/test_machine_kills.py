"""``kill -9`` at every step between a request on one machine and its answer there, and of the server between them.

``TORTURE_MACHINE_KILLS`` sets how often at each step.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import COMMANDS
from streams.log.reader import LogReader
from tests.nats_servers import RealServer
from tests.sidecar.mirror import machine_process
from tests.sidecar.mirror.killed_process import lines
from tests.sidecar.mirror.machine_process import ASKER, PLACES, WORKER, Place, Request
from tests.streams.opened import faults
from tests.streams.sizes import size
from tests.torture.figures import note, seeded

KILLS = size("MACHINE_KILLS", 1)
HANG_S = 60.0
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.sidecar.mirror.machine_process"])


class Living:
    """A machine's process, which is started again when it has killed itself."""

    def __init__(self, path: Path, machine: str, server: RealServer, requests: list[Request]) -> None:
        self._given = path, machine, server, requests
        self.kills = 0
        self._process: Any = None
        self._report: Connection

    def start(self, place: Place | None) -> None:
        path, machine, server, requests = self._given
        self._report, theirs = CONTEXT.Pipe(duplex=False)
        arguments = (path, machine, server.options, place, requests, theirs)
        self._process = CONTEXT.Process(target=machine_process.run, args=arguments)
        self._process.start()
        theirs.close()

    def end(self) -> None:
        self._process.kill()
        self._process.join(HANG_S)
        self.kills += 1

    def look(self) -> list[dict[str, Any]] | None:
        """What it reported, if it has; if it has killed itself, it is started again."""
        if not self._report.poll(0.01):
            return None
        with suppress(EOFError):
            found: list[dict[str, Any]] = self._report.recv()
            self._process.join(HANG_S)
            return found
        self.end()
        self.start(None)
        return None


async def test_whoever_is_killed_at_any_step_a_request_is_done_once_and_answered_once(
    tmp_path: Path, own: RealServer
) -> None:
    random, number, kills, answers = seeded("machines"), 0, 0, list[dict[str, Any]]()
    steps: list[Place | None] = [*PLACES, None] * KILLS
    random.shuffle(steps)
    for place in steps:
        requests = [Request(name, number + n) for n, name in enumerate(("spawn", "cancel", "spawn"))]
        number += len(requests)
        worker, asker = Living(tmp_path, WORKER, own, []), Living(tmp_path, ASKER, own, requests)
        both = random.sample([worker, asker], 2)
        for each in both:
            each.start(place)
        if place is None:
            await asyncio.to_thread(own.kill)
            await asyncio.to_thread(own.start)
        async with asyncio.timeout(HANG_S):
            while (found := await asyncio.to_thread(asker.look)) is None:
                await asyncio.to_thread(worker.look)
        answers += found
        worker.end()
        kills += asker.kills + worker.kills + (place is None)
    await judge(tmp_path, number, answers)
    sessions = Sessions(own.ask_options)
    session = await sessions.get()
    left = (await keeping.facts(session, COMMANDS)).messages
    await sessions.close()
    note("machines", kills=kills, inputs=number, lost=0, doubled=0)
    assert kills > 1.5 * len(steps), "nearly each of these steps was passed"
    assert left <= 2 * len(steps), "what was cut off before its ack may be left"


async def judge(path: Path, number: int, answers: list[dict[str, Any]]) -> None:
    done = Counter(line.split()[1] for line in lines(path / "done"))
    assert done == Counter({str(each): 1 for each in range(number)})
    assert len(answers) == number
    for each in answers:
        assert each["status"] == "accepted" or (each["name"], each["error_code"]) == ("cancel", "in-doubt"), each
    kept = {ASKER: ("request.sent", "request.returned"), WORKER: ("request.asked", "request.answered")}
    for machine, types in kept.items():
        assert await faults(path / machine) == []
        reader = LogReader(path / machine)
        found = Counter([record.event.type async for record in reader.read("system/requests")])
        await reader.close()
        assert found == Counter(dict.fromkeys(types, number))
