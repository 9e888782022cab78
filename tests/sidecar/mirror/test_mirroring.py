"""The mirror on real servers: each record once and in order, whatever happens to the server, the mirror or the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridge.nats.mirror.resuming import MIRROR
from tests.memory import MemoryStore
from tests.mirrors import (
    chain_hashes,
    check_equal,
    drained,
    fill,
    mirroring,
    read_independently,
    session_events,
)
from tests.nats_servers import HANG_SECONDS, RealServer, own_of_both, real_server, until


@own_of_both
async def test_what_is_there_and_what_comes_is_mirrored_once_and_in_order(own: RealServer) -> None:
    """``tests/torture/test_mirror.py`` has the same on the other stores, whatever happens to server, mirror and log."""
    store = MemoryStore()
    await fill(store, session_events(300))
    async with mirroring(store, own) as task:
        await drained(task)
        await fill(store, session_events(300, first=300), batch=7)
        status = await drained(task)
        assert (status["problem"], status["duplicates"], status["rebuild"]) == ("", 0, 0)
        await check_equal(store, own)


async def test_how_far_it_is_is_kept_when_nothing_more_comes(own: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """``mirror verify`` counts missing messages up to the cursor as lost, and later ones as not sent yet."""
    monkeypatch.setattr("sidecar.mirror.progress.CURSOR_SECONDS", 3600)
    store = MemoryStore()
    async with mirroring(store, own) as task:
        for count in (30, 3):
            await fill(store, session_events(count, first=store.head + 1))
            await drained(task)
            kept = 0
            while kept < store.head:
                kept = await store.cursor(MIRROR)
                await asyncio.sleep(0.01)


async def test_a_record_over_the_servers_limit_is_a_pointer_and_the_chain_holds(tmp_path: Path) -> None:
    store = MemoryStore()
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


async def test_a_server_that_hangs_keeps_nobody_waiting_and_is_told_in_one_line(own: RealServer) -> None:
    store = MemoryStore()
    own.patience = 1.0
    async with mirroring(store, own) as task:
        await fill(store, session_events(20))
        await drained(task)
        own.hold()
        await fill(store, session_events(2000, first=20))
        await until(lambda: task.status()["problem"], "it is reported")
        status = task.status()
        assert status["lag"] == 2000 and "\n" not in status["problem"]
        # Nothing is queued: it holds at most two runs of waiting records, and none without a connection.
        await task.close()
        assert task.status()["position"] == 19
        own.resume()


async def test_a_mirror_without_any_server_costs_nothing_and_ends_at_once(tmp_path: Path) -> None:
    store = MemoryStore()
    async with mirroring(store, RealServer(tmp_path / "nats", "2.15")) as task:
        await fill(store, session_events(100))
        await until(lambda: task.status()["problem"], "it is reported")
        status = task.status()
        assert (status["state"], status["lag"], status["position"]) == ("waiting", 100, -1)
        async with asyncio.timeout(HANG_SECONDS):
            await task.pause()
        assert task.status()["state"] == "paused"
