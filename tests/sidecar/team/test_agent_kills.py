"""Homes with the team's agents are killed, put to sleep and cut off, and Postgres is killed, while agents work.

``TORTURE_TEAM_AGENT_KILLS`` sets how often.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter as Counts
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from sidecar.agents.checks.replay import replay
from sidecar.agents.inputs import agent_stream, effects_stream
from sidecar.agents.loading import UserAgent
from sidecar.team.log import open_log
from sidecar.team.reading import Reading
from streams.store import Record
from tests.postgres import Postgres
from tests.sidecar.agents.agents import Counter
from tests.streams.sizes import size

KILLS = size("TEAM_AGENT_KILLS", 5)
WORKERS = 3
TERM = 0.6
PATIENCE_SECONDS = 90.0


@pytest.fixture
def durable() -> Iterator[Postgres]:
    """A Postgres that keeps what it acknowledged."""
    found = Postgres().start()
    yield found
    found.close()


class Worker:
    """A worker that takes a share of the commands from the start again after each death."""

    def __init__(self, postgres: Postgres, file: Path, commands: Sequence[str]) -> None:
        self._words = [sys.executable, "-m", "tests.sidecar.team.worker", str(postgres.port), str(file), str(TERM)]
        self._words += commands
        self.start()

    def start(self) -> None:
        self._is_done = False
        self.process = subprocess.Popen(self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def done(self, count: int) -> None:
        """Return when so many more commands were handled, or all."""
        assert self.process.stdout is not None
        while count and not self._is_done:
            self._is_done = self.process.stdout.readline() in ("", "all\n")
            count -= 1

    def all_done(self) -> None:
        while not self._is_done:
            self.done(1)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0


async def history(postgres: Postgres, stream: str) -> list[Record]:
    """The records of a stream, after a look at the whole log, and at what the agent makes of its history."""
    with closing(Reading(postgres.config())) as reading:
        (home,) = reading.homes("team")
        reading.turn_to(home)
        reader = reading.reader(home)
        assert [str(each) async for each in reader.verification().run()] == []
    log = await open_log(postgres.config())
    result = await replay(log, UserAgent("tests:Counter", Counter))  # type: ignore[arg-type]
    found = [record async for record in log.read(stream)]
    await log.close()
    assert result.difference is None
    return found


async def test_each_command_is_handled_once_whoever_dies(durable: Postgres, tmp_path: Path) -> None:
    """Each command is given to two workers at once, and again to each that was killed."""
    random, keys = Random(KILLS), [str(number) for number in range(12 * KILLS)]
    shares = [keys[number::WORKERS] for number in range(WORKERS)]
    workers = [Worker(durable, tmp_path / "acts", shares[n - 1] + shares[n]) for n in range(WORKERS)]
    for number in range(KILLS):
        worker = workers[number % WORKERS]
        worker.done(random.randrange(1, 8))
        if number % 3 == 2:
            durable.kill()
            durable.start()
        else:
            worker.kill()
            worker.start()
        if number % 4 == 3:
            durable.ask("DELETE FROM hints RETURNING 1")
    for worker in workers:
        worker.all_done()
    for worker in workers:
        worker.end()
    records = await history(durable, agent_stream("counter"))
    handled = Counts(str(each.event.metadata["key"]) for each in records if each.event.metadata.get("role") == "input")
    assert handled == Counts(f"c:{key}" for key in keys)
    added = [each.event.payload["was"] for each in records if each.event.type == "counter.added"]
    assert added == list(range(12 * KILLS))


async def test_an_effect_is_never_lost_and_an_unsafe_one_never_done_twice(durable: Postgres, tmp_path: Path) -> None:
    """Homes that carry out effects are killed, and put to sleep for longer than their claims last."""
    random, acts = Random(KILLS), tmp_path / "acts"
    kinds = [("safe", "unsafe")[number % 2] for number in range(5 * KILLS)]
    commands = [f"{number}={kind}" for number, kind in enumerate(kinds)]
    workers = [Worker(durable, acts, commands[number::WORKERS]) for number in range(WORKERS)]
    for number in range(KILLS):
        worker = workers[number % WORKERS]
        worker.done(random.randrange(1, 5))
        match number % 4:
            case 0 | 2:
                worker.kill()
                worker.start()
            case 1:
                worker.process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(2 * TERM)  # longer than a claim lasts, by the clock of Postgres
                worker.process.send_signal(signal.SIGCONT)
            case 3:
                durable.kill()
                durable.start()
    for worker in workers:
        worker.all_done()

    def ended() -> tuple[dict[str, str], dict[str, str]]:
        log = asyncio.run(_steps(durable))
        finals = [each for each in log if each.event.payload.get("final")]
        assert max(Counts(each.event.payload["request"] for each in finals).values(), default=1) == 1
        doubts = {
            each.event.payload["request"]: each.event.payload["kind"]
            for each in log
            if each.event.type == "effect.in_doubt"
        }
        ends = {each.event.payload["request"]: each.event.type for each in finals}
        return ends, {request: kind for request, kind in doubts.items() if request not in ends}

    until = time.monotonic() + PATIENCE_SECONDS
    while sum(map(len, await asyncio.to_thread(ended))) < len(commands):
        assert time.monotonic() < until
        await asyncio.sleep(0.1)
    ends, doubts = await asyncio.to_thread(ended)
    for worker in workers:
        worker.end()
    assert set(doubts.values()) <= {"unsafe"}
    assert set(ends.values()) == {"effect.completed"}
    records = await history(durable, effects_stream("counter"))
    done = Counts(acts.read_text().split())
    completed = [each.event.payload["result"]["n"] for each in records if each.event.type == "effect.completed"]
    assert [n for n in completed if n not in done] == []
    assert [n for n, times in done.items() if kinds[int(n)] == "unsafe" and times > 1] == []


async def _steps(postgres: Postgres) -> list[Record]:
    log = await open_log(postgres.config())
    found = [record async for record in log.read(effects_stream("counter"))]
    await log.close()
    return found
