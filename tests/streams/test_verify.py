"""Verifying a log: each kind of damage is distinguished, located, and does not end the pass."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import orjson
import pytest

from streams.errors import ForeignStore
from streams.event import StreamEvent
from streams.hashing import canonical, chain, digest_form_of
from streams.identity import seeded_identity
from streams.log.verify import Finding, Summary, Verification
from streams.stores.jsonl.store import JsonlStore
from tests.streams.builders import events


async def write(store: Path, *batches: list[StreamEvent], segment_bytes: int = 64 * 1024 * 1024) -> None:
    log = await JsonlStore.open(store, seeded_identity(1), segment_bytes=segment_bytes)
    for batch in batches:
        await log.append(batch)
    await log.close()


async def verify(store: Path) -> tuple[list[Finding], Summary]:
    check = Verification(store)
    return [finding async for finding in check.run()], check.summary


def kinds(findings: list[Finding]) -> list[tuple[str, int | None, int | None]]:
    return [(f.kind, f.line, f.position) for f in findings]


def segments(store: Path) -> list[Path]:
    return sorted((store / "log").glob("*.jsonl"))


def edit(store: Path, change: Callable[[list[bytes]], list[bytes]], segment: int = 0) -> None:
    """Change the lines of a segment, given without newlines."""
    path = segments(store)[segment]
    lines = path.read_bytes().split(b"\n")[:-1]
    path.write_bytes(b"".join(line + b"\n" for line in change(lines)))


def sealed(line: bytes) -> bytes:
    """The line with its correct checksum."""
    return b'{"crc":"%08x",%b' % (crc32(line[18:]), line[18:])


def forged(line: bytes, *, rehash_after: str | None = None) -> bytes:
    """The line with another payload and a correct checksum; with a correct hash, too, if the previous one is given."""
    fields = orjson.loads(line)
    fields["event"]["payload"] = {"n": "forged"}
    if rehash_after is not None:
        _, form = digest_form_of(fields["event"])
        fields["hash"] = chain(bytes.fromhex(rehash_after), form).hex()
    return sealed(canonical(fields))


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """Ten records, alternating between two streams, each its own batch."""
    batch = [events(1, prefix=f"k{n}_", stream="ses_a" if n % 2 == 0 else "ses_b") for n in range(10)]
    await write(tmp_path, *batch)
    return tmp_path


class TestSoundLogs:
    async def test_every_record_is_counted(self, store: Path) -> None:
        findings, summary = await verify(store)
        assert findings == []
        assert (summary.records, summary.streams, summary.segments, summary.head) == (10, 2, 1, 9)
        assert summary.bytes == segments(store)[0].stat().st_size

    async def test_an_empty_directory_and_a_missing_one(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "none"):
            findings, summary = await verify(path)
            assert (findings, summary.records, summary.head) == ([], 0, -1)

    async def test_batches_and_segments(self, tmp_path: Path) -> None:
        await write(tmp_path, *(events(5, prefix=f"{n}_") for n in range(8)), segment_bytes=3000)
        findings, summary = await verify(tmp_path)
        assert findings == [] and summary.segments > 3 and summary.records == 40

    async def test_a_payload_that_is_a_digest_and_was_not_forgotten_is_told(self, store: Path) -> None:
        def forget(line: bytes) -> bytes:
            fields = orjson.loads(line)
            digest, _ = digest_form_of(fields["event"])
            fields["event"]["payload"] = {"$sha256": digest}
            return sealed(canonical(fields))

        edit(store, lambda lines: [*lines[:4], forget(lines[4]), *lines[5:]])
        findings, _ = await verify(store)
        assert [(f.kind, f.position) for f in findings] == [("tampered", 4)]
        assert "only a digest, but the log has no record that it was forgotten" in findings[0].reason

    async def test_a_payload_that_looks_forgotten_is_taken_as_it_is(self, tmp_path: Path) -> None:
        await write(tmp_path, events(1, payload={"$sha256": "not a digest"}), events(1, prefix="b"))
        assert (await verify(tmp_path))[0] == []

    async def test_beside_a_writer_what_lies_above_head_is_not_judged(self, store: Path) -> None:
        with segments(store)[0].open("ab") as file:
            file.write(b'{"crc":"half a line')
        lock = os.open(store / "lock", os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            findings, summary = await verify(store)
        finally:
            os.close(lock)
        assert (findings, summary.records) == ([], 10)


class TestDamage:
    async def test_a_flipped_byte_is_corrupt(self, store: Path) -> None:
        edit(store, lambda lines: [*lines[:4], lines[4].replace(b"k4", b"kX"), *lines[5:]])
        findings, summary = await verify(store)
        assert kinds(findings) == [("corrupt", 5, 4)]
        assert "wrong checksum" in findings[0].reason
        assert summary.records == 9

    async def test_a_deleted_line_is_missing(self, store: Path) -> None:
        edit(store, lambda lines: lines[:4] + lines[5:])
        findings, summary = await verify(store)
        assert kinds(findings) == [("missing", 5, 4)]
        assert "record 4 is missing" in findings[0].reason and summary.records == 9

    async def test_several_deleted_lines_are_one_finding(self, store: Path) -> None:
        edit(store, lambda lines: lines[:3] + lines[7:])
        findings, _ = await verify(store)
        assert kinds(findings) == [("missing", 4, 3)]
        assert "records 3 to 6 are missing" in findings[0].reason

    async def test_swapped_lines_are_out_of_place(self, store: Path) -> None:
        edit(store, lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]])
        findings, _ = await verify(store)
        assert ("tampered", 6, 4) in kinds(findings)
        assert all(f.position in (4, 5) for f in findings)

    async def test_a_forged_record_with_a_right_checksum_is_tampered(self, store: Path) -> None:
        edit(store, lambda lines: [*lines[:4], forged(lines[4]), *lines[5:]])
        findings, _ = await verify(store)
        assert kinds(findings) == [("tampered", 5, 4)]
        assert (findings[0].stream_id, findings[0].file) == ("ses_a", str(segments(store)[0]))

    async def test_a_forger_who_also_hashes_is_found_at_the_next_record_of_the_stream(self, store: Path) -> None:
        def change(lines: list[bytes]) -> list[bytes]:
            previous = orjson.loads(lines[2])["hash"]
            return [*lines[:4], forged(lines[4], rehash_after=previous), *lines[5:]]

        edit(store, change)
        assert kinds((await verify(store))[0]) == [("tampered", 7, 6)]

    async def test_a_forged_last_record_is_found_by_the_head(self, store: Path) -> None:
        def change(lines: list[bytes]) -> list[bytes]:
            return [*lines[:9], forged(lines[9], rehash_after=orjson.loads(lines[7])["hash"])]

        edit(store, change)
        findings, _ = await verify(store)
        assert kinds(findings) == [("tampered", 10, 9)] and "head file" in findings[0].reason

    async def test_other_bytes_of_the_same_record_are_tampered(self, store: Path) -> None:
        edit(store, lambda lines: [lines[0].replace(b'"offset":0', b'"offset": 0'), *lines[1:]])
        assert kinds((await verify(store))[0]) == [("corrupt", 1, 0)]
        edit(store, lambda lines: [sealed(lines[0]), *lines[1:]])
        findings, _ = await verify(store)
        assert kinds(findings) == [("tampered", 1, 0)] and "canonical" in findings[0].reason

    async def test_a_record_inserted_twice_is_out_of_place(self, store: Path) -> None:
        edit(store, lambda lines: [*lines[:5], lines[4], *lines[5:]])
        assert kinds((await verify(store))[0]) == [("tampered", 6, 4)]

    async def test_all_faults_are_found(self, store: Path) -> None:
        def change(lines: list[bytes]) -> list[bytes]:
            return [lines[0][:-3] + b"?}}", *lines[1:3], forged(lines[3]), lines[4], *lines[6:]]

        edit(store, change)
        findings, summary = await verify(store)
        # Line 3 follows the broken line 1 in its stream: with nothing to check it against, it is not judged.
        assert kinds(findings) == [("corrupt", 1, 0), ("tampered", 4, 3), ("missing", 6, 5)]
        assert summary.findings == 3

    async def test_a_batch_that_lost_its_end_below_head_is_found(self, tmp_path: Path) -> None:
        await write(tmp_path, events(3), events(1, prefix="z"))
        edit(tmp_path, lambda lines: lines[:2] + lines[3:])
        assert kinds((await verify(tmp_path))[0]) == [("missing", 3, 2)]

    async def test_a_missing_segment(self, tmp_path: Path) -> None:
        await write(tmp_path, *(events(1, prefix=f"{n}_") for n in range(12)), segment_bytes=1500)
        gone = segments(tmp_path)[1]
        first = int(gone.stem)
        following = int(segments(tmp_path)[2].stem)
        gone.unlink()
        findings, _ = await verify(tmp_path)
        assert kinds(findings) == [("missing", 1, first)]
        assert f"{first} to {following - 1} are missing" in findings[0].reason

    async def test_the_first_and_the_last_segment(self, tmp_path: Path) -> None:
        await write(tmp_path, *(events(1, prefix=f"{n}_") for n in range(12)), segment_bytes=1500)
        segments(tmp_path)[0].unlink()
        segments(tmp_path)[-1].unlink()
        findings, _ = await verify(tmp_path)
        assert [f.kind for f in findings] == ["missing", "missing"]
        assert findings[0].position == 0 and "were written and are missing" in findings[1].reason

    async def test_a_line_broken_in_two(self, store: Path) -> None:
        edit(store, lambda lines: [*lines[:4], lines[4][:40], lines[4][40:], *lines[5:]])
        findings, summary = await verify(store)
        assert [f.kind for f in findings] == ["corrupt", "corrupt"] and summary.records == 9

    async def test_two_lines_run_together(self, store: Path) -> None:
        edit(store, lambda lines: [*lines[:4], lines[4] + b" " + lines[5], *lines[6:]])
        findings, summary = await verify(store)
        assert [f.kind for f in findings] == ["corrupt", "missing"] and summary.records == 8

    async def test_a_lost_store_json_and_a_damaged_one(self, store: Path) -> None:
        (store / "store.json").write_text("{")
        assert [f.kind for f in (await verify(store))[0]] == ["corrupt"]
        (store / "store.json").unlink()
        assert [f.kind for f in (await verify(store))[0]] == ["missing"]

    async def test_a_newer_store_is_refused(self, store: Path) -> None:
        (store / "store.json").write_text('{"format":99}')
        with pytest.raises(ForeignStore):
            await verify(store)

    async def test_a_lost_head_is_told(self, store: Path) -> None:
        (store / "head").unlink()
        findings, summary = await verify(store)
        assert [f.kind for f in findings] == ["missing"] and summary.head == 9


class TestTornTails:
    async def test_half_a_line_above_head(self, store: Path) -> None:
        with segments(store)[0].open("ab") as file:
            file.write(b'{"crc":"00000000","event":{"id":')
        findings, summary = await verify(store)
        assert kinds(findings) == [("torn", 11, 10)] and summary.records == 10

    async def test_half_a_batch_above_head(self, tmp_path: Path) -> None:
        await write(tmp_path, events(2))
        head = (tmp_path / "head").read_bytes()
        await write(tmp_path, events(3, prefix="n"))
        (tmp_path / "head").write_bytes(head)
        edit(tmp_path, lambda lines: lines[:4])
        findings, summary = await verify(tmp_path)
        assert kinds(findings) == [("torn", 3, 2)] and summary.records == 2

    async def test_a_whole_batch_above_head_is_sound(self, tmp_path: Path) -> None:
        await write(tmp_path, events(2))
        head = (tmp_path / "head").read_bytes()
        await write(tmp_path, events(3, prefix="n"))
        (tmp_path / "head").write_bytes(head)
        findings, summary = await verify(tmp_path)
        assert (findings, summary.records) == ([], 5)

    async def test_the_same_fault_below_head_is_corrupt(self, store: Path) -> None:
        path = segments(store)[0]
        path.write_bytes(path.read_bytes()[:-20])
        assert kinds((await verify(store))[0]) == [("corrupt", 10, 9)]


async def test_random_damage_never_passes_unseen_and_never_raises(store: Path) -> None:
    """One changed byte anywhere below head is always a finding."""
    path = segments(store)[0]
    sound = path.read_bytes()
    for place in range(0, len(sound), 37):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 0x05]) + sound[place + 1 :])
        findings, _ = await verify(store)
        assert findings, f"a flip at byte {place} passed"
        assert all(f.kind != "torn" for f in findings)
