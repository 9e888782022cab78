"""A disk that fails or is slow, injected at the ``Disk`` seam.

After a fault nothing is ever acknowledged again, and a failed sync is not
retried. A new opening has everything acknowledged, and perhaps whole batches
that were not.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from streams.errors import StoreFailed, StoreUnavailable, StreamError
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.verify import Verification
from streams.store import Record
from streams.stores.commit import MAX_COMMIT_BYTES
from streams.stores.disk import Disk
from streams.stores.jsonl.reader import JsonlReader
from streams.stores.jsonl.store import JsonlStore
from tests.streams.builders import event, events
from tests.streams.disks import FastDisk, FaultyDisk, GatedDisk
from tests.streams.opened import collect

SEGMENT_BYTES = 1000
"""About two records, so that every fault also meets a new segment."""

FAULTS = [
    *(("write", errno.ENOSPC, nth, short) for nth, short in [(1, 0), (2, 0), (2, 1), (5, 300), (25, 900)]),
    *(("write", errno.EIO, nth, 0) for nth in (1, 11)),
    *(("sync", errno.EIO, nth, 0) for nth in (1, 2, 5, 25)),
    *(("rewrite", errno.EIO, nth, 0) for nth in (1, 2, 5, 25)),
    *(("create", errno.ENOSPC, nth, 0) for nth in (1, 2, 5, 11)),
]
"""Method, error, its how manieth call after opening, and how much a failing write still writes."""

LONE = 24

Outcome = list[Record] | BaseException


async def open_store(store: Path, disk: Disk | None = None) -> JsonlStore:
    return await JsonlStore.open(store, seeded_identity(1), disk=disk, segment_bytes=SEGMENT_BYTES)


def batches(count: int) -> list[list[StreamEvent]]:
    return [events(1 + n % 3, prefix=f"b{n}-", stream=f"ses_{n % 2}") for n in range(count)]


async def append_all(log: JsonlStore, wanted: Sequence[list[StreamEvent]]) -> list[Outcome]:
    """Append some one by one, so that a fault hits a lone append, and the rest at once, so that it hits a group."""
    outcomes: list[Outcome] = []
    for batch in wanted[:LONE]:
        outcomes += await asyncio.gather(log.append(batch), return_exceptions=True)
    outcomes += await asyncio.gather(*(log.append(batch) for batch in wanted[LONE:]), return_exceptions=True)
    return outcomes


async def check_reopened(store: Path, wanted: Sequence[list[StreamEvent]], outcomes: Sequence[Outcome]) -> None:
    """Check for exactly the acknowledged batches, perhaps followed by other whole ones, and a working log."""
    acked = [record for outcome in outcomes if isinstance(outcome, list) for record in outcome]
    log = await open_store(store, FastDisk())
    try:
        found = await collect(log.read_all())
        assert found[: len(acked)] == acked
        more = [record.event for record in found[len(acked) :]]
        unacked = [batch for batch, outcome in zip(wanted, outcomes, strict=True) if not isinstance(outcome, list)]
        assert more == [e for batch in unacked for e in batch][: len(more)]
        assert len(more) in [sum(map(len, unacked[:n])) for n in range(len(unacked) + 1)], "only whole batches"
        # Retrying with the same keys writes each of them once.
        again = [await log.append(batch) for batch in wanted]
        assert [[r.event.idempotency_key for r in records] for records in again] == [
            [e.idempotency_key for e in batch] for batch in wanted
        ]
        assert len(await collect(log.read_all())) == sum(map(len, wanted))
    finally:
        await log.close()
    assert [str(finding) async for finding in Verification(store).run()] == []


class TestFailingDisk:
    @pytest.mark.parametrize(("method", "code", "nth", "short"), FAULTS)
    async def test_after_a_fault_nothing_is_acknowledged(
        self, tmp_path: Path, method: str, code: int, nth: int, short: int
    ) -> None:
        disk = FaultyDisk(short=short)
        log = await open_store(tmp_path, disk)
        disk.calls.clear()
        disk.faults[method, nth] = code
        wanted = batches(40)
        async with asyncio.timeout(30):
            outcomes = await append_all(log, wanted)
            if method == "create" and not disk.failed:
                pytest.fail("too few segments for this case: make SEGMENT_BYTES smaller")
            fault = next(n for n, outcome in enumerate(outcomes) if not isinstance(outcome, list))
            assert all(isinstance(outcome, StoreFailed) for outcome in outcomes[fault:])
            assert disk.failed == [method], "a failed call is not retried"
            calls = disk.calls.copy()
            with pytest.raises(StoreFailed) as raised:
                await log.append([event("late")])
            assert os.strerror(code) in str(raised.value) and "start the sidecar again" in str(raised.value)
            assert disk.calls == calls, "a failed store leaves the disk alone"
            acked = [record for outcome in outcomes[:fault] for record in outcome]
            assert await collect(log.read_all()) == acked, "what was acknowledged stays readable"
            assert log.head == len(acked) - 1
            await log.close()
            await check_reopened(tmp_path, wanted, outcomes)

    async def test_the_callers_get_errors_of_their_own(self, tmp_path: Path) -> None:
        log = await open_store(tmp_path, FaultyDisk({("sync", 1): errno.EIO}))
        outcomes = await append_all(log, batches(20))
        assert len({id(outcome) for outcome in outcomes}) == 20
        await log.close()

    async def test_what_could_not_be_cut_off_is_cut_off_at_the_next_opening(self, tmp_path: Path) -> None:
        disk = FaultyDisk({("write", 4): errno.ENOSPC, ("truncate", 1): errno.EIO}, short=300)
        log = await open_store(tmp_path, disk)
        wanted = [[event(f"b{n}")] for n in range(6)]
        outcomes = [await asyncio.wait_for(_outcome(log, batch), 10) for batch in wanted]
        await log.close()
        assert disk.failed == ["write", "truncate"]
        assert [isinstance(outcome, list) for outcome in outcomes] == [True] * 3 + [False] * 3
        again = await open_store(tmp_path)
        assert again.torn is not None and len(again.torn.read_bytes()) == 300
        await again.close()
        await check_reopened(tmp_path, wanted, outcomes)

    @pytest.mark.parametrize("method", ["sync", "rewrite"])
    async def test_an_opening_that_cannot_sync_fails_and_can_be_repeated(self, tmp_path: Path, method: str) -> None:
        log = await open_store(tmp_path)
        outcomes: list[Outcome] = [await log.append(batch) for batch in batches(4)]
        await log.close()
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            await open_store(tmp_path, FaultyDisk({(method, 1): errno.EIO}))
        await check_reopened(tmp_path, batches(4), outcomes)

    async def test_an_unexpected_error_stops_the_writer_too(self, tmp_path: Path) -> None:
        class Broken(Disk):
            def write(self, fd: int, data: bytes) -> None:
                raise ZeroDivisionError

        log = await open_store(tmp_path, Broken())
        for _ in range(2):
            with pytest.raises(StoreFailed, match="ZeroDivisionError"):
                await log.append([event("a")])
        await log.close()

    async def test_a_read_only_directory_is_refused_with_a_hint(self, tmp_path: Path) -> None:
        (tmp_path / "store").write_text("a file where the directory should be")
        with pytest.raises(StoreUnavailable, match="check that you own the directory"):
            await open_store(tmp_path / "store")

    def test_short_writes_of_the_system_are_completed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
        path = tmp_path / "file"
        fd = Disk().create(path)
        Disk().write(fd, bytes(range(100)))
        os.close(fd)
        assert path.read_bytes() == bytes(range(100))
        assert path.stat().st_mode & 0o777 == 0o600


async def _outcome(log: JsonlStore, batch: list[StreamEvent]) -> Outcome:
    try:
        return await log.append(batch)
    except StreamError as error:
        return error


async def _waiting(disk: GatedDisk) -> None:
    """Wait until a sync has begun."""
    assert await asyncio.to_thread(disk.entered.wait, 30)


async def _submitted(tasks: Sequence[asyncio.Future[list[Record]]]) -> None:
    """Wait until the writer has each append: an append first waits when it is queued."""
    assert tasks
    for _ in range(3):
        await asyncio.sleep(0)


class TestGroupCommit:
    async def test_what_arrives_during_a_sync_forms_the_one_next_commit(self, tmp_path: Path) -> None:
        disk = GatedDisk()
        log = await open_store(tmp_path, disk)
        async with asyncio.timeout(30):
            first = asyncio.ensure_future(log.append([event("first")]))
            await _waiting(disk)
            others = [asyncio.ensure_future(log.append([event(f"k{n}")])) for n in range(64)]
            await _submitted(others)
            disk.gate.set()
            await asyncio.gather(first, *others)
        assert disk.syncs == 2
        assert [data.count(b"\n") for data in disk.writes] == [1, 64]
        await log.close()

    async def test_a_slow_sync_stops_no_reader_and_acknowledges_nothing_early(self, tmp_path: Path) -> None:
        disk = GatedDisk(is_open=True)
        log = await open_store(tmp_path, disk)
        await log.append([event("before")])
        disk.gate.clear()
        disk.entered.clear()
        async with asyncio.timeout(30):
            slow = asyncio.ensure_future(log.append([event("slow")]))
            await _waiting(disk)
            # The lines are in the file, and yet nobody sees them: they are not durable.
            assert b"test:slow" in next((tmp_path / "log").glob("*.jsonl")).read_bytes()
            for reader in (log, JsonlReader(tmp_path)):
                assert [r.event.idempotency_key for r in await collect(reader.read_all())] == ["test:before"]
                assert [r.offset for r in await collect(reader.read("ses_a"))] == [0]
                assert await reader.find("test:slow") is None
                assert reader.head == 0
            assert not slow.done()
            disk.gate.set()
            assert (await slow)[0].position == 1
        assert log.head == 1
        await log.close()

    async def test_a_key_of_the_commit_under_way_is_known_and_waits_for_it(self, tmp_path: Path) -> None:
        disk = GatedDisk()
        log = await open_store(tmp_path, disk)
        async with asyncio.timeout(30):
            first = asyncio.ensure_future(log.append([event("same")]))
            await _waiting(disk)
            second = asyncio.ensure_future(log.append([event("same")]))
            await _submitted([second])
            assert not second.done()
            disk.gate.set()
            assert not (await first)[0].duplicate and (await second)[0].duplicate
        await log.close()

    async def test_a_commit_keeps_to_its_size_and_a_larger_append_goes_alone(self, tmp_path: Path) -> None:
        disk = GatedDisk()
        log = await open_store(tmp_path, disk)
        sizes = [700_000] * 9 + [MAX_COMMIT_BYTES + 1] + [700_000] * 3
        async with asyncio.timeout(60):
            first = asyncio.ensure_future(log.append([event("first")]))
            await _waiting(disk)
            tasks = [
                asyncio.ensure_future(log.append([event(f"k{n}", payload={"text": "x" * length})]))
                for n, length in enumerate(sizes)
            ]
            await _submitted(tasks)
            disk.gate.set()
            answers = await asyncio.gather(first, *tasks)
        assert [records[0].position for records in answers] == list(range(len(sizes) + 1)), "in the order submitted"
        assert [data.count(b"\n") for data in disk.writes] == [1, 5, 4, 1, 3]
        assert all(len(data) <= MAX_COMMIT_BYTES for data in disk.writes if data.count(b"\n") > 1)
        await log.close()

    async def test_closing_finishes_what_was_submitted(self, tmp_path: Path) -> None:
        disk = GatedDisk()
        log = await open_store(tmp_path, disk)
        async with asyncio.timeout(30):
            tasks = [asyncio.ensure_future(log.append([event(f"k{n}")])) for n in range(20)]
            await _waiting(disk)
            closing = asyncio.ensure_future(log.close())
            await asyncio.sleep(0)
            assert not closing.done()
            disk.gate.set()
            assert [records[0].position for records in await asyncio.gather(*tasks)] == list(range(20))
            await closing

    async def test_a_caller_that_goes_away_does_not_stop_the_writer(self, tmp_path: Path) -> None:
        disk = GatedDisk()
        log = await open_store(tmp_path, disk)
        async with asyncio.timeout(30):
            task = asyncio.ensure_future(log.append(events(3)))
            await _waiting(disk)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            disk.gate.set()
            assert (await log.append([event("next")]))[0].position == 3
        await log.close()

    async def test_a_closed_loop_does_not_stop_the_writer(self, tmp_path: Path) -> None:
        disk = GatedDisk()
        log = await open_store(tmp_path, disk)

        def elsewhere() -> None:
            loop = asyncio.new_event_loop()
            task = loop.create_task(log.append([event("elsewhere")]))
            loop.run_until_complete(_waiting(disk))
            task.cancel()
            loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

        async with asyncio.timeout(30):
            await asyncio.to_thread(elsewhere)
            disk.gate.set()
            assert (await log.append([event("here")]))[0].position == 1
        await log.close()
