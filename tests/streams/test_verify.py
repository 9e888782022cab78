"""Verifying a journal: each kind of damage is distinguished, located, and does not end the pass."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import orjson
import pytest

from streams.event import StreamEvent
from streams.hashing import canonical, chain, digest_form_of
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.verify import Finding, Summary, Verification
from tests.streams.builders import events
from tests.streams.opened import held, left_by_a_kill


async def write(store: Path, *batches: list[StreamEvent], segment_bytes: int = 64 * 1024 * 1024) -> None:
    """Write a log whose records all stay in the journal."""
    with held():
        log = await Log.open(store, seeded_identity(1), segment_bytes=segment_bytes)
        for batch in batches:
            await log.append(batch)
        copy = left_by_a_kill(store, store.with_name("copy"))
        await log.close()
    shutil.rmtree(store)
    copy.rename(store)
    (store / "lock").touch()


async def verify(store: Path) -> tuple[list[Finding], Summary]:
    check = Verification(store)
    return [finding async for finding in check.run()], check.summary


def kinds(findings: list[Finding]) -> list[tuple[str, int | None, int | None]]:
    return [(f.kind, f.line, f.position) for f in findings]


def segments(store: Path) -> list[Path]:
    return sorted((store / "journal").glob("*.jsonl"))


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
        _, form = digest_form_of(canonical(fields["event"]))
        fields["hash"] = chain(bytes.fromhex(rehash_after), form).hex()
    return sealed(canonical(fields))


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """Ten records, alternating between two streams, each its own batch."""
    batch = [events(1, prefix=f"k{n}_", stream="ses_a" if n % 2 == 0 else "ses_b") for n in range(10)]
    await write(tmp_path / "store", *batch)
    return tmp_path / "store"


class TestSoundLogs:
    async def test_every_record_is_counted(self, store: Path) -> None:
        findings, summary = await verify(store)
        assert findings == []
        assert (summary.records, summary.streams, summary.segments, summary.head) == (10, 2, 2, 9)
        assert summary.bytes == segments(store)[0].stat().st_size

    async def test_an_empty_directory_and_a_missing_one(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "none"):
            findings, summary = await verify(path)
            assert (findings, summary.records, summary.head) == ([], 0, -1)

    async def test_a_payload_that_is_a_digest_and_was_not_forgotten_is_told(self, store: Path) -> None:
        def forget(line: bytes) -> bytes:
            fields = orjson.loads(line)
            digest, _ = digest_form_of(canonical(fields["event"]))
            fields["event"]["payload"] = {"$sha256": digest}
            return sealed(canonical(fields))

        edit(store, lambda lines: [*lines[:4], forget(lines[4]), *lines[5:]])
        findings, _ = await verify(store)
        assert [(f.kind, f.position) for f in findings] == [("tampered", 4)]
        assert "only a digest, but the log has no record that it was forgotten" in findings[0].reason

    async def test_a_payload_that_looks_forgotten_is_taken_as_it_is(self, tmp_path: Path) -> None:
        await write(tmp_path / "store", events(1, payload={"$sha256": "not a digest"}), events(1, prefix="b"))
        assert (await verify(tmp_path / "store"))[0] == []

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

    async def test_all_faults_are_found(self, store: Path) -> None:
        def change(lines: list[bytes]) -> list[bytes]:
            return [lines[0][:-3] + b"?}}", *lines[1:3], forged(lines[3]), lines[4], *lines[6:]]

        edit(store, change)
        findings, summary = await verify(store)
        # Line 3 follows the broken line 1 in its stream: with nothing to check it against, it is not judged.
        assert kinds(findings) == [("corrupt", 1, 0), ("tampered", 4, 3), ("missing", 6, 5)]
        assert summary.findings == 3

    async def test_a_lost_store_json_and_a_damaged_one(self, store: Path) -> None:
        (store / "store.json").write_text("{")
        assert [f.kind for f in (await verify(store))[0]] == ["corrupt"]
        (store / "store.json").unlink()
        assert [f.kind for f in (await verify(store))[0]] == ["missing"]


class TestTornTails:
    async def test_half_a_batch_above_head(self, tmp_path: Path) -> None:
        await write(tmp_path / "store", events(2))
        head = (tmp_path / "store" / "head").read_bytes()
        await write(tmp_path / "store", events(3, prefix="n"))
        (tmp_path / "store" / "head").write_bytes(head)
        edit(tmp_path / "store", lambda lines: lines[:4])
        findings, summary = await verify(tmp_path / "store")
        assert kinds(findings) == [("torn", 3, 2)] and summary.records == 2
