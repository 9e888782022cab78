"""A log with compressed segments: read, opened and verified as before, and every damage in them is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyzstd import compress as foreign_zstd

from streams.errors import CorruptLog, ForeignStore
from streams.store import Record
from streams.stores import seekable
from streams.stores.disk import Disk
from streams.stores.jsonl_reader import JsonlReader, chunks
from streams.stores.recovery import recover
from streams.stores.rewriting import compress, replace_lines
from streams.stores.segment_files import (
    Segment,
    list_segments,
    logical_size,
    open_segment,
    read_segment,
    sizes_of,
)
from streams.verify import Finding, Verification
from tests.streams.builders import event
from tests.streams.disks import FastDisk
from tests.streams.logs import Log, files, make_log, open_store
from tests.streams.opened import collect

EVERY = 41
"""Every so manieth damage is also read, verified and opened; all of them are scanned as an opening does it."""


@dataclass(frozen=True)
class Small:
    """A log of three segments, two of them compressed in small frames; ``damaged`` is the first of them."""

    log: Log
    store: Path
    damaged: Path
    data: bytes

    def line_of(self, byte: int) -> int:
        """The first line of the frame that a byte of the file belongs to; 1 for what follows the frames."""
        with open_segment(Segment(0, self.damaged)) as file:
            frames = file._frames  # type: ignore[attr-defined]
        lines = read_segment(Segment(0, self.damaged))
        for number in range(len(frames)):
            if frames[number].at <= byte < frames[number].at + frames[number].size:
                return lines[: frames[number].start].count(b"\n") + 1
        return 1


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    monkeypatch.setattr(seekable, "FRAME_BYTES", 1400)
    log = make_log(tmp_path / "made", [1, 2, 1, 3, 1, 2, 2, 1, 1, 1], text=60, segment_bytes=3200)
    store = tmp_path / "store"
    store.mkdir()
    put(log, store)
    assert len(log.segments) == 3, [len(data) for _, data in log.segments]
    compress_closed(store)
    damaged = store / "log" / f"{log.segments[0][0]}.zst"
    return Small(log, store, damaged, damaged.read_bytes())


def put(log: Log, store: Path) -> None:
    (store / "log").mkdir()
    (store / "store.json").write_bytes(log.manifest)
    (store / "head").write_bytes(log.heads[len(log.records) - 1])
    for name, data in log.segments:
        (store / "log" / name).write_bytes(data)


def compress_closed(store: Path, disk: Disk | None = None) -> None:
    for segment in list_segments(store / "log")[:-1]:
        if not segment.is_compressed:
            compress(disk or FastDisk(), segment)


async def verify(store: Path) -> list[Finding]:
    return [finding async for finding in Verification(store).run()]


# Reading


async def test_it_reads_as_before(small: Small) -> None:
    names = sorted(path.name for path in (small.store / "log").iterdir())
    assert [name.endswith(".zst") for name in names] == [True, True, False]
    reader = JsonlReader(small.store)
    assert await collect(reader.read_all()) == small.log.records
    for after in range(-2, len(small.log.records) + 1):
        assert await collect(reader.read_all(after=after)) == small.log.records[max(after + 1, 0) :]
    for record in small.log.records:
        assert await reader.find(record.event.idempotency_key) == record
    store = await open_store(small.store)
    for record in small.log.records:
        assert store.places.records_at([record.position]) == [record]
        assert await store.find(record.event.idempotency_key) == record
    assert store.places.records_at([9, 0, 4, 9]) == [small.log.records[n] for n in (9, 0, 4, 9)]
    for stream in ("ses_0", "ses_1", "ses_2"):
        wanted = [r for r in small.log.records if r.event.stream_id == stream]
        assert await collect(store.read(stream)) == wanted == await collect(reader.read(stream))
    assert [record.position for record in await store.append([event("next")])] == [len(small.log.records)]
    await store.close()
    check = Verification(small.store)
    assert [f async for f in check.run()] == []
    assert check.summary.bytes == check.size() == sum(map(len, await contents(small.store)))


async def contents(store: Path) -> list[bytes]:
    return [read_segment(segment) for segment in list_segments(store / "log")]


async def test_any_part_of_a_segment_is_the_same_in_both_forms(small: Small) -> None:
    plain = small.log.segments[0][1]
    segment = list_segments(small.store / "log")[0]
    with open_segment(segment) as file:
        assert file.size == len(plain) == logical_size(segment)
        for start in range(0, len(plain) + 50, 61):
            for size in (0, 1, 700, 2000, 10**6):
                assert file.read(start, size) == plain[start : start + size]
            for about in (1, 1600, 3100, 10**6):
                part = file.read_on(start, about)
                assert plain[start:].startswith(part) and bool(part) == (start < len(plain))
    for start in (0, 1500, len(plain)):
        assert b"".join([chunk async for chunk in chunks(segment, start)]) == plain[start:]
    assert read_segment(segment) == plain


async def test_a_file_that_vanishes_is_found_under_its_other_name(small: Small) -> None:
    plain = small.log.segments[0][1]
    now = list_segments(small.store / "log")[0]
    stale = now.other_form()
    assert not stale.path.exists()
    assert read_segment(stale) == plain and logical_size(stale) == len(plain)
    assert b"".join([chunk async for chunk in chunks(stale)]) == plain
    with open_segment(stale) as file:
        assert file.read(10, 100) == plain[10:110]
    now.path.rename(now.path.with_suffix(".gone"))
    with pytest.raises(FileNotFoundError):
        read_segment(stale)
    with pytest.raises(FileNotFoundError):
        read_segment(now)


async def test_a_chunk_is_read_on_where_the_other_form_ended(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.stores.jsonl_reader._CHUNK", 1000)
    name, plain = small.log.segments[2]
    segment = Segment(int(name[:20]), small.store / "log" / name)
    reading = chunks(segment)
    read = await anext(reading)
    compress(FastDisk(), segment)
    assert read + b"".join([chunk async for chunk in reading]) == plain and not segment.path.exists()


def test_a_listing_that_misses_both_names_is_not_believed(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    glob = Path.glob
    calls = []

    def racing(self: Path, pattern: str) -> list[Path]:
        calls.append(pattern)
        return [path for path in glob(self, pattern) if len(calls) > 1 or path != small.damaged]

    monkeypatch.setattr(Path, "glob", racing)
    assert list_segments(small.store / "log")[0].path == small.damaged


def test_sizes(small: Small) -> None:
    found = sizes_of(small.store / "log")
    on_disk = sum(path.stat().st_size for path in (small.store / "log").iterdir())
    assert (found.files, found.compressed, found.disk_bytes) == (3, 2, on_disk)
    assert found.bytes == sum(len(data) for _, data in small.log.segments) > on_disk


async def test_a_symbolic_link_is_refused(small: Small, tmp_path: Path) -> None:
    small.damaged.rename(tmp_path / "elsewhere")
    small.damaged.symlink_to(tmp_path / "elsewhere")
    for reading in (collect(JsonlReader(small.store).read_all()), open_store(small.store), verify(small.store)):
        with pytest.raises(ForeignStore, match="symbolic link"):
            await reading


# Damage


async def check_named(small: Small, line: int, where: str) -> None:
    """Everybody who reads the damaged segment names it; what lies before the damage is read."""
    seen: list[Record] = []
    with pytest.raises(CorruptLog) as raised:
        async for record in JsonlReader(small.store).read_all():
            seen.append(record)  # noqa: PERF401 - what came before the fault counts
    assert (raised.value.file, raised.value.line, raised.value.position) == (str(small.damaged), line, line - 1), where
    assert seen == small.log.records[: line - 1], where
    found = await verify(small.store)
    assert [(f.kind, f.file, f.line, f.position) for f in found] == [("corrupt", str(small.damaged), line, line - 1)], (
        where
    )
    before = files(small.store)
    with pytest.raises(CorruptLog, match="nothing was changed"):
        await open_store(small.store)
    assert files(small.store) == before, where


async def test_every_flipped_byte_is_found_by_all(small: Small) -> None:
    head = small.log.head(len(small.log.records) - 1)
    lines = [small.line_of(byte) for byte in range(len(small.data))]
    assert len(set(lines)) > 2, "several frames"
    data = bytearray(small.data)
    for byte, line in enumerate(lines):
        data[byte] ^= 1 << byte % 8
        small.damaged.write_bytes(data)
        with pytest.raises(CorruptLog) as raised:
            recover(small.store / "log", head)
        named = (raised.value.file, raised.value.line, raised.value.position)
        assert named == (str(small.damaged), line, line - 1), f"byte {byte}"
        if byte % EVERY == 0 or byte > len(data) - 3:
            await check_named(small, line, f"byte {byte}")
        data[byte] ^= 1 << byte % 8


async def test_a_segment_cut_at_every_byte_is_found_by_all(small: Small) -> None:
    head = small.log.head(len(small.log.records) - 1)
    for size in range(len(small.data) - 1, -1, -1):
        os.truncate(small.damaged, size)
        with pytest.raises(CorruptLog) as raised:
            recover(small.store / "log", head)
        assert (raised.value.file, raised.value.line, raised.value.position) == (str(small.damaged), 1, 0)
        if size % (EVERY * 3) == 0:
            await check_named(small, 1, f"{size} bytes")


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "zeroed tail": lambda data: data[:-400] + bytes(400),
    "zeroed": lambda data: bytes(len(data)),
    "zeros after the end": lambda data: data + bytes(512),
    "twice": lambda data: data + data,
    "another tool's": lambda data: foreign_zstd(b"not ours"),
    "not compressed": lambda data: b'{"crc":"00000000"}\n' * 50,
    "seek table cut off": lambda data: data[: data.rindex(b"\x5e\x2a\x4d\x18")],
    "a frame is missing": lambda data: data[data.index(b"\x28\xb5\x2f\xfd", 4) :],
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_other_damage_is_named_by_all(small: Small, damage: str) -> None:
    small.damaged.write_bytes(DAMAGE[damage](small.data))
    await check_named(small, 1, damage)


async def test_without_a_head_file_it_is_damage_too(small: Small) -> None:
    (small.store / "head").unlink()
    small.damaged.write_bytes(small.data[:-1])
    with pytest.raises(CorruptLog):
        await open_store(small.store)


async def test_what_follows_a_damaged_frame_is_verified(small: Small) -> None:
    """A wrong line in a later frame is found in its place, though nobody can count the lines that were lost."""
    lines = small.log.segments[0][1].splitlines(keepends=True)
    wrong = [*lines[:-1], lines[-1].replace(b"test", b"tesT", 1)]
    replace_lines(FastDisk(), Segment(0, small.damaged), wrong)
    data = bytearray(small.damaged.read_bytes())
    data[30] ^= 1
    small.damaged.write_bytes(data)
    found = await verify(small.store)
    assert [(f.kind, f.line, f.position) for f in found] == [
        ("corrupt", 1, 0),
        ("corrupt", len(lines), len(lines) - 1),
    ]
    check = Verification(small.store)
    assert len([f async for f in check.run()]) == 2
    with open_segment(Segment(0, small.damaged)) as file:
        lost = file._frames[0].length  # type: ignore[attr-defined]
    first = b"".join(wrong)[:lost].count(b"\n")
    assert check.summary.records == len(small.log.records) - first - 1


EDITS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "duplicated line": lambda lines: [*lines[:2], lines[1], *lines[2:]],
    "swapped lines": lambda lines: [lines[1], lines[0], *lines[2:]],
    "deleted first line": lambda lines: lines[1:],
    "deleted line": lambda lines: [*lines[:3], *lines[4:]],
    "deleted last line": lambda lines: lines[:-1],
    "empty line": lambda lines: [lines[0], b"\n", *lines[1:]],
    "no newline at the end": lambda lines: [*lines[:-1], lines[-1][:-1]],
    "no lines at all": lambda lines: [],
    "wrong checksums": lambda lines: [line.replace(b"test", b"tesT", 1) for line in lines],
    "half a batch": lambda lines: [lines[0], lines[1], *lines[3:]],
}


@pytest.mark.parametrize("edit", EDITS)
async def test_wrong_lines_are_judged_as_in_a_plain_segment(small: Small, tmp_path: Path, edit: str) -> None:
    lines = EDITS[edit](small.log.segments[0][1].splitlines(keepends=True))
    (tmp_path / "plain").mkdir()
    put(small.log, tmp_path / "plain")
    (tmp_path / "plain" / "log" / small.log.segments[0][0]).write_bytes(b"".join(lines))
    replace_lines(FastDisk(), Segment(0, small.damaged), lines)
    wanted, found = await verify(tmp_path / "plain"), await verify(small.store)
    assert found and [(f.kind, f.line, f.position, f.reason) for f in found] == [
        (f.kind, f.line, f.position, f.reason) for f in wanted
    ]
    told = []
    for store in (tmp_path / "plain", small.store):
        for reading in (open_store(store), collect(JsonlReader(store).read_all())):
            with pytest.raises(CorruptLog) as raised:
                await reading
            told.append((raised.value.line, raised.value.position, raised.value.reason))
    assert told[:2] == told[2:]


async def test_a_whole_segment_that_cannot_be_read_is_one_finding(small: Small) -> None:
    for segment in list_segments(small.store / "log")[:-1]:
        segment.path.write_bytes(b"nothing")
    found = await verify(small.store)
    assert [f.kind for f in found] == ["corrupt", "corrupt"]
    assert (found[0].line, found[0].position) == (1, 0)


async def test_damage_under_an_open_store_is_found_when_read(small: Small) -> None:
    store = await open_store(small.store)
    record = small.log.records[1]
    data = bytearray(small.data)
    data[20] ^= 4
    small.damaged.write_bytes(data)
    for reading in (
        store.find(record.event.idempotency_key),
        collect(store.read(record.event.stream_id)),
        collect(store.read_all()),
    ):
        with pytest.raises(CorruptLog, match="frame is damaged"):
            await reading
    assert (await store.append([event("it goes on")]))[0].position == len(small.log.records)
    await store.close()
