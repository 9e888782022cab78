"""Store files that others may write, or that belong to somebody else, are refused as untrustworthy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streams.errors import ForeignStore
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from tests.streams.builders import events
from tests.streams.opened import held, left_by_a_kill

FILES = ["store.json", "head", "log.db", "journal/00000000000000000000.jsonl"]


async def filled(store: Path) -> None:
    """Three records, all of them in the journal only."""
    with held():
        log = await Log.open(store.with_name("open"), seeded_identity(1))
        await log.append(events(3))
        left_by_a_kill(store.with_name("open"), store)
        await log.close()


async def read(store: Path) -> int:
    reader = LogReader(store)
    try:
        return len([record async for record in reader.read_all()])
    finally:
        await reader.close()


async def check_refused(store: Path, file: str) -> None:
    with pytest.raises(ForeignStore) as writing:
        await (await Log.open(store, seeded_identity(2))).close()
    assert writing.value.path == str(store / file)
    with pytest.raises(ForeignStore) as reading:
        await read(store)
    assert reading.value.path == str(store / file)


@pytest.mark.parametrize("mode", [0o620, 0o602])
@pytest.mark.parametrize("file", FILES)
async def test_a_file_that_others_may_write_is_refused(tmp_path: Path, file: str, mode: int) -> None:
    store = tmp_path / "store"
    await filled(store)
    (store / file).chmod(mode)
    await check_refused(store, file)
    assert (store / file).stat().st_mode & 0o022, "a refusal changes nothing"
    (store / file).chmod(0o600)
    assert await read(store) == 3


async def test_a_file_of_another_owner_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    await filled(store)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ForeignStore):
        await (await Log.open(store, seeded_identity(2))).close()
    with pytest.raises(ForeignStore):
        await read(store)


async def test_a_file_that_others_may_only_read_is_taken(tmp_path: Path) -> None:
    store = tmp_path / "store"
    await filled(store)
    for path in store.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
    await (await Log.open(store, seeded_identity(2))).close()
    assert await read(store) == 3
