"""A reader sees all that is recorded, also by a writer that starts later."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from tests.streams.builders import event, events
from tests.streams.opened import collect


@pytest.fixture
def store(tmp_path: Path) -> Path:
    asyncio.run(write(tmp_path, 0))
    return tmp_path


async def opened(store: Path, seed: int) -> Log:
    return await Log.open(store, seeded_identity(seed))


async def write(store: Path, round_: int) -> None:
    """A writer's whole life: at its end everything is in the database, and the WAL is gone."""
    log = await opened(store, round_ + 1)
    await log.append(events(20, prefix=f"{round_}-", stream=f"ses_{round_ % 3}"))
    await log.close()


async def test_a_reader_goes_on_across_the_lives_of_writers(store: Path) -> None:
    reader = LogReader(store)
    for round_ in range(1, 6):
        assert reader.head == 20 * round_ - 1
        await write(store, round_)
        assert len(await collect(reader.read_all())) == 20 * (round_ + 1)
    log = await opened(store, 9)
    await log.append([event("beside")])
    assert reader.head == 120, "what only the WAL holds is seen, too"
    await log.close()
    await log.close()
    await reader.close()
