"""Any file of a store damaged in any way: every read and write of it ends, with our own errors; and what ``verify``
does not find has changed nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from streams.errors import ForeignStore, StreamError
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.query import Filter
from streams.store import Record
from tests.streams.builders import event
from tests.streams.databases import change
from tests.streams.derivers import Texts, rows_of
from tests.streams.opened import collect, faults, held, left_by_a_kill
from tests.streams.sizes import size

HANG_S = 120.0
PAGE = 4096


async def make(store: Path, killed: Path | None = None, texts: Texts | None = None) -> None:
    """A log of two hundred records with the traces of a removal; a third of the records is in the journal only."""
    with held():
        log = await Log.open(store, seeded_identity(1), segment_bytes=PAGE, derived=texts)
        for n in range(40):
            batch = [event(f"k{n}-{m}", stream=f"ses_{(n + m) % 6}", payload={"t": "x" * n}) for m in range(5)]
            await log.append(batch)
            if n == 25:
                await log.prune({"ses_1": 9, "ses_4": 15}, at_ms=1)
                await log.forget(["ses_2"], at_ms=2)
        await log.append([event("late", stream="ses_5")])
        if killed is not None:
            left_by_a_kill(store, killed)
        await log.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("made")
    asyncio.run(make(place / "closed", place / "killed"))
    asyncio.run(make(place / "derived", texts=Texts()))
    asyncio.run(derive(place / "derived"))
    return [place / name for name in ("closed", "killed", "derived")]


def damage(random: Random, path: Path) -> str:
    """Change the file and say how."""
    data = bytearray(path.read_bytes())
    at = random.randrange(len(data))
    match random.choice(("bit", "bytes", "zeros", "cut", "page header")):
        case "bit":
            how = "a bit"
            data[at] ^= 1 << random.randrange(8)
        case "bytes":
            how = "bytes"
            length = len(data[at : at + random.choice((1, 4, 16, 64, 512))])
            data[at : at + length] = random.randbytes(length)
        case "zeros":
            how = "zeros"
            length = len(data[at : at + random.choice((16, 512, PAGE))])
            data[at : at + length] = bytes(length)
        case "cut":
            how = "cut"
            del data[at:]
        case _:
            how, at = "the header of a page", min(at // PAGE * PAGE + random.randrange(12), len(data) - 1)
            data[at] = random.randrange(256)
    path.write_bytes(data)
    return f"{path.name}: {how} at {at}"


async def collect_findings(check: Verification) -> list[str]:
    return [str(finding) async for finding in check.run()]


async def verify(store: Path) -> list[str]:
    return await collect_findings(Verification(store))


async def look(store: Path) -> list[str]:
    return await collect_findings(Verification(store, quick=True))


async def read(store: Path) -> None:
    reader = LogReader(store)
    try:
        await collect(reader.read_all())
        await collect(reader.query(Filter(streams=["ses_2"], types=["agent.*"])))
        await collect(reader.query(Filter(text="xxx")))
        await reader.removed()
        await reader.sizes()
        await reader.is_removing()
    finally:
        await reader.close()


async def read_to_damage(store: Path) -> tuple[list[Record], bool]:
    """Read as commands do that print what can be read: all records before the damage, and whether they know of it."""
    reader = LogReader(store, to_damage=True)
    try:
        await reader.removed()
        await reader.sizes()
        for number in range(6):
            await collect(reader.read(f"ses_{number}"))
        found = await collect(reader.read_all())
        return found, reader.damage is not None
    finally:
        await reader.close()


async def write(store: Path) -> None:
    log = await Log.open(store, seeded_identity(2), segment_bytes=PAGE)
    try:
        await log.append([event("new", stream="ses_0")])
        await asyncio.to_thread(log.mover.drain, log.head)
        await log.prune({"ses_3": 5}, at_ms=3)
        await log.forget(["ses_5"], at_ms=4)
    finally:
        await log.close()


async def ask(store: Path) -> None:
    tables = await asyncio.to_thread(LogReader(store).derived, 1)
    if tables is not None:
        with tables:
            rows_of(tables.db)


async def derive(store: Path) -> None:
    """Give the tables some chances to catch up."""
    log = await Log.open(store, seeded_identity(2), segment_bytes=PAGE, derived=Texts())
    try:
        for _ in range(12):
            await asyncio.to_thread(log._stored.derive)
    finally:
        await log.close()


WAYS: tuple[Callable[[Path], Awaitable[list[str] | None]], ...] = (look, verify, read, ask, write, derive)


def damaged(made: list[Path], place: Path) -> Iterator[tuple[Path, Path, str]]:
    random = Random(int(os.environ.get("TORTURE_SEED", "5")))
    for _ in range(size("DAMAGES", 40)):
        shutil.rmtree(place, ignore_errors=True)
        source = random.choice(made)
        shutil.copytree(source, place)
        files = sorted(path for path in place.rglob("*") if path.is_file() and path.stat().st_size)
        files += [path for path in files if path.name in ("log.db", "log.db-wal")] * 6
        yield place, source, damage(random, random.choice([path for path in files if path.name != "lock"]))


async def records(store: Path) -> list[Record]:
    reader = LogReader(store)
    try:
        return await collect(reader.read_all())
    finally:
        await reader.close()


def test_every_way_comes_to_its_end_with_our_errors(made: list[Path], tmp_path: Path) -> None:
    sound = {source: asyncio.run(records(source)) for source in made}
    for store, source, done in damaged(made, tmp_path / "store"):
        with suppress(StreamError):  # as all of it may be lost
            before, is_told = asyncio.run(read_to_damage(store))
            events = [(record.position, record.event) for record in before]
            whole = [(record.position, record.event) for record in sound[source]]
            assert events == whole[: len(events)], f"{done}: not what was written"
            assert is_told or events == whole, f"{done}: nobody noticed that records are missing"
        found: list[str] = []
        for way in WAYS:
            try:
                found += asyncio.run(asyncio.wait_for(way(store), HANG_S)) or []
                if way is verify and not found:
                    assert asyncio.run(records(store)) == sound[source], f"{done}: nobody noticed"
            except StreamError as error:
                found.append(str(error))
                assert str(error)
            except Exception as error:
                raise AssertionError(f"{way.__name__} of {source.name} with {done}: {error!r}") from error


def test_damaged_tables_harm_no_record(made: list[Path], tmp_path: Path) -> None:
    sound = asyncio.run(records(made[2]))
    harmed = 0
    for store, _, done in damaged(made[2:], tmp_path / "store"):
        try:
            found = asyncio.run(verify(store))
        except StreamError:
            continue  # not a log any more
        if all(each.startswith("torn") for each in found):
            harmed += bool(found)
            asyncio.run(derive(store))
            assert asyncio.run(records(store)) == sound, done
            assert asyncio.run(verify(store)) == [], done
    assert harmed


@pytest.mark.parametrize("table", ["removals", "removed_ranges", "bases", "marks"])
async def test_a_row_of_what_was_removed_that_is_gone_is_no_accident_of_ours(tmp_path: Path, table: str) -> None:
    await make(tmp_path)
    change(tmp_path, f"DELETE FROM {table}")
    assert await faults(tmp_path) != []


@pytest.mark.parametrize("removal", ["prune", "forget"])
async def test_a_damaged_record_is_not_removed_and_nothing_is_begun(tmp_path: Path, removal: str) -> None:
    await make(tmp_path)
    change(tmp_path, "UPDATE records SET event = CAST(event || ' ' AS BLOB) WHERE position = 45")
    before = await faults(tmp_path)
    log = await Log.open(tmp_path, seeded_identity(2))
    with pytest.raises(ForeignStore, match=r"record 45 has a wrong checksum.*verify"):
        await (log.prune({"ses_3": 99}, at_ms=3) if removal == "prune" else log.forget(["ses_3"], at_ms=3))
    assert not (await log.removal()).pending
    await log.append([event("it continues")])
    await log.close()
    assert await faults(tmp_path) == before and len(before) == 1


async def test_damage_in_what_a_cut_off_prune_was_to_remove_keeps_nobody_from_writing(tmp_path: Path) -> None:
    await make(tmp_path)
    change(tmp_path, "INSERT INTO pending VALUES ('prune', 'ses_3', 99, 1)")
    change(tmp_path, "UPDATE records SET event = CAST(event || ' ' AS BLOB) WHERE position = 45")
    log = await Log.open(tmp_path, seeded_identity(2))
    await log.append([event("it continues")])
    await log.close()
    told = await faults(tmp_path)
    assert any(each.startswith("torn") for each in told) and any(each.startswith("corrupt") for each in told)
