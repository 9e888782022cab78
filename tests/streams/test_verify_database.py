"""Verifying a damaged database: lost records are named by row, position and stream; the rest is verified."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from streams.errors import StoreUnavailable
from streams.findings import Finding, Summary
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.stores.journal import mover
from tests.streams.builders import event
from tests.streams.databases import change
from tests.streams.opened import collect, held, left_by_a_kill

PAGE = 4096
RECORDS = 120


async def write(store: Path) -> None:
    """Write records larger than a third of a page, so that a page has few of them."""
    log = await Log.open(store, seeded_identity(1))
    for number in range(0, RECORDS, 2):
        text = f"{number:04d}" * 200
        await log.append([event(f"{number + n}", stream=f"ses_{n}", payload={"text": text, "n": n}) for n in (0, 1)])
    await log.close()


async def verify(store: Path) -> tuple[list[Finding], Summary]:
    check = Verification(store)
    return [finding async for finding in check.run()], check.summary


def page_of(store: Path, position: int) -> int:
    """The page that contains a record, found by its bytes."""
    data = (store / "log.db").read_bytes()
    return data.index(f'"idempotency_key":"test:{position}"'.encode()) // PAGE


def root_page(store: Path, name: str) -> int:
    connection = sqlite3.connect(store / "log.db")
    page: int = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", [name]).fetchone()[0]
    connection.close()
    return page - 1


def damage(store: Path, page: int, content: bytes = b"\xee" * 64) -> None:
    with (store / "log.db").open("r+b") as file:
        file.seek(page * PAGE)
        file.write(content)


def lost(findings: list[Finding]) -> list[tuple[str, int | None, int | None, str | None]]:
    return [(f.kind, f.line, f.position, f.stream_id) for f in findings if f.position is not None]


@pytest.mark.parametrize("positions", [[3, 80], [80], [RECORDS - 1]])
async def test_what_stands_before_a_damaged_page_is_verified(tmp_path: Path, positions: list[int]) -> None:
    await write(tmp_path)
    for position in positions:
        damage(tmp_path, page_of(tmp_path, position))
    findings, summary = await verify(tmp_path)
    first = findings[0]
    assert (first.kind, first.position) == ("corrupt", summary.records) and summary.records <= positions[0]
    assert positions[0] - summary.records < 12, "a page holds less"


@pytest.mark.parametrize("index", ["records_by_causation", "records_by_type", "records_by_key"])
async def test_a_damaged_index_is_told_and_nothing_is_lost(tmp_path: Path, index: str) -> None:
    await write(tmp_path)
    damage(tmp_path, root_page(tmp_path, index))
    findings, summary = await verify(tmp_path)
    assert [(f.kind, f.line, f.position) for f in findings] == [("corrupt", None, None)] * len(findings) != []
    assert summary.records == RECORDS


async def test_a_page_is_damaged_and_recording_goes_on(tmp_path: Path) -> None:
    """Reading ends there, and the journal keeps what follows."""
    await write(tmp_path)
    damage(tmp_path, page_of(tmp_path, 41))
    first = min(p for _, _, p, _ in lost((await verify(tmp_path))[0]) if p is not None)
    log = await Log.open(tmp_path, seeded_identity(2))
    records = [(await log.append([event(f"more{n}", stream=f"ses_{n % 2}")]))[0] for n in range(3)]
    assert [record.position for record in records] == [RECORDS, RECORDS + 1, RECORDS + 2]
    await log.close()
    reader = LogReader(tmp_path, to_damage=True)
    assert [record.position async for record in reader.read_all()] == list(range(first))
    assert reader.damage is not None and reader.damage.position == first
    await reader.close()


async def test_a_known_key_is_known_although_the_index_of_keys_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PAUSE_SECONDS", "FIRST_RETRY_SECONDS"):
        monkeypatch.setattr(mover, name, 0.0)
    await write(tmp_path)
    damage(tmp_path, root_page(tmp_path, "records_by_key"))
    log = await Log.open(tmp_path, seeded_identity(2))
    assert log.head == RECORDS - 1
    records = [(await log.append([event(f"more{n}", stream=f"ses_{n % 2}")]))[0] for n in range(3)]
    [known] = [record async for record in log.read_all() if record.position == 7]
    again = await log.append([known.event])
    assert again[0].duplicate and again[0].position == 7
    assert (await log.append([event("more1", stream="ses_1")]))[0].duplicate, "the journal knows its own"
    async with asyncio.timeout(60):
        while log.mover.fault is None:
            await asyncio.sleep(0.005)
    waiting = log.waiting()
    assert waiting["records"] == 3 and waiting["fault"]
    await log.close()
    assert (await verify(tmp_path))[0] != []
    log = await Log.open(tmp_path, seeded_identity(3))
    assert await collect(log.read_all(after=RECORDS - 1)) == records
    await log.close()


async def test_a_key_that_is_nowhere_to_be_looked_up_takes_no_append(tmp_path: Path) -> None:
    await write(tmp_path)
    damage(tmp_path, root_page(tmp_path, "records_by_key"))
    damage(tmp_path, page_of(tmp_path, 41))
    log = await Log.open(tmp_path, seeded_identity(2))
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await log.append([event("more")])
    assert log.head == RECORDS - 1
    await log.close()


async def test_a_quick_look_asks_nothing_of_a_stream_that_rested_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its newest record is in the journal, and those before it are not looked at."""
    monkeypatch.setattr("streams.stores.sqlite.verify._QUICK_RECORDS", 7)
    log = await Log.open(tmp_path / "store", seeded_identity(1))
    for number in range(40):
        await log.append([event(f"{number}", stream=f"ses_{number // 15}")])
    await log.close()
    with held():
        log = await Log.open(tmp_path / "store", seeded_identity(1))
        await log.append([event("late", stream="ses_0")])
        for quick in (True, False):
            assert [finding async for finding in Verification(tmp_path / "store", quick=quick).run()] == []
        copy = left_by_a_kill(tmp_path / "store", tmp_path / "copy")
        await log.close()
    for quick in (True, False):
        assert [finding async for finding in Verification(copy, quick=quick).run()] == []


async def test_a_quick_look_begins_near_the_end_and_checks_the_chain_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.stores.sqlite.verify._QUICK_RECORDS", 7)
    log = await Log.open(tmp_path, seeded_identity(1), segment_bytes=3000)
    for number in range(20):
        await log.append([event(f"{number}-{n}", stream=f"ses_{(number + n) % 3}") for n in range(1 + number % 3)])
    await log.close()
    quick = Verification(tmp_path, quick=True)
    assert [finding async for finding in quick.run()] == [] and 0 < quick.summary.records < log.head
    change(tmp_path, f"UPDATE records SET hash = zeroblob(32) WHERE position = {log.head - 2}")
    # SQLite's own check is cut off early.
    monkeypatch.setattr("streams.stores.sqlite.file_verify._QUICK_S", 0.0)
    assert [finding async for finding in Verification(tmp_path, quick=True).run()]
