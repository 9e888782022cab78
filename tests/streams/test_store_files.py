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

FILES = [
    ("jsonl", "store.json"),
    ("jsonl", "head"),
    ("jsonl", "log/00000000000000000000.jsonl"),
    ("sqlite", "store.json"),
    ("sqlite", "log.db"),
    ("sqlite", "sqlite-head"),
]


async def filled(store: Path, backend: str) -> None:
    log = await Log.open(store, seeded_identity(1), backend=backend)  # type: ignore[arg-type]
    await log.append(events(3))
    await log.close()


async def read(store: Path) -> int:
    return len([record async for record in LogReader(store).read_all()])


async def check_refused(store: Path, file: str) -> None:
    with pytest.raises(ForeignStore) as writing:
        await (await Log.open(store, seeded_identity(2))).close()
    assert writing.value.path == str(store / file)
    if file == "sqlite-head":
        return  # only a writer needs it
    with pytest.raises(ForeignStore) as reading:
        await read(store)
    assert reading.value.path == str(store / file)


@pytest.mark.parametrize(("backend", "file"), FILES)
async def test_a_file_that_others_may_write_is_refused(tmp_path: Path, backend: str, file: str) -> None:
    store = tmp_path / "store"
    await filled(store, backend)
    (store / file).chmod(0o620 if backend == "jsonl" else 0o602)
    await check_refused(store, file)
    assert (store / file).stat().st_mode & 0o022, "a refusal changes nothing"
    (store / file).chmod(0o600)
    assert await read(store) == 3


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
async def test_a_file_of_another_owner_is_refused(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    await filled(store, backend)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ForeignStore):
        await (await Log.open(store, seeded_identity(2))).close()
    with pytest.raises(ForeignStore):
        await read(store)


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
async def test_a_file_that_others_may_only_read_is_taken(tmp_path: Path, backend: str) -> None:
    store = tmp_path / "store"
    await filled(store, backend)
    for path in store.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
    await (await Log.open(store, seeded_identity(2))).close()
    assert await read(store) == 3
