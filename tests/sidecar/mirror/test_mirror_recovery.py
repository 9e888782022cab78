"""A mirror that remembers nothing catches up with the log, whatever happens to it, to the stream or to the log."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.client import JetStreamContext

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.publishing import publish_all
from bridge.nats.jetstream.stream_plan import EVENTS, L0_EVENTS
from bridge.nats.mirror.batches import Run
from tests.memory import MemoryStore
from tests.mirrors import (
    LOG_ID,
    NOW_MS,
    check_equal,
    drained,
    fill,
    mirroring,
    open_store,
    read_independently,
    rebuilt,
    session_events,
    unsynced,
)
from tests.nats_servers import TOKEN, RealServer, forgets_ids, real_server, until

LOOK = 0.2


@pytest.fixture
async def admin(own: RealServer) -> AsyncIterator[JetStreamContext]:
    """A connection for another program's changes on the server."""
    client = await nats.connect(f"nats://127.0.0.1:{own.port}", token=TOKEN)
    yield client.jetstream()
    await client.close()


async def mirrored_log(count: int, own: RealServer) -> MemoryStore:
    store = MemoryStore()
    await fill(store, session_events(count))
    async with mirroring(store, own) as task:
        await drained(task)
    return store


async def let_ids_expire(own: RealServer) -> None:
    session = await JetStream.connect(own.options)
    await forgets_ids(session, EVENTS, L0_EVENTS)
    await session.close()


# --- its own ends ---


async def test_after_the_duplicate_window_nothing_is_there_twice(own: RealServer) -> None:
    store = await mirrored_log(250, own)
    await let_ids_expire(own)
    await fill(store, session_events(50, first=250))
    async with mirroring(store, own) as task:
        await drained(task)
        assert not task.counts["republished"]
    await check_equal(store, own)


@pytest.mark.parametrize("runs", [1, 2, 3])
@pytest.mark.parametrize("stored", ["some L0 messages", "all L0 messages"])
async def test_a_mirror_that_ends_anywhere_goes_on_without_a_gap_or_a_double(
    own: RealServer, runs: int, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the L0 messages of a run, or between them and its records."""
    monkeypatch.setattr("bridge.nats.mirror.batches.MAX_BATCH", 40)
    store = MemoryStore()
    await fill(store, session_events(200))
    from sidecar.mirror import follower as module

    publish, finished = module.publish_run, 0

    class Broken(Exception):
        pass

    async def breaking(session: JetStream, run: Run, log_id: str, *, behind: int) -> int:
        nonlocal finished
        finished += 1
        if finished == runs:
            there = len(run.l0) // (2 if stored.startswith("some") else 1)
            await publish_all(session, run.l0[:there])
        if finished >= runs:
            raise Broken
        return await publish(session, run, log_id, behind=behind)

    monkeypatch.setattr(module, "publish_run", breaking)
    async with mirroring(store, own) as task:
        await until(lambda: task.status()["problem"], "it broke")
    monkeypatch.setattr(module, "publish_run", publish)
    await let_ids_expire(own)
    async with mirroring(store, own) as task:
        await drained(task)
    await check_equal(store, own)


# --- foreign hands on the stream ---

Hand = Callable[[JetStreamContext], Awaitable[Any]]


async def purged(admin: JetStreamContext) -> None:
    await admin.purge_stream(EVENTS)


async def removed(admin: JetStreamContext) -> None:
    await admin.delete_stream(EVENTS)


async def made_anew(admin: JetStreamContext) -> None:
    config = (await admin.stream_info(EVENTS)).config
    await admin.delete_stream(EVENTS)
    await admin.add_stream(config)


async def without_messages(admin: JetStreamContext, *, end: bool) -> None:
    state = (await admin.stream_info(EVENTS)).state
    first = state.last_seq - 9 if end else state.first_seq
    for sequence in range(first, first + 10):
        await admin.delete_msg(EVENTS, sequence)


async def with_a_foreign_message(admin: JetStreamContext) -> None:
    await admin.publish(f"evt.p.{LOG_ID}.s.x", b"hello")


async def limited(admin: JetStreamContext, **limits: Any) -> None:
    await admin.update_stream((await admin.stream_info(EVENTS)).config, **limits)


HANDS: dict[str, Hand] = {
    "purged": purged,
    "stream removed": removed,
    "stream made anew": made_anew,
    "end deleted": partial(without_messages, end=True),
    "beginning deleted": partial(without_messages, end=False),
    "foreign message": with_a_foreign_message,
    "max_msgs": partial(limited, max_msgs=50),
    "full, and takes nothing new": partial(limited, max_msgs=120, discard="new"),
}


@pytest.mark.parametrize(
    ("hand", "running"), [*((hand, True) for hand in HANDS), ("purged", False), ("end deleted", False)]
)
async def test_what_another_program_did_to_the_stream_is_mended(
    own: RealServer, admin: JetStreamContext, hand: str, running: bool
) -> None:
    store = await mirrored_log(120, own)
    if not running:
        await HANDS[hand](admin)
    async with mirroring(store, own, look_seconds=LOOK) as task:
        if running:
            await drained(task)
            await HANDS[hand](admin)
        await fill(store, session_events(30, first=120))
        async with asyncio.timeout(60):
            while True:
                await drained(task)
                try:
                    await check_equal(store, own)
                    break
                except (AssertionError, nats.js.errors.NotFoundError):
                    await asyncio.sleep(LOOK)


async def test_messages_under_another_name_disturb_nobody(own: RealServer, admin: JetStreamContext) -> None:
    store = await mirrored_log(20, own)
    async with mirroring(store, own, look_seconds=LOOK) as task:
        for number in range(5):
            await admin.publish("evt.p.OTHER.s.x", b"%d" % number)
            await fill(store, session_events(10, first=20 + 10 * number))
            await drained(task)
        assert not task.counts["republished"]
    assert len(await read_independently(own, f"evt.*.{LOG_ID}.>")) == 70
    assert len(await read_independently(own, "evt.*.OTHER.>")) == 5


async def test_a_server_that_comes_back_with_an_older_store_is_filled_up(own: RealServer, tmp_path: Path) -> None:
    store = await mirrored_log(100, own)
    own.kill()
    shutil.copytree(own.directory / "store", tmp_path / "older")
    own.start()
    async with mirroring(store, own, look_seconds=LOOK) as task:
        await fill(store, session_events(100, first=100))
        await drained(task)
        own.kill()
        own.wipe()
        shutil.copytree(tmp_path / "older", own.directory / "store")
        own.start()
        await fill(store, session_events(10, first=200))
        await until(lambda: len(store._records) - 1 == task.status()["position"], "it goes on")
        await drained(task)
    await check_equal(store, own)


async def test_an_older_log_replaces_what_a_later_one_published(own: RealServer) -> None:
    """A home that was restored from a copy; once as it was, and once after it grew past the stream."""
    await mirrored_log(100, own)
    store = MemoryStore()
    for first, count in ((0, 60), (60, 80)):
        await fill(store, session_events(count, first=first, text=f"another {first}"))
        async with mirroring(store, own) as task:
            await drained(task)
        await check_equal(store, own, l0=False)


async def test_of_two_copies_of_a_home_the_one_that_published_stands_still(own: RealServer) -> None:
    store, copy = MemoryStore(), MemoryStore()
    for each in (store, copy):
        await fill(each, session_events(30))
    async with mirroring(store, own, look_seconds=LOOK) as first:
        await drained(first)
        async with mirroring(copy, own, look_seconds=LOOK) as second:
            await fill(copy, session_events(10, first=30, text="the copy's"))
            await drained(second)
            await fill(store, session_events(10, first=30))
            await until(lambda: "a copy of this home" in first.status()["problem"], "the first one says so")
            await fill(copy, session_events(10, first=40, text="the copy's"))
            await drained(second)
            assert not first.counts["republished"] and not second.counts["republished"]
        await check_equal(copy, own)


async def test_a_store_that_is_full_keeps_nobody_waiting_and_is_gone_on_with(tmp_path: Path) -> None:
    store = MemoryStore()
    await fill(store, session_events(500))
    directory = tmp_path / "nats"
    with real_server(directory, jetstream={**unsynced(directory), "max_file_store": 12 * 2**20}) as server:
        client = await nats.connect(f"nats://127.0.0.1:{server.port}", token=TOKEN)
        ballast = client.jetstream()
        async with mirroring(store, server, look_seconds=LOOK, max_store=12 * 2**20) as task:
            await drained(task)
            await ballast.add_stream(name="BALLAST", subjects=["ballast"])
            for size in (100_000, 10_000):
                with pytest.raises(nats.js.errors.APIError):
                    while True:
                        await ballast.publish("ballast", bytes(size))
            await until(lambda: task.status()["full"]["store"] > 0.9, "status says so while it runs")
            await fill(store, session_events(300, first=500, text="x" * 2000))
            await until(lambda: task.status()["problem"], "it waits")
            await ballast.delete_stream("BALLAST")
            await drained(task)
        await client.close()
        await check_equal(store, server)


async def test_what_the_streams_own_limit_removed_is_no_loss(own: RealServer) -> None:
    store = MemoryStore()
    async with mirroring(store, own, max_bytes=100_000) as task:
        await fill(store, session_events(400))
        await drained(task)
    async with mirroring(store, own, max_bytes=100_000) as task:
        await fill(store, session_events(50, first=400))
        status = await drained(task)
    assert status["full"]["stream"] > 0.9 and not task.counts["republished"]
    seen = await read_independently(own)
    positions = [int(each.headers["DS-Position"]) for each in seen]
    assert positions == list(range(positions[0], 450)) and 100 < positions[0] < 400


# --- the log ---


async def test_what_was_pruned_from_the_log_stays_in_the_mirror(own: RealServer) -> None:
    store = await mirrored_log(100, own)
    await store.prune({"ses_0": 12, "ses_1": 5}, at_ms=NOW_MS)
    await fill(store, session_events(30, first=100))
    async with mirroring(store, own) as task:
        await drained(task)
        assert not task.counts["republished"]
        assert len(await read_independently(own)) == 130
        await rebuilt(task)
    seen = await read_independently(own)
    assert [int(each.headers["DS-Position"]) for each in seen] == [r.position async for r in store.read_all()]
    async with mirroring(store, own) as task:
        await drained(task)
        assert not task.counts["republished"]


async def test_a_log_whose_end_was_pruned_is_mirrored_to_its_end(own: RealServer) -> None:
    """Records pruned before they were published never arrive, and nothing waits for them."""
    store = MemoryStore()
    await fill(store, session_events(20))
    last = [record async for record in store.read_all()][-1]
    await store.prune({last.event.stream_id: last.offset + 1}, at_ms=NOW_MS)
    for _ in range(2):
        async with mirroring(store, own) as task:
            status = await drained(task)
        assert (status["position"], status["lag"], status["problem"]) == (19, 0, "")
    await fill(store, session_events(25, first=20))
    async with mirroring(store, own) as task:
        await drained(task)
        assert not task.counts["republished"]
    seen = await read_independently(own)
    assert [int(each.headers["DS-Position"]) for each in seen] == [r.position async for r in store.read_all()]
    last = [record async for record in store.read_all()][-1]
    await store.prune({last.event.stream_id: last.offset + 1}, at_ms=NOW_MS)
    async with mirroring(store, own) as task:
        assert (await rebuilt(task))["position"] == 44
    assert len(await read_independently(own)) == len([record async for record in store.read_all()])


# --- forgetting ---

SECRET = "correct-horse-battery-staple"


def holding(directory: Path, text: str) -> list[Path]:
    return [path for path in (directory / "store").rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.mark.parametrize(("backend", "away"), [("memory", False), ("disk", True)])
async def test_what_is_forgotten_is_gone_from_the_server_and_the_mirror_is_the_log(
    own: RealServer, tmp_path: Path, backend: str, away: bool
) -> None:
    store = await open_store(backend, tmp_path / "store")
    await fill(store, session_events(30))
    await fill(store, session_events(60, first=30, text=SECRET))
    async with mirroring(store, own) as task:
        await drained(task)
        assert holding(own.directory, SECRET)
        if away:
            own.kill()
        await store.forget(["ses_3", "ses_4"], at_ms=NOW_MS)
        task.forgotten(["ses_3", "ses_4"])
        if away:
            own.start()
        await until(lambda: task.counts["republished"] == 1, "it is published again")
        await drained(task)
        await check_equal(store, own)
        forgotten = [e for e in await read_independently(own) if e.headers["DS-Form"] == "forgotten"]
        assert {e.subject.split(".")[3] for e in forgotten} == {"ses_3", "ses_4"}
        assert not any(SECRET in e.body.decode() for e in forgotten)
    await store.close()


async def test_the_bytes_of_what_is_forgotten_are_gone_from_the_servers_disk(own: RealServer) -> None:
    store = MemoryStore()
    await fill(store, session_events(30))
    await fill(store, session_events(10, first=30, text=SECRET))
    await fill(store, session_events(60, first=40))
    async with mirroring(store, own) as task:
        await drained(task)
        assert holding(own.directory, SECRET)
        await store.forget(["ses_3"], at_ms=NOW_MS)
        task.forgotten(["ses_3"])
        await until(lambda: task.counts["republished"] == 1, "it is published again")
        await drained(task)
    own.kill()
    assert holding(own.directory, SECRET) == []


async def test_a_single_record_that_was_forgotten_is_gone_and_its_neighbours_stay(own: RealServer) -> None:
    store = await mirrored_log(100, own)
    await store.forget([], positions=[42], at_ms=NOW_MS)
    for republished in (1, 0):
        async with mirroring(store, own) as task:
            await drained(task)
            assert task.counts["republished"] == republished
        await check_equal(store, own)


async def test_what_was_forgotten_while_no_mirror_ran_is_found_by_the_next_one(own: RealServer) -> None:
    store = await mirrored_log(100, own)
    await store.forget(["ses_2"], at_ms=NOW_MS)
    await fill(store, session_events(20, first=100))
    for republished in (1, 0):
        async with mirroring(store, own) as task:
            await drained(task)
            assert task.counts["republished"] == republished
        await check_equal(store, own)


@pytest.mark.parametrize("step", ["erase_l0", "empty"])
async def test_forgetting_that_is_cut_off_half_way_is_finished(
    own: RealServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = await mirrored_log(100, own)
    from bridge.nats.mirror import place
    from sidecar.mirror import follower

    module = place if step == "erase_l0" else follower

    async def broken(*_: Any, **__: Any) -> int:
        raise OSError("broken")

    whole = getattr(module, step)
    monkeypatch.setattr(module, step, broken)
    await store.forget(["ses_2"], at_ms=NOW_MS)
    async with mirroring(store, own) as task:
        await until(lambda: "broken" in task.status()["problem"], "it broke")
    monkeypatch.setattr(module, step, whole)
    async with mirroring(store, own) as task:
        await drained(task)
    await check_equal(store, own)


async def test_a_rebuild_that_is_asked_for_while_the_stream_is_emptied_is_not_lost(
    own: RealServer, admin: JetStreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sidecar.mirror import follower as module

    store = await mirrored_log(60, own)
    await with_a_foreign_message(admin)
    empty, tasks = module.empty, list[module.MirrorTask]()

    async def asked_meanwhile(*given: Any) -> None:
        await empty(*given)
        if not tasks[0].counts["republished"]:
            tasks[0].rebuild()

    monkeypatch.setattr(module, "empty", asked_meanwhile)
    async with mirroring(store, own) as task:
        tasks.append(task)
        await until(lambda: task.counts["rebuilt"] == 1, "it is rebuilt")
        await drained(task)
    await check_equal(store, own)
