"""Several processes want one store, on both backends: one writes, the others are refused at once.

Each winner is killed; its stale lock keeps nobody out, and the next one has everything it acknowledged.
``TORTURE_WRITER_ROUNDS`` sets how often.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIGKILL

import pytest

from streams.errors import StoreLocked
from streams.identity import system_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.stores.directory import Backend, is_being_written
from tests.streams.builders import event
from tests.streams.opened import collect
from tests.streams.sizes import size
from tests.torture.figures import note

ROUNDS = size("WRITER_ROUNDS", 3)
WRITERS = 4
HANG_S = 60

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.streams.test_two_writers"])


def _want(store: Path, backend: Backend, name: str, link: Connection) -> None:
    asyncio.run(_wanting(store, backend, name, link))


async def _wanting(store: Path, backend: Backend, name: str, link: Connection) -> None:
    """Report ready, open the store on command, and write until killed; or report that another one writes."""
    link.send_bytes(b"ready")
    link.recv_bytes()
    try:
        log = await Log.open(store, system_identity(), backend=backend, segment_bytes=3000)
    except StoreLocked as refused:
        link.send_bytes(b"refused " + str(refused).encode())
        return
    number = 0
    while True:
        await log.append([event(f"{name}-{number}")])
        number += 1
        link.send_bytes(b"acked %d" % number)


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
async def test_one_writes_and_its_death_lets_the_next_one_in(tmp_path: Path, backend: Backend) -> None:
    acked: dict[str, int] = {}
    for round_ in range(ROUNDS):
        name, count = await asyncio.to_thread(_round, tmp_path / "store", backend, round_)
        acked[name] = count
        assert not is_being_written(tmp_path / "store")
        reader = LogReader(tmp_path / "store")
        keys = [record.event.idempotency_key for record in await collect(reader.read_all())]
        await reader.close()
        told = dict.fromkeys(key.split(":")[1].rsplit("-", 1)[0] for key in keys)
        assert list(told) == list(acked), "the winners, one after the other"
        for winner, least in acked.items():
            mine = [key for key in keys if key.startswith(f"test:{winner}-")]
            assert mine == [f"test:{winner}-{n}" for n in range(len(mine))] and len(mine) >= least
    assert [finding.kind async for finding in Verification(tmp_path / "store").run()] in ([], ["torn"])
    log = await Log.open(tmp_path / "store", system_identity())
    await log.close()
    assert [str(finding) async for finding in Verification(tmp_path / "store").run()] == []
    note(f"two-writers {backend}", kills=ROUNDS, inputs=ROUNDS * WRITERS, events=sum(acked.values()))


def _round(store: Path, backend: Backend, number: int) -> tuple[str, int]:
    """Start all at once; return the winner's name, and how many appends were acknowledged before it was killed."""
    links, processes = {}, {}
    for writer in range(WRITERS):
        name = f"r{number}w{writer}"
        links[name], theirs = CONTEXT.Pipe()
        processes[name] = CONTEXT.Process(target=_want, args=(store, backend, name, theirs))
        processes[name].start()
        theirs.close()
    try:
        for link in links.values():
            assert link.poll(HANG_S) and link.recv_bytes() == b"ready"
        for link in links.values():
            link.send_bytes(b"go")
        answers = {}
        for name, link in links.items():
            assert link.poll(HANG_S), f"{name} is neither let in nor refused"
            answers[name] = link.recv_bytes()
        winners = [name for name, answer in answers.items() if answer.startswith(b"acked")]
        assert len(winners) == 1, answers
        for name in answers.keys() - winners:
            assert b"is being written by process" in answers[name] and b"durable-stream stop" in answers[name]
        winner, last = links[winners[0]], answers[winners[0]]
        while int(last.split()[1]) < 10:
            assert winner.poll(HANG_S)
            last = winner.recv_bytes()
        processes[winners[0]].kill()
        processes[winners[0]].join(HANG_S)
        assert processes[winners[0]].exitcode in (-SIGKILL, 255)
        while winner.poll(0):
            try:
                last = winner.recv_bytes()
            except (EOFError, OSError):
                break
        return winners[0], int(last.split()[1])
    finally:
        for process in processes.values():
            process.kill()
            process.join(HANG_S)
