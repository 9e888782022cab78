"""Cursors and snapshots in the log's database: never ahead of its records, whatever is cut off; and never in the way of
records."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from random import Random

import pytest

from streams.errors import StoreUnavailable
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.store import NOTHING, Snapshot
from streams.stores.journal import mover
from streams.stores.sqlite.cursors_and_snapshots import CURSOR, SNAPSHOT, Hints, Noted
from tests.streams.builders import events
from tests.streams.databases import ask, garble
from tests.streams.opened import collect, faults, held, left_by_a_kill, moved

LAST = "SELECT coalesce(max(position), -1) FROM hints"
HEAD = "SELECT position FROM head"


async def opened(store: Path) -> Log:
    return await Log.open(store, seeded_identity(1))


def positions(hints: Hints, head: int) -> list[int]:
    return [noted.hint.position for _, noted in hints.due(head)]


def test_the_oldest_waiting_value_is_written_however_often_a_newer_one_comes() -> None:
    hints = Hints()
    for position in range(5, 500):
        hints.note(CURSOR, "mirror", Noted(Snapshot(1, position, b"")))
    assert positions(hints, 4) == [] and positions(hints, 5) == [5] and positions(hints, 499) == [499]
    hints.written(hints.due(5))
    assert positions(hints, 498) == [] and positions(hints, 499) == [499]
    hints.written(hints.due(499))
    assert positions(hints, 1000) == [] and hints.newest(CURSOR, "mirror") is None


def test_a_reader_that_went_back_stays_there() -> None:
    hints = Hints()
    for position in (7, 9, 2):
        hints.note(CURSOR, "mirror", Noted(Snapshot(1, position, b"")))
    hints.written(hints.due(3))
    assert positions(hints, 100) == [], "the values before it are not written after it"


def test_a_value_noted_while_another_is_written_waits() -> None:
    hints = Hints()
    hints.note(SNAPSHOT, "x", Noted(Snapshot(1, 1, b"old")))
    due = hints.due(5)
    hints.note(SNAPSHOT, "x", Noted(Snapshot(1, 2, b"new")))
    hints.written(due)
    assert [noted.hint.state for _, noted in hints.due(5)] == [b"new"]


async def test_a_hint_is_written_with_its_record_and_seen_by_other_processes(tmp_path: Path) -> None:
    with held():
        log = await opened(tmp_path)
        await log.append(events(6))
        await log.advance("mirror", 4)
        await log.put_snapshot("lineage", Snapshot(3, 5, b"state"))
        reader = LogReader(tmp_path)
        assert (await log.cursor("mirror"), reader.cursor("mirror")) == (4, NOTHING)
        assert ask(tmp_path, LAST) == NOTHING
        await log.write_hints()
        assert (reader.cursor("mirror"), ask(tmp_path, HEAD)) == (4, 5)
        assert await reader.snapshot("lineage", 3) == Snapshot(3, 5, b"state")
        assert await reader.snapshot("lineage", 2) is None
        copy = left_by_a_kill(tmp_path, tmp_path / "copy")
        await log.close()
    log = await opened(copy)
    assert await log.cursor("mirror") == 4 and await log.snapshot("lineage", 3) == Snapshot(3, 5, b"state")
    await log.close()


async def test_a_hint_that_comes_after_its_record_follows_soon(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await log.append(events(3))
    await moved(log)
    await log.advance("mirror", 2)
    await log.advance("other", 3)
    async with asyncio.timeout(60):
        while ask(tmp_path, LAST) != 2:
            await asyncio.sleep(0.005)
    assert await log.cursor("other") == NOTHING
    await log.append(events(1, prefix="later"))
    await log.write_hints()
    assert await log.cursor("other") == 3 and ask(tmp_path, LAST) == 3
    await log.close()


async def test_hints_that_cannot_be_written_hold_no_record_up(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await log.append(events(3))
    await log.advance("mirror", 1)
    await log.put_snapshot("lineage", Snapshot(1, 2, b"state"))
    await log.close()
    garble(tmp_path, "hints")
    log = await opened(tmp_path)
    assert await log.cursor("mirror") == NOTHING and await log.snapshot("lineage", 1) is None, "it counts as missing"
    assert LogReader(tmp_path).cursor("mirror") == NOTHING
    await log.advance("mirror", 2)
    await log.append(events(4, prefix="more"))
    await asyncio.to_thread(log.mover.drain, log.head)
    assert ask(tmp_path, HEAD) == 6 and len(await collect(log.read_all())) == 7
    assert await log.cursor("mirror") == 2
    await log.close()
    assert len(await faults(tmp_path)) == 1


async def test_who_asks_learns_that_they_are_not_written(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await log.append(events(3))
    await moved(log)
    with sqlite3.connect(tmp_path / "log.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        log._stored._writing.execute("PRAGMA busy_timeout = 0")
        await log.advance("mirror", 1)
        with pytest.raises(StoreUnavailable):
            await log.write_hints()
        other.execute("ROLLBACK")
    other.close()
    await log.write_hints()
    assert ask(tmp_path, LAST) == 1
    await log.close()


async def test_a_removal_drops_noted_and_stored_snapshots(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await log.append(events(6, stream="ses_0"))
    await log.put_snapshot("stored", Snapshot(1, 3, b"x"))
    await log.write_hints()
    with held():
        await log.put_snapshot("noted", Snapshot(1, 4, b"x"))
        await log.advance("mirror", 2)
        await log.prune({"ses_0": 1}, at_ms=1)
    await log.write_hints()
    assert [await log.snapshot(name, 1) for name in ("stored", "noted")] == [None, None]
    assert ask(tmp_path, "SELECT count(*) FROM hints") == 1 and await log.cursor("mirror") == 2
    await log.close()


@pytest.mark.parametrize("seed", range(3))
async def test_after_any_kill_no_hint_is_ahead_of_the_log(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(mover, "MOST_BYTES", 2000)
    random, store, number = Random(seed), tmp_path / "0", 0
    log = await opened(store)
    for step in range(60):
        what = random.choice(["append"] * 4 + ["hint"] * 4 + ["write", "prune", "kill"])
        if what == "append":
            number += 1
            await log.append(events(random.choice([1, 3, 30]), prefix=f"{number}-", stream=f"ses_{number % 3}"))
        elif what == "hint":
            position = random.choice([log.head, log.head, random.randint(NOTHING, log.head + 3)])
            await log.advance("mirror", position)
            await log.put_snapshot("lineage", Snapshot(1, position, b"state at %d" % position))
        elif what == "write":
            await log.write_hints()
        elif what == "prune":
            await log.prune({f"ses_{number % 3}": random.randrange(1, 40)}, at_ms=1)
        else:
            store, old = left_by_a_kill(store, tmp_path / f"{step + 1}"), log
            await old.close()
            assert await asyncio.to_thread(ask, store, LAST) <= await asyncio.to_thread(ask, store, HEAD)
            log = await opened(store)
            snapshot = await log.snapshot("lineage", 1)
            assert snapshot is None or snapshot.state == b"state at %d" % snapshot.position
            assert await log.cursor("mirror") <= log.head
    await log.close()
    assert await faults(store) == [] and ask(store, LAST) <= ask(store, HEAD)
