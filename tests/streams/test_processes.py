"""A store and others that look at it: readers repair nothing and keep nobody out; a refused writer changes nothing."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.errors import ForeignStore, StoreLocked
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.query import Filter
from streams.stores.directory import is_being_written
from streams.stores.journal.segments import list_segments
from tests.streams.builders import event, events
from tests.streams.logs import files
from tests.streams.opened import PLACES, Place, collect, held, left_by_a_kill, put


async def opened(store: Path) -> Log:
    return await Log.open(store, seeded_identity(1), segment_bytes=2000)


def last_segment(store: Path) -> Path:
    return list_segments(store / "journal")[-1].path


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with held():
        yield request.param


async def test_a_reader_repairs_nothing_and_makes_nothing(tmp_path: Path, place: Place) -> None:
    log = await opened(tmp_path / "open")
    written = [(await log.append([each]))[0] for each in events(4)]
    await put(log, place)
    left_by_a_kill(tmp_path / "open", tmp_path / "store")
    await log.close()
    with last_segment(tmp_path / "store").open("ab") as file:
        file.write(b'{"crc":"a torn tail')
    for head in (True, False):
        if not head:  # then the last whole batch ends the log
            (tmp_path / "store" / "head").unlink()
        before = files(tmp_path)
        reader = LogReader(tmp_path / "store")
        assert await collect(reader.read_all()) == written and files(tmp_path) == before
        await reader.close()
    assert LogReader(tmp_path / "nothing").head == -1 and not (tmp_path / "nothing").exists()


async def test_a_reader_finds_as_the_store_does(tmp_path: Path, place: Place) -> None:
    """Scans search for a key's text in the line; keys that JSON escapes must be found, too."""
    log = await opened(tmp_path)
    keys = ["plain", 'a"b', "back\\slash", "é✓", "[1]", "a/b", "😀", "{}"]
    for n, key in enumerate(keys):
        await log.append([event(key, stream=f"ses_{n % 2}")])
    await put(log, place)
    reader = LogReader(tmp_path)
    for key in keys:
        found = await reader.find(f"test:{key}")
        assert found is not None and found == await log.find(f"test:{key}")
        assert await reader.find_event(found.event.id) == found
    for unknown in ("test:", "test:nobody", "", "\ud800", "test:pla"):
        assert await reader.find(unknown) is None and await log.find(unknown) is None
        assert await reader.find_event(unknown) is None
    for wanted in (Filter(streams=["ses_1"]), Filter(streams=["ses_1", "ses_0"]), Filter(streams=["never"])):
        assert await collect(reader.query(wanted)) == await collect(log.query(wanted))
    for offset in (-2, 0, 2, 3, 4, 9):
        assert await collect(reader.read("ses_0", from_offset=offset)) == await collect(
            log.read("ses_0", from_offset=offset)
        )
    await reader.close()
    await log.close()


async def test_a_refused_opening_changes_nothing(tmp_path: Path, place: Place) -> None:
    log = await opened(tmp_path)
    for name in "ab":
        await log.append([event(name)])
    await put(log, place)
    with last_segment(tmp_path).open("ab") as file:
        file.write(b"what the writer is about to finish")
    before = files(tmp_path)
    with pytest.raises(StoreLocked, match=rf"process {os.getpid()};.*durable-stream stop"):
        await opened(tmp_path)
    assert files(tmp_path) == before
    await log.close()


async def test_a_failed_opening_gives_the_lock_back(tmp_path: Path) -> None:
    await (await opened(tmp_path)).close()
    manifest = (tmp_path / "store.json").read_bytes()
    (tmp_path / "store.json").write_bytes(b"[]")
    with pytest.raises(ForeignStore):
        await opened(tmp_path)
    assert not is_being_written(tmp_path)
    (tmp_path / "store.json").write_bytes(manifest)
    await (await opened(tmp_path)).close()


async def test_a_reader_that_looks_at_the_lock_does_not_keep_a_writer_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``verify`` briefly holds a shared lock to see whether somebody writes."""
    await (await opened(tmp_path)).close()
    held = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    waits: list[float] = []

    def let_go(seconds: float) -> None:
        waits.append(seconds)
        fcntl.flock(held, fcntl.LOCK_UN)

    monkeypatch.setattr("streams.system.locks.time.sleep", let_go)
    await (await opened(tmp_path)).close()
    assert len(waits) == 1
    os.close(held)
