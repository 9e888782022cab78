"""The log's directory: missing or foreign segments, a missing database, store.json, symbolic links, file modes.

``test_recovery.py`` tests the contents of segments.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streams.errors import BadStore, CorruptLog, ForeignStore, MissingLog, StoreUnavailable
from streams.log.reader import LogReader
from streams.stores.journal.segments import segment_name
from tests.streams.builders import event
from tests.streams.logs import Log, files, findings, make_log, open_store
from tests.streams.opened import collect


@pytest.fixture(scope="module")
def small_log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return make_log(tmp_path_factory.mktemp("small"), [1, 2, 1], text=0)


@pytest.fixture(scope="module")
def rolled_log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """Four segments."""
    log = make_log(tmp_path_factory.mktemp("rolled"), [2, 1, 2, 1, 1, 1, 2, 1], text=0, segment_bytes=1200)
    assert len(log.segments) == 4
    return log


# Segments


@pytest.mark.parametrize("head", [-1, None])
@pytest.mark.parametrize("number", [0, 1, 3])
async def test_a_deleted_segment_is_missed(tmp_path: Path, rolled_log: Log, number: int, head: int | None) -> None:
    rolled_log.put(tmp_path, head=head)
    names = [name for name, _ in rolled_log.segments]
    (tmp_path / "journal" / names[number]).unlink()
    first, is_last = int(names[number][:20]), number == 3
    if is_last and head is None:
        return  # nothing else knows of its records
    told = tmp_path / "journal" / names[number - 1 if is_last else number + 1]
    for reading in (open_store(tmp_path), collect(LogReader(tmp_path).read_all())):
        with pytest.raises(CorruptLog, match=r"(is|are) missing") as raised:
            await reading
        assert (raised.value.file, raised.value.position) == (str(told), first)
    assert ("missing", told.name, None if is_last else 1, first) in await findings(tmp_path)


@pytest.mark.parametrize("head", ["old", "missing"])
async def test_what_lies_before_a_later_segment_is_never_a_torn_tail(
    tmp_path: Path, rolled_log: Log, head: str
) -> None:
    """A segment begins after the one before it is durable, so even an old head does not excuse damage."""
    rolled_log.put(tmp_path, head=min(rolled_log.heads) if head == "old" else None)
    name, data = rolled_log.segments[1]
    segment = tmp_path / "journal" / name
    segment.write_bytes(data[:-9])
    before = files(tmp_path)
    with pytest.raises(CorruptLog) as raised:
        await open_store(tmp_path)
    assert raised.value.file == str(segment)
    assert files(tmp_path) == before


async def test_an_empty_last_segment_is_used(tmp_path: Path, small_log: Log) -> None:
    """A writer leaves one if it was killed, or the disk was full, when it began a segment."""
    segment = small_log.put(tmp_path)
    (segment.parent / segment_name(4)).write_bytes(b"")
    assert await collect(LogReader(tmp_path).read_all()) == small_log.records
    log = await open_store(tmp_path)
    assert (await log.append([event("next")]))[0].position == 4
    await log.close()
    assert (segment.parent / segment_name(4)).stat().st_size > 0
    assert await findings(tmp_path) == []


async def test_foreign_files_in_the_log_are_left_alone(tmp_path: Path, small_log: Log) -> None:
    segment = small_log.put(tmp_path)
    for name in ("notes.txt", "00000000000000000000.jsonl.bak", "4.jsonl", ".DS_Store"):
        (segment.parent / name).write_bytes(b"not ours")
    before = files(tmp_path)
    log = await open_store(tmp_path)
    assert await collect(log.read_all()) == small_log.records
    await log.close()
    assert {name: data for name, data in files(tmp_path).items() if name != "log.db"} == {
        name: data for name, data in before.items() if name != "log.db"
    }


async def test_all_segments_are_gone(tmp_path: Path, rolled_log: Log) -> None:
    """What the database has is still there; of what it lacks, the head file knows."""
    count = len(rolled_log.records)
    for moved in (count, int(rolled_log.segments[2][0][:20])):
        store = tmp_path / str(moved)
        rolled_log.put(store, moved=moved)
        for path in (store / "journal").iterdir():
            path.unlink()
        if moved == count:
            assert await findings(store) == []
            log = await open_store(store)
            assert await collect(log.read_all()) == rolled_log.records
            assert (await log.append([event("next")]))[0].position == count
            await log.close()
            assert await findings(store) == []
            continue
        before = files(store)
        for reading in (open_store(store), collect(LogReader(store).read_all())):
            with pytest.raises(CorruptLog) as raised:
                await reading
            assert (raised.value.file, raised.value.position) == (str(store / "journal"), moved)
        assert await findings(store) == [("missing", "journal", None, moved)]
        assert files(store) == before


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_deleted_segment_that_the_database_has_is_not_missed(
    tmp_path: Path, rolled_log: Log, number: int
) -> None:
    moved = int(rolled_log.segments[number + 1][0][:20])
    rolled_log.put(tmp_path, moved=moved)
    (tmp_path / "journal" / rolled_log.segments[number][0]).unlink()
    assert await findings(tmp_path) == []
    assert await collect(LogReader(tmp_path).read_all()) == rolled_log.records
    log = await open_store(tmp_path)
    assert await collect(log.read_all()) == rolled_log.records
    await log.close()
    assert await findings(tmp_path) == []


# The database


@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize("moved", [0, 3])
async def test_a_log_without_its_database_is_refused(
    tmp_path: Path, small_log: Log, moved: int, is_empty: bool
) -> None:
    small_log.put(tmp_path, moved=moved)
    if is_empty:
        (tmp_path / "log.db").write_bytes(b"")
    else:
        (tmp_path / "log.db").unlink()
    before = files(tmp_path)
    with pytest.raises(MissingLog):
        await open_store(tmp_path)
    with pytest.raises(MissingLog):
        _ = LogReader(tmp_path).head
    assert files(tmp_path) == before
    assert "missing" in [kind for kind, *_ in await findings(tmp_path)]


async def test_an_older_copy_of_the_database_is_refused(tmp_path: Path, rolled_log: Log) -> None:
    """The journal no longer has the records between the copy and the database."""
    rolled_log.put(tmp_path, moved=2)
    first = [name for name, _ in rolled_log.segments][2]
    for name, _ in rolled_log.segments[:2]:
        (tmp_path / "journal" / name).unlink()
    before = files(tmp_path)
    for reading in (open_store(tmp_path), collect(LogReader(tmp_path).read_all())):
        with pytest.raises(CorruptLog) as raised:
            await reading
        assert (raised.value.file, raised.value.line, raised.value.position) == (
            str(tmp_path / "journal" / first),
            1,
            2,
        )
    assert await findings(tmp_path) == [("missing", first, 1, 2)]
    assert files(tmp_path) == before


# store.json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            b'{"format":4,"log_id":"x"}',
            "format 4, but this version reads format 3: upgrade",
        ),
        (b'{"backend":"jsonl","format":2,"log_id":"x"}', "export the log with the version that wrote it"),
        (b"", "damaged"),
        (b"\xff\xfe", "damaged"),
        (b'{"log_id":"x","for', "damaged"),
        (b"[]", "not written by Durable Stream"),
        (b'{"name":"an npm package"}', "not written by Durable Stream"),
    ],
)
async def test_a_foreign_store_is_refused_untouched(tmp_path: Path, small_log: Log, text: bytes, message: str) -> None:
    small_log.put(tmp_path)
    (tmp_path / "store.json").write_bytes(text)
    before = files(tmp_path)
    with pytest.raises(ForeignStore, match=message) as raised:
        await open_store(tmp_path)
    assert str(tmp_path / "store.json") in str(raised.value)
    with pytest.raises(ForeignStore, match=message):
        _ = LogReader(tmp_path).head
    assert files(tmp_path) == before


# Symbolic links


@pytest.mark.parametrize("name", ["head", "lock", "store.json", "log.db", "journal/" + segment_name(0)])
async def test_a_symbolic_link_is_not_followed(tmp_path: Path, small_log: Log, name: str) -> None:
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    small_log.put(store)
    (store / "lock").touch()
    (store / name).rename(elsewhere)
    (store / name).symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    with pytest.raises((BadStore, StoreUnavailable), match=r"symbolic link"):
        await open_store(store)
    assert elsewhere.read_bytes() == before and (store / name).is_symlink()
    if name != "lock":
        with pytest.raises(ForeignStore, match="symbolic link"):
            await collect(LogReader(store).read_all())
        with pytest.raises(ForeignStore, match="symbolic link"):
            await findings(store)


async def test_files_are_the_owners_alone(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        log = await open_store(tmp_path / "store")
        await log.append([event("a")])
        await log.close()
    finally:
        os.umask(mask)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    modes.pop("store/journal/" + segment_name(0))  # FastDisk makes it; see test_faults for the real one
    assert modes == {
        "store": 0o700,
        "store/journal": 0o700,
        **{f"store/{n}": 0o600 for n in ("head", "lock", "log.db", "store.json")},
    }
