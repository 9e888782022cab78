"""Repairing a store: only what is provably safe, without losing anything that verifies, also after a kill."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from streams.findings import Finding
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.migrate import Migration
from streams.log.reader import LogReader
from streams.log.repair import RepairRun, examine
from streams.log.repair_plan import Facts, Item, StoreFacts, decide
from streams.store import Snapshot
from streams.stores.directory import Backend, KeptStore, Manifest, read_manifest
from streams.stores.hints import Hints
from streams.stores.sqlite.search import SearchIndex
from tests.streams.builders import event, events
from tests.streams.calls import Call, watching
from tests.streams.opened import faults
from tests.streams.sizes import size

EVERY = size("REPAIR_EVERY", 20)
"""Every so manieth change by SQLite is cut off at; those by Python, all of them."""


async def write(store: Path, backend: Backend = "jsonl", count: int = 8) -> None:
    log = await Log.open(store, seeded_identity(1), backend=backend, segment_bytes=1500)
    for number in range(count):
        await log.append(events(2, prefix=f"{number}-", stream=f"ses_{number % 2}"))
    await log.close()


async def move(store: Path, to: Backend) -> None:
    log = await Log.open(store, seeded_identity(1), segment_bytes=1500)
    await Migration(log, to).run()
    await log.close()


async def keys(store: Path) -> list[str | None]:
    reader = LogReader(store)
    found = [record.event.idempotency_key async for record in reader.read_all()]
    await reader.close()
    return found


async def repair(store: Path) -> list[Item]:
    items = decide(await examine(store), log_id="new")
    repair_run = RepairRun(store)
    for item in items:
        if item.action is not None:
            await repair_run.carry_out(item)
    return items


def segments(store: Path) -> list[Path]:
    return sorted((store / "log").glob("*.jsonl"))


def contents(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name != "lock" and not path.name.endswith(("-shm", "-wal"))
    }


def execute(store: Path, *statements: str, file: str = "log.db") -> None:
    connection = sqlite3.connect(store / file, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


# What is safe, on real stores


def torn_tail(store: Path) -> None:
    with segments(store)[-1].open("ab") as file:
        file.write(b'{"crc":"00000000","event":{"id"')


def head_lost(store: Path) -> None:
    (store / "head").unlink()


def head_damaged(store: Path) -> None:
    (store / "head").write_bytes(b"?" * 160)


def torn_and_head_lost(store: Path) -> None:
    torn_tail(store)
    head_lost(store)


def manifest_lost(store: Path) -> None:
    (store / "store.json").unlink()


def manifest_damaged(store: Path) -> None:
    (store / "store.json").write_bytes(b'{"backend')


def hints_damaged(store: Path) -> None:
    Hints(store).put_snapshot("capture", Snapshot(1, 3, b"{}"))
    (store / "hints" / "snapshot-capture").write_bytes(b"?")


def hints_ahead(store: Path) -> None:
    Hints(store).advance("mirror", 99)


def drafts(store: Path) -> None:
    (store / "store.json.new").write_bytes(b"{")
    Hints(store).advance("mirror", 1)
    (store / "hints" / "cursor-mirror.new").write_bytes(b"x")


def index_row_lost(store: Path) -> None:
    """An index that lacks a row, as after a bad sector or an SQLite bug."""
    execute(
        store,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = 'CREATE INDEX records_by_type ON records (type) WHERE position <> 3'"
        " WHERE name = 'records_by_type'",
    )
    execute(store, "REINDEX")
    execute(
        store,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = 'CREATE INDEX records_by_type ON records (type)'"
        " WHERE name = 'records_by_type'",
    )


def search_damaged(store: Path) -> None:
    index = SearchIndex(store)
    index.advance(100)
    index.close()
    (store / "search.db").write_bytes(b"damaged" * 1000)


def search_ahead(store: Path) -> None:
    index = SearchIndex(store)
    index.advance(100)
    index.close()
    execute(store, "UPDATE progress SET position = 99", file="search.db")


def write_ahead_log_of_no_database(store: Path) -> None:
    (store / "search.db-wal").write_bytes(b"stale" * 100)


Damage = Callable[[Path], None]
ANY: tuple[Damage, ...] = (manifest_lost, manifest_damaged, hints_damaged, hints_ahead, drafts)
SAFE: dict[Backend, tuple[Damage, ...]] = {
    "jsonl": (*ANY, torn_tail, head_lost, head_damaged, torn_and_head_lost),
    "sqlite": (
        *ANY,
        index_row_lost,
        search_damaged,
        search_ahead,
        write_ahead_log_of_no_database,
    ),
}
CASES = [(backend, damage) for backend, all_of_them in SAFE.items() for damage in all_of_them]


@pytest.mark.parametrize(("backend", "damage"), CASES, ids=[f"{b}-{d.__name__}" for b, d in CASES])
async def test_what_is_safe_is_mended_and_mended_once(tmp_path: Path, backend: Backend, damage: Damage) -> None:
    await write(tmp_path, backend)
    before = await keys(tmp_path)
    damage(tmp_path)
    found = contents(tmp_path)
    assert decide(await examine(tmp_path), log_id="new") and contents(tmp_path) == found, "looking changes nothing"
    items = await repair(tmp_path)
    assert items and all(item.action is not None for item in items), items
    assert await faults(tmp_path) == [] and await keys(tmp_path) == before
    after = contents(tmp_path)
    assert await repair(tmp_path) == [] and contents(tmp_path) == after
    log = await Log.open(tmp_path, seeded_identity(2))
    assert log.backend == backend and (await log.append([event("more")]))[0].position == len(before)
    await log.close()


async def test_what_is_taken_away_is_kept(tmp_path: Path) -> None:
    await write(tmp_path)
    torn_tail(tmp_path)
    manifest_damaged(tmp_path)
    hints_damaged(tmp_path)
    await repair(tmp_path)
    kept = {path.relative_to(tmp_path / "repaired" / "1") for path in (tmp_path / "repaired").rglob("*")}
    assert {Path("store.json"), Path("hints/snapshot-capture")} <= kept
    assert [path.read_bytes()[:7] for path in (tmp_path / "torn").iterdir()] == [b'{"crc":']
    manifest_damaged(tmp_path)
    await repair(tmp_path)
    assert (tmp_path / "repaired" / "2" / "store.json").exists(), "nothing that was kept is replaced"


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
async def test_a_lost_pointer_to_one_of_two_stores_is_not_guessed(tmp_path: Path, backend: Backend) -> None:
    """After a migration both are whole, and only the user knows which one is the log."""
    other: Backend = "sqlite" if backend == "jsonl" else "jsonl"
    await write(tmp_path, other)
    await move(tmp_path, backend)
    before = await keys(tmp_path)
    manifest_lost(tmp_path)
    files = contents(tmp_path)
    assert [item.action for item in await repair(tmp_path)] == [None]
    assert contents(tmp_path) == files
    for name in ("log", "head") if other == "jsonl" else ("log.db", "sqlite-head"):
        (tmp_path / name).rename(tmp_path.parent / f"{name}-away")
    assert [item.action for item in await repair(tmp_path)] == ["write manifest"]
    assert read_manifest(tmp_path) == Manifest(backend, "new")
    assert await keys(tmp_path) == before and await faults(tmp_path) == []


async def test_an_unfinished_copy_is_set_aside_and_a_longer_store_is_not(tmp_path: Path) -> None:
    await write(tmp_path)

    def stop(progress: object) -> None:
        if (tmp_path / "log.db").exists() and getattr(progress, "phase", "") == "switching":
            raise asyncio.CancelledError

    log = await Log.open(tmp_path, seeded_identity(1))
    with pytest.raises(asyncio.CancelledError):
        await Migration(log, "sqlite", stop).run()
    await log.append([event("since")])
    await log.close()
    before = await keys(tmp_path)
    items = await repair(tmp_path)
    assert [item.action for item in items] == ["set aside"] and "migration" in items[0].text
    assert (tmp_path / "repaired" / "1" / "log.db").exists() and not list(tmp_path.glob("log.db*"))
    assert await keys(tmp_path) == before and await faults(tmp_path) == []

    await write(tmp_path / "other", "sqlite", count=30)
    shutil.copy(tmp_path / "other" / "log.db", tmp_path / "log.db")
    items = await repair(tmp_path)
    assert [item.action for item in items] == [None] and (tmp_path / "log.db").exists()


# What is not


@pytest.mark.parametrize("head", [True, False])
async def test_damage_below_head_is_never_cut(tmp_path: Path, head: bool) -> None:
    await write(tmp_path)
    torn_tail(tmp_path)
    path = segments(tmp_path)[1]
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0].replace(b"test:", b"tess:"), *lines[1:]]))
    if not head:
        head_lost(tmp_path)
    before = contents(tmp_path)
    items = await repair(tmp_path)
    assert items and all(item.action is None for item in items) and contents(tmp_path) == before
    assert any("wrong checksum" in item.found and "backup" in item.text for item in items)
    assert any("restore the log first" in item.text for item in items), "the tail stays, too"


async def test_a_lost_pointer_to_a_damaged_log_is_not_written(tmp_path: Path) -> None:
    await write(tmp_path)
    segments(tmp_path)[1].unlink()
    manifest_lost(tmp_path)
    before = contents(tmp_path)
    items = await repair(tmp_path)
    assert items[0].action is None and "failed verification" in items[0].text and contents(tmp_path) == before
    assert any(item.found.startswith("missing") for item in items)


async def test_a_pointer_to_a_store_that_is_gone(tmp_path: Path) -> None:
    """The remaining store may be older, so only the user can accept it; the described way works."""
    await write(tmp_path)
    await move(tmp_path, "sqlite")
    for path in tmp_path.glob("log.db*"):
        path.unlink()
    before = contents(tmp_path)
    items = await repair(tmp_path)
    assert [item.action for item in items] == [None, None] and contents(tmp_path) == before
    (tmp_path / "sqlite-head").rename(tmp_path.parent / "sqlite-head.away")
    (tmp_path / "store.json").rename(tmp_path.parent / "store.json.away")
    assert [item.action for item in await repair(tmp_path)] == ["write manifest"]
    assert await faults(tmp_path) == [] and len(await keys(tmp_path)) == 16


# The decision alone


def fault(kind: str, position: int | None = None, file: str = "/store/log/0.jsonl") -> Finding:
    return Finding(kind, file, None, position, None, "why")  # type: ignore[arg-type]


JSONL, SQLITE = Manifest("jsonl", "x"), Manifest("sqlite", "x")


@pytest.mark.parametrize(
    ("facts", "actions"),
    [
        (Facts(), []),
        (Facts(JSONL, stores={"jsonl": StoreFacts(3, 4)}), []),
        (Facts(JSONL, stores={"jsonl": StoreFacts(3, 4, (fault("torn", 4),))}), ["open"]),
        (Facts(JSONL, stores={"jsonl": StoreFacts(3, 4, (fault("missing", file="/store/head"),))}), ["open"]),
        (Facts(JSONL, stores={"jsonl": StoreFacts(3, 3, (fault("corrupt", 1), fault("torn", 4)))}), [None, None]),
        (Facts(JSONL, stores={"jsonl": StoreFacts(3, 4, (fault("tampered", 1),))}), [None]),
        (Facts(JSONL, stores={}), [None]),
        (Facts(SQLITE, stores={"sqlite": StoreFacts(3, 4, (fault("corrupt"),))}), ["copy rows"]),
        (Facts(SQLITE, stores={"sqlite": StoreFacts(3, 3, (fault("corrupt"),))}), [None]),
        (Facts(SQLITE, stores={"sqlite": StoreFacts(3, 4, (fault("corrupt"), fault("tampered", 2)))}), [None, None]),
        (Facts(manifest_is_damaged=True), ["set aside"]),
        (Facts(stores={"jsonl": StoreFacts(3, 4)}), ["write manifest"]),
        (Facts(stores={"jsonl": StoreFacts(3, 4), "sqlite": StoreFacts(2, 3)}), [None]),
        (Facts(stores={"jsonl": StoreFacts(3, 4), "sqlite": StoreFacts()}), ["write manifest", "set aside"]),
        (Facts(JSONL, stores={"jsonl": StoreFacts(3, 4), "sqlite": StoreFacts(2)}), ["set aside"]),
        (Facts(JSONL, stores={"jsonl": StoreFacts(3, 4), "sqlite": StoreFacts(9)}), [None]),
        (
            Facts(
                Manifest("jsonl", "x", KeptStore("sqlite", 2)),
                stores={"jsonl": StoreFacts(3, 4), "sqlite": StoreFacts(2)},
            ),
            [],
        ),
        (
            Facts(drafts=("a.new",), damaged_hints=("hints/a",), hints_ahead=("hints/b",), search_fault="damaged"),
            ["set aside", "set aside", "set aside", "delete"],
        ),
    ],
)
def test_the_table(facts: Facts, actions: list[str | None]) -> None:
    items = decide(facts, log_id="new")
    assert [item.action for item in items] == actions
    assert all(item.found and item.text for item in items)


# Killed in between


async def test_what_a_database_needs_that_is_gone_stays_for_it(tmp_path: Path) -> None:
    """Its WAL may contain records, as after a crash; a backup of the database is useless without it."""
    log = await Log.open(tmp_path / "store", seeded_identity(1), backend="sqlite")
    await log.append(events(5))
    shutil.copytree(tmp_path / "store", tmp_path / "crashed")
    await log.close()
    (tmp_path / "crashed" / "log.db").unlink()
    wal = (tmp_path / "crashed" / "log.db-wal").read_bytes()
    assert [item.action for item in await repair(tmp_path / "crashed")] == [None]
    assert wal and (tmp_path / "crashed" / "log.db-wal").read_bytes() == wal


@pytest.mark.parametrize(
    ("backend", "damages"),
    [
        ("jsonl", (torn_and_head_lost, manifest_damaged, hints_damaged, drafts)),
        ("sqlite", (search_ahead, index_row_lost, hints_ahead)),
    ],
)
async def test_killed_at_every_step_and_run_again(
    tmp_path: Path, backend: Backend, damages: tuple[Damage, ...]
) -> None:
    """What is on the disk before each change, as a kill would leave it, is repaired as well."""
    store, images = tmp_path / "store", list[Path]()
    await write(store, backend, count=3)
    before = await keys(store)
    for damage in damages:
        damage(store)
    changes = 0

    def keep(call: Call) -> None:
        nonlocal changes
        changes += 1
        if (call.by == "python" and not call.kind.startswith("sync")) or changes % EVERY == 0:
            images.append(tmp_path / str(changes))
            shutil.copytree(store, images[-1])

    with watching(store, keep):
        await repair(store)
    assert len(images) > 8
    for image in images:
        items = await repair(image)
        assert all(item.action is not None for item in items)
        assert await faults(image) == [] and await keys(image) == before
        assert await repair(image) == []
