"""Verifying a damaged sqlite log: lost records are named by row, position and stream; the rest is verified."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from streams.log.repair import RepairRun, examine
from streams.log.repair_plan import decide

from streams.findings import Finding, Summary
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.verify import Verification
from streams.store import Record
from streams.stores.directory import Backend
from tests.streams.builders import event

PAGE = 4096
RECORDS = 120


async def write(store: Path) -> None:
    """Write records larger than a third of a page, so that a page has few of them."""
    log = await Log.open(store, seeded_identity(1), backend="sqlite")
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


@pytest.mark.parametrize("positions", [[3, 80], [RECORDS - 1]])
async def test_what_stands_on_other_pages_is_verified(tmp_path: Path, positions: list[int]) -> None:
    await write(tmp_path)
    for position in positions:
        damage(tmp_path, page_of(tmp_path, position))
    findings, summary = await verify(tmp_path)
    told = lost(findings)
    assert {p for _, _, p, _ in told} >= set(positions) and 0 < len(told) < 12 * len(positions)
    assert summary.records == RECORDS - len(told) and summary.head == RECORDS - 1
    assert told == [("corrupt", p + 1, p, f"ses_{p % 2}") for _, _, p, _ in told if p is not None]
    assert all("cannot be read: database disk image is malformed" in f.reason for f in findings if f.line)


async def test_where_the_index_is_damaged_too_the_rest_is_one_finding(tmp_path: Path) -> None:
    await write(tmp_path)
    damage(tmp_path, page_of(tmp_path, 41))
    damage(tmp_path, root_page(tmp_path, "records_by_stream"))
    findings, summary = await verify(tmp_path)
    assert summary.records > 20
    first = findings[0]
    assert (first.kind, first.position) == ("corrupt", summary.records) and "cannot read any further" in first.reason


@pytest.mark.parametrize(
    ("index", "is_pruned"), [("records_by_causation", False), ("records_by_type", False), ("records_by_key", True)]
)
async def test_a_damaged_index_is_told_and_built_anew(tmp_path: Path, index: str, is_pruned: bool) -> None:
    await write(tmp_path)
    pruned: list[Record] = []
    if is_pruned:
        log = await Log.open(tmp_path, seeded_identity(2))
        pruned = [record async for record in log.read("ses_1", from_offset=0) if record.offset < 20]
        await log.prune({"ses_1": 20}, at_ms=1)
        await log.forget(["ses_0"], at_ms=2)
        await log.close()
    kept = RECORDS - len(pruned)
    damage(tmp_path, root_page(tmp_path, index))
    findings, summary = await verify(tmp_path)
    assert [(f.kind, f.line, f.position) for f in findings] == [("corrupt", None, None)] * len(findings) != []
    assert (summary.records, summary.pruned) == (kept, len(pruned))
    (item,) = decide(await examine(tmp_path), log_id="new")
    assert item.action == "copy rows"
    repair_run = RepairRun(tmp_path)
    await repair_run.carry_out(item)
    findings, summary = await verify(tmp_path)
    assert findings == [] and summary.records == kept
    assert repair_run.aside is not None and [path.name for path in repair_run.aside.iterdir()] == ["log.db"]
    assert (tmp_path / "log.db").stat().st_mode & 0o777 == 0o600
    log = await Log.open(tmp_path, seeded_identity(3))
    assert (await log.append([event("more")]))[0].position == RECORDS
    for record in pruned:
        (known,) = await log.append([record.event])
        assert known.duplicate, "a late resend of what was pruned"
    await log.close()


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
async def test_a_cursor_beside_a_running_writer_is_no_finding(tmp_path: Path, backend: Backend) -> None:
    log = await Log.open(tmp_path, seeded_identity(1), backend=backend)
    await log.append([event("a")])
    await log.advance("mirror", 5)
    assert (await verify(tmp_path))[0] == []
    await log.close()


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
async def test_a_quick_look_begins_near_the_end_and_checks_the_chain_from_there(
    tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.stores.sqlite.verify._QUICK_RECORDS", 7)
    log = await Log.open(tmp_path, seeded_identity(1), backend=backend, segment_bytes=3000)
    for number in range(20):
        await log.append([event(f"{number}-{n}", stream=f"ses_{(number + n) % 3}") for n in range(1 + number % 3)])
    await log.close()
    quick = Verification(tmp_path, quick=True)
    assert [finding async for finding in quick.run()] == [] and 0 < quick.summary.records < log.head
    if backend == "sqlite":
        connection = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
        connection.execute("UPDATE records SET hash = zeroblob(32) WHERE position = ?", [log.head - 2])
        connection.close()
    else:
        path = sorted((tmp_path / "log").iterdir())[-1]
        lines = path.read_bytes().split(b"\n")
        lines[0] = lines[0].replace(b'"actor":"build"', b'"actor":"other"')
        path.write_bytes(b"\n".join(lines))
    # SQLite's own check is cut off early.
    monkeypatch.setattr("streams.stores.sqlite.file_verify._QUICK_S", 0.0)
    assert [finding async for finding in Verification(tmp_path, quick=True).run()]
