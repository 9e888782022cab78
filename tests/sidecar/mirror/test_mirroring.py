"""The mirror on real servers: each record once and in order, whatever happens to the server, the mirror or the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bridge.nats.mirror.state import MIRROR
from sidecar.mirror.task import MirrorTask
from streams.store import StreamStore
from tests.mirrors import (
    BACKENDS,
    chain_hashes,
    check_equal,
    drained,
    fill,
    mirroring,
    open_store,
    read_independently,
    session_events,
    unsynced,
)
from tests.nats_servers import HANG_SECONDS, VERSIONS, RealServer, real_server, until
from tests.streams.sizes import size


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealServer]:
    with real_server(tmp_path / "nats", request.param) as running:
        yield running


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StreamStore]:
    opened = await open_store(request.param, tmp_path / "store")
    yield opened
    await opened.close()


async def test_what_is_there_and_what_comes_is_mirrored_once_and_in_order(
    store: StreamStore, server: RealServer
) -> None:
    await fill(store, session_events(300))
    async with mirroring(store, server) as task:
        await drained(task)
        await fill(store, session_events(300, first=300), batch=7)
        status = await drained(task)
        assert (status["problem"], status["duplicates"], status["rebuild"]) == ("", 0, 0)
        await check_equal(store, server)


class Growing:
    """A log that grows under a mirror, a chunk at a time."""

    def __init__(self, store: StreamStore) -> None:
        self.store, self.count = store, 0

    async def by(self, records: int) -> None:
        await fill(self.store, session_events(records, first=self.count))
        self.count += records


async def halfway(task: MirrorTask) -> None:
    """Wait until one run was published and the next one is in progress."""
    begun = task.counts["published"]
    await until(lambda: task.counts["published"] > begun, "some are mirrored")


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_server_that_is_killed_held_wiped_and_upgraded_ends_with_the_log(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault once, while records keep arriving."""
    each = size("MIRROR_RECORDS", 3000 if backend == "jsonl" else 1000) // 5
    monkeypatch.setattr("bridge.nats.mirror.publish.MAX_RUN", min(each // 6, 1000))
    store = await open_store(backend, tmp_path / "store")
    log = Growing(store)
    with real_server(tmp_path / "nats", "2.10", jetstream=unsynced(tmp_path / "nats")) as server:
        async with mirroring(store, server) as task:
            await log.by(each)
            await halfway(task)
            server.kill()
            await log.by(each)
            assert task.status()["lag"] > 0
            server.start()
            await halfway(task)
            server.hold()
            await log.by(each)
            await asyncio.sleep(3)  # how long it is held, not what is waited for
            server.resume()
            await drained(task)
            await check_equal(store, server)
            server.kill()
            server.wipe()
            server.start()
            await log.by(each)
            await halfway(task)
            server.kill()
            server.version = "2.15"
            server.start()
            await log.by(each)
            status = await drained(task)
            assert status["problem"] == ""
            await check_equal(store, server)
    await store.close()


async def test_how_far_it_is_is_kept_when_nothing_more_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``mirror verify`` counts missing messages up to the cursor as lost, and later ones as not sent yet."""
    monkeypatch.setattr("sidecar.mirror.progress.CURSOR_SECONDS", 3600)
    store = await open_store("memory", tmp_path)
    with real_server(tmp_path / "nats", "2.15") as server:
        async with mirroring(store, server) as task:
            for count in (30, 3):
                await fill(store, session_events(count, first=store.head + 1))
                await drained(task)
                kept = 0
                while kept < store.head:
                    kept = await store.cursor(MIRROR)
                    await asyncio.sleep(0.01)


async def test_a_record_over_the_servers_limit_is_a_pointer_and_the_chain_holds(tmp_path: Path) -> None:
    store = await open_store("memory", tmp_path)
    await fill(store, session_events(30))
    await fill(store, session_events(3, first=32, text="x" * 70_000))
    with real_server(tmp_path / "nats", "2.15", max_payload=65536) as server:
        async with mirroring(store, server) as task:
            status = await drained(task)
        seen = await read_independently(server)
    assert status["notes"] == {"pointer": 3}
    assert [each.headers["DS-Form"] for each in seen] == ["whole"] * 30 + ["pointer"] * 3
    records = [record async for record in store.read_all()]
    assert chain_hashes(seen) == {record.event.stream_id: record.hash for record in records}


async def test_a_server_that_hangs_keeps_nobody_waiting_and_is_told_in_one_line(tmp_path: Path) -> None:
    store = await open_store("memory", tmp_path)
    with real_server(tmp_path / "nats", "2.15") as server:
        async with mirroring(store, server) as task:
            await fill(store, session_events(20))
            await drained(task)
            server.hold()
            await fill(store, session_events(2000, first=20))
            await until(lambda: task.status()["problem"], "it is reported")
            status = task.status()
            assert status["lag"] == 2000 and "\n" not in status["problem"]
            # Nothing is queued: it holds at most two runs of waiting records, and none without a connection.
            await task.close()
            assert task.status()["position"] == 19
            server.resume()
    await store.close()


async def test_a_mirror_without_any_server_costs_nothing_and_ends_at_once(tmp_path: Path) -> None:
    store = await open_store("memory", tmp_path)
    async with mirroring(store, RealServer(tmp_path / "nats", "2.15")) as task:
        await fill(store, session_events(100))
        await until(lambda: task.status()["problem"], "it is reported")
        status = task.status()
        assert (status["state"], status["lag"], status["position"]) == ("waiting", 100, -1)
        async with asyncio.timeout(HANG_SECONDS):
            await task.pause()
        assert task.status()["state"] == "paused"
