"""A reader of an unused database leaves no file next to it, and always notices a writer that starts."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.stores.directory import take_lock
from streams.stores.sqlite.at_rest import at_rest
from streams.stores.sqlite.files import connect_to_read
from streams.stores.sqlite.reader import SqliteReader
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


def names(store: Path) -> set[str]:
    return {path.name for path in store.iterdir()}


async def test_a_log_at_rest_is_read_and_nothing_is_left_beside_it(store: Path) -> None:
    before = names(store)
    reader = LogReader(store)
    assert reader.head == 19 and len(await collect(reader.read_all())) == 20
    check = Verification(store)
    assert [finding async for finding in check.run()] == [] and check.summary.records == 20
    assert names(store) == before
    await reader.close()
    assert names(store) == before


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


@pytest.mark.parametrize("fails", [False, True])
async def test_what_was_read_while_a_writer_lived_is_read_again(
    store: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    reader = SqliteReader(store)
    loop = asyncio.get_running_loop()
    asked = 0

    def ask(connection: sqlite3.Connection) -> int:
        nonlocal asked
        asked += 1
        found: int = connection.execute("SELECT count(*) FROM records").fetchone()[0]
        if asked == 1:
            asyncio.run_coroutine_threadsafe(write(store, 1), loop).result()
            if fails:
                raise sqlite3.DatabaseError("the pages do not fit together")
        return found

    assert await asyncio.to_thread(reader._read, ask, -1) == 40 and asked == 2
    await reader.close()


def test_it_counts_on_nothing_where_somebody_is_about_to_write(store: Path) -> None:
    """A writer takes the lock first and creates the write-ahead file later."""
    lock = take_lock(store)
    try:
        assert not list(store.glob("log.db-*")) and at_rest(store / "log.db") is None
        assert at_rest(store / "log.db", alone=True) is not None, "who holds the lock itself is not waited for"
        connection = connect_to_read(store / "log.db", 99)
        assert connection is not None and connection.seen is None
        connection.close()
    finally:
        lock.release()
