"""A mirror catches up with the log even if its notes, stream or log changed; forgetting reaches it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.client import JetStreamContext

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.publishing import publish_all
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import EVENTS, L0_EVENTS
from bridge.nats.mirror.resuming import MIRROR, MIRROR_VERSION, MirrorState
from bridge.nats.mirror.surveying import erase_l0
from sidecar.mirror.rebuild import Rebuild
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
    session_events,
)
from tests.nats_servers import TOKEN, RealServer, forgets_ids, own_of_both, until


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


def lose_hints(store: MemoryStore) -> None:
    store._cursors.clear()
    store._snapshots.clear()


async def let_ids_expire(own: RealServer) -> None:
    session = await JetStream.connect(own.options)
    await forgets_ids(session, EVENTS, L0_EVENTS)
    await session.close()


# --- our own notes ---


@pytest.mark.parametrize("lost", [False, True])
async def test_without_its_notes_and_after_the_duplicate_window_nothing_is_there_twice(
    own: RealServer, lost: bool
) -> None:
    store = await mirrored_log(250, own)
    if lost:
        lose_hints(store)
    await let_ids_expire(own)
    await fill(store, session_events(50, first=250))
    async with mirroring(store, own) as task:
        status = await drained(task)
    assert status["rebuild"] == 0
    await check_equal(store, own)


@pytest.mark.parametrize("runs", [1, 2, 3])
async def test_a_mirror_that_ends_anywhere_goes_on_without_a_gap_or_a_double(
    own: RealServer, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between L0 messages and records, within both, and before the cursor is saved."""
    monkeypatch.setattr("bridge.nats.mirror.publish.MAX_RUN", 40)
    store = MemoryStore()
    await fill(store, session_events(200))
    sent = 0

    class Broken(Exception):
        pass

    from bridge.nats.mirror import publish as module

    publish = module._publish

    async def breaking(session: Any, parts: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent == runs:
            messages = [message for part in parts for message in part.messages]
            await publish_all(session, messages[: len(messages) // 2])
        if sent >= runs:
            raise Broken
        return await publish(session, parts)

    monkeypatch.setattr(module, "_publish", breaking)
    async with mirroring(store, own) as task:
        await until(lambda: task.status()["problem"], "it broke")
    monkeypatch.setattr(module, "_publish", publish)
    lose_hints(store)
    await let_ids_expire(own)
    async with mirroring(store, own) as task:
        await drained(task)
    await check_equal(store, own)


class Dies(Exception):
    """Simulates a kill -9."""


@pytest.mark.parametrize("step", ["purged", "published"])
async def test_no_rebuild_number_is_used_twice_however_often_it_is_killed(
    own: RealServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Within the duplicate window, the server treats a purged message's number as a duplicate."""
    from bridge.nats.mirror import publish as module
    from sidecar.mirror import task as task_module

    store = await mirrored_log(60, own)
    publish = module._publish
    used: list[set[int]] = []

    async def dying(session: Any, parts: Any) -> Any:
        messages = [message for part in parts for message in part.messages]
        if not messages:
            return await publish(session, parts)
        kept = await store.snapshot(MIRROR, MIRROR_VERSION)
        number = max(int(message.headers["Nats-Msg-Id"].rpartition(":")[2]) for message in messages)
        assert kept is not None and MirrorState.of(kept).rebuild >= number, "kept before it is used"
        used[-1].add(number)
        if step != "purged" and not messages[0].subject.startswith("evt."):
            return await publish(session, parts)
        if step == "published":
            await publish_all(session, messages[: len(messages) // 2])
        raise Dies

    monkeypatch.setattr(module, "_publish", dying)
    for _ in range(3):
        used.append(set())
        sessions = Sessions(own.ask_options)
        task = task_module.MirrorTask(store, LOG_ID, sessions, lambda: NOW_MS)
        await erase_l0(await sessions.get(), LOG_ID)
        task.rebuild()
        task.start()
        await until(lambda task=task: task.status()["problem"], "it died")
        monkeypatch.setattr(task, "_keep_last", _nothing)  # one that is killed keeps nothing more
        await task.close()
        await sessions.close()
    monkeypatch.setattr(module, "_publish", publish)
    assert [max(before) < min(after) for before, after in pairwise(used)] == [True, True], "after each purge another"
    async with mirroring(store, own) as last:
        last.rebuild()
        await until(lambda: last.counts["republished"], "it is published again")
        await drained(last)
    await check_equal(store, own)


async def _nothing() -> None:
    pass


# --- the stream ---


async def test_a_stream_that_was_emptied_or_made_anew_while_connected_is_filled_again(
    own: RealServer, admin: JetStreamContext
) -> None:
    store = MemoryStore()
    await fill(store, session_events(120))
    async with mirroring(store, own, look_seconds=0.2) as task:
        await drained(task)
        await admin.purge_stream(EVENTS)
        await until(lambda: task.status()["rebuild"] == 1, "it was noticed")
        await drained(task)
        await check_equal(store, own)
        config = (await admin.stream_info(EVENTS)).config
        await admin.delete_stream(EVENTS)
        await admin.add_stream(config)
        await fill(store, session_events(30, first=120))
        await until(lambda: task.status()["rebuild"] == 2, "it was noticed")
        await drained(task)
        await check_equal(store, own)
        assert task.status()["notes"]["resumed:wiped"] >= 1


@own_of_both
async def test_a_purge_within_the_duplicate_window_and_without_notes_is_made_good(
    own: RealServer, admin: JetStreamContext
) -> None:
    """The server still knows all ids, reports duplicates, and stores nothing."""
    store = await mirrored_log(60, own)
    lose_hints(store)
    await admin.purge_stream(EVENTS)
    async with mirroring(store, own) as task:
        await drained(task)
    await check_equal(store, own)


async def test_messages_that_are_gone_are_noticed_at_the_next_connection(
    own: RealServer, admin: JetStreamContext
) -> None:
    store = await mirrored_log(90, own)
    for gone in (range(86, 91), range(40, 44), range(1, 6)):  # the last, some in the middle, the first
        first = (await admin.stream_info(EVENTS)).state.first_seq - 1
        for sequence in gone:
            await admin.delete_msg(EVENTS, first + sequence)
        async with mirroring(store, own) as task:
            await drained(task)
        await check_equal(store, own)


async def test_what_the_streams_own_limits_removed_is_no_loss(own: RealServer, admin: JetStreamContext) -> None:
    store = MemoryStore()
    async with mirroring(store, own, max_bytes=100_000) as task:
        await fill(store, session_events(400))
        await drained(task)
    async with mirroring(store, own, max_bytes=100_000) as task:
        await fill(store, session_events(50, first=400))
        status = await drained(task)
    assert status["rebuild"] == 0
    seen = await read_independently(own)
    positions = [int(each.headers["DS-Position"]) for each in seen]
    assert positions == list(range(positions[0], 450)) and 100 < positions[0] < 400


# --- the log ---


async def test_what_was_pruned_from_the_log_stays_in_the_mirror(own: RealServer) -> None:
    store = await mirrored_log(100, own)
    await store.prune({"ses_0": 12, "ses_1": 5}, at_ms=NOW_MS)
    await fill(store, session_events(30, first=100))
    async with mirroring(store, own) as task:
        status = await drained(task)
    assert status["rebuild"] == 0
    assert len(await read_independently(own)) == 130
    async with mirroring(store, own) as task:
        task.rebuild()
        await until(lambda: task.status()["rebuild"] == 1, "it was begun")
        await drained(task)
    seen = await read_independently(own)
    assert [int(each.headers["DS-Position"]) for each in seen] == [r.position async for r in store.read_all()]
    lose_hints(store)
    async with mirroring(store, own) as task:
        status = await drained(task)
    assert status["rebuild"] == 1


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
        status = await drained(task)
    assert status["rebuild"] == 0 and not any(note.startswith("resumed") for note in status["notes"])
    seen = await read_independently(own)
    assert [int(each.headers["DS-Position"]) for each in seen] == [r.position async for r in store.read_all()]
    last = [record async for record in store.read_all()][-1]
    await store.prune({last.event.stream_id: last.offset + 1}, at_ms=NOW_MS)
    async with mirroring(store, own) as task:
        done = await Rebuild(task, task._sessions, LOG_ID).run()
    assert (done["phase"], done["position"], done["rebuild"]) == ("done", 44, 1)
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
        await until(lambda: task.status()["rebuild"] == 1, "it is published again")
        await drained(task)
        await check_equal(store, own)
        forgotten = [e for e in await read_independently(own) if e.headers["DS-Form"] == "forgotten"]
        assert {e.subject.split(".")[3] for e in forgotten} == {"ses_3", "ses_4"}
        assert not any(SECRET in e.body.decode() for e in forgotten)
    await store.close()


@own_of_both
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
        await until(lambda: task.status()["rebuild"] == 1, "it is published again")
        await drained(task)
    own.kill()
    assert holding(own.directory, SECRET) == []


async def test_what_was_forgotten_while_no_mirror_ran_is_found_by_the_next_one(own: RealServer) -> None:
    store = await mirrored_log(100, own)
    await store.forget(["ses_2"], at_ms=NOW_MS)
    assert await store.snapshot(MIRROR, MIRROR_VERSION) is None
    await fill(store, session_events(20, first=100))
    async with mirroring(store, own) as task:
        await drained(task)
    await check_equal(store, own)
    async with mirroring(store, own) as task:
        status = await drained(task)
    assert status["notes"]["resumed:forgotten"] == 1 and status["rebuild"] == 1


async def test_forgetting_that_is_cut_off_half_way_is_finished(
    own: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await mirrored_log(100, own)
    from sidecar.mirror import progress as module

    async def broken(*_: Any, **__: Any) -> int:
        raise OSError("broken")

    cut = module.cut
    monkeypatch.setattr(module, "cut", broken)
    await store.forget(["ses_2"], at_ms=NOW_MS)
    async with mirroring(store, own) as task:
        await until(lambda: "broken" in task.status()["problem"], "it broke after the first half")
    monkeypatch.setattr(module, "cut", cut)
    async with mirroring(store, own) as task:
        await drained(task)
    await check_equal(store, own)


# --- pausing ---


async def test_while_it_is_paused_nothing_is_published(own: RealServer) -> None:
    store = MemoryStore()
    await fill(store, session_events(100))
    async with mirroring(store, own) as task:
        await drained(task)
        await task.pause()
        await fill(store, session_events(100, first=100))
        assert task.status()["state"] == "paused" and task.status()["lag"] == 100
        assert len(await read_independently(own)) == 100
        task.resume()
        await drained(task)
    await check_equal(store, own)
