"""The sidecar's data for quick starts and commands: snapshots equal a full replay."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any, Literal

import pytest

from bridge.opencode.capture.state import BUSY_SESSIONS, REMEMBERED_AT_REST, STATE_VERSION, CaptureState
from bridge.opencode.capture.stored_map import Changes
from sidecar.care import snapshots
from sidecar.care import upkeep as module
from sidecar.care.resting_sessions import CAPTURE, write
from sidecar.care.snapshots import CaptureSnapshot, restore
from sidecar.care.upkeep import Upkeep
from sidecar.config import StoreConfig
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.prune_plan import PruneRequest
from streams.log.reader import LogReader
from streams.query import Filter
from streams.retention import Removed
from streams.store import Record
from tests.bridge.opencode.playing import dumped, names, play
from tests.sidecar.agents.support import until
from tests.streams.builders import event
from tests.streams.databases import change
from tests.streams.descriptors import deleted_and_open, held_open, needs_descriptors
from tests.streams.opened import collect, moved

HANG_S = 20


def recorded() -> list[StreamEvent]:
    """The events of all recordings, one recording after the other."""
    return [each for name in names() for each in play(name).log.events.values()]


def many_sessions(count: int, turns: int = 12) -> list[StreamEvent]:
    """More sessions than keep their full state; the first one returns at the end."""
    story: list[StreamEvent] = []
    for number in [*range(count), 0]:
        session = f"ses_{number}"
        base = f"{number}-{len(story)}"
        appeared = "lifecycle.session.created" if base == "0-0" or number else "lifecycle.session.resumed"
        payload = {"session": session, "title": f"s {number}"}
        story.append(event(base, type_=appeared, stream=session, payload=payload, metadata={"boot": f"b{len(story)}"}))
        for turn in range(turns):
            message = f"msg_{base}_{turn}"
            told = {"session": session, "message": message}
            story.append(event(f"{base}i{turn}", type_="human.input", stream=session, payload=told))
            story.append(event(f"{base}s{turn}", type_="turn.started", stream=session, payload=told))
            step = {"session": session, "turn": message, "kind": "inference", "cost": 0.1, "tokens": {"input": 3}}
            story.append(event(f"{base}x{turn}", stream=session, payload=step))
            if turn + 1 < turns or number % 3:
                story.append(event(f"{base}e{turn}", type_="turn.ended", stream=session, payload=told))
    return story


def open_log(store: Path) -> Coroutine[Any, Any, Log]:
    return Log.open(store, seeded_identity(1))


async def append(log: Log, events: list[StreamEvent]) -> None:
    for begin in range(0, len(events), 256):
        await log.append(events[begin : begin + 256], on_known="keep_first")


def upkeep_of(log: Log, capture: CaptureSnapshot, is_quiet: bool = True) -> Upkeep:
    return Upkeep(log, capture, lambda: is_quiet, lambda: 0, config=StoreConfig())


async def life(store: Path, events: list[StreamEvent]) -> tuple[bytes, int]:
    """One life of a sidecar like ``serve``: resume, record, end. Return its state as bytes, and where it resumed."""
    log = await open_log(store)
    capture = await restore(log)
    kept = capture.saved
    await append(log, events)
    for each in events:
        capture.state.apply(each)
    await upkeep_of(log, capture).keep_last()
    found = dumped(capture.state)
    await log.close()
    return found, kept


async def kept(log: Log, capture: CaptureSnapshot) -> None:
    """Save the state, and wait until that is done."""
    capture.save()
    await log.write_hints()
    assert capture.saved == log.head


@pytest.mark.parametrize("story", ["recordings", "many sessions"])
@pytest.mark.parametrize("in_memory", [1, snapshots.IN_MEMORY])
async def test_lives_that_resume_equal_a_full_replay(
    tmp_path: Path, story: str, in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "IN_MEMORY", in_memory)
    monkeypatch.setattr(snapshots, "SAVED_AT_ONCE", 50)
    events = recorded() if story == "recordings" else many_sessions(2 * BUSY_SESSIONS, 3)
    third = len(events) // 3
    done = 0
    for part in (events[:third], events[third : 2 * third], events[2 * third :]):
        state, kept = await life(tmp_path, part)
        assert kept == done - 1, "it resumes where the life before it ended"
        done += len(part)
    whole = CaptureState()
    for each in events:
        whole.apply(each)
    assert state == dumped(whole)


SPOILS = {
    "no snapshot": "DELETE FROM hints WHERE kind = 'rows'",
    "garbage": "UPDATE hints SET state = x'00' WHERE kind = 'rows'",
    "another version": "UPDATE hints SET version = 1 WHERE kind = 'rows'",
}


@pytest.mark.parametrize("damage", SPOILS)
async def test_a_damaged_snapshot_costs_time_alone(tmp_path: Path, damage: str) -> None:
    events = many_sessions(4)
    await life(tmp_path, events)
    change(tmp_path, SPOILS[damage])
    state, _ = await life(tmp_path, [])
    whole = CaptureState()
    for each in events:
        whole.apply(each)
    assert state == dumped(whole)


def test_what_is_remembered_of_sessions_at_rest_is_little() -> None:
    state = CaptureState()
    events = many_sessions(3 * BUSY_SESSIONS)
    for each in events:
        state.apply(each)
        state.apply(each)  # sent again, because its ack was lost
    busy = list(state.busy)
    assert len(busy) == BUSY_SESSIONS and busy[-1] == "ses_0"
    for session in state.sessions.values():
        most = 24 if session.id in busy else REMEMBERED_AT_REST
        assert len(session.inputs) <= most and len(session.turns) <= most
    once = CaptureState()
    for each in events:
        once.apply(each)
    assert dumped(once) == dumped(state), "what is sent again changes nothing"


async def test_neither_memory_nor_a_snapshot_grows_with_the_sessions_that_ever_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "IN_MEMORY", BUSY_SESSIONS)
    log = await Log.open(tmp_path, seeded_identity(1))
    await append(log, many_sessions(4 * BUSY_SESSIONS, 1))
    capture = await restore(log)
    await kept(log, capture)
    saved: list[set[str]] = []

    def noted(db: sqlite3.Connection, changes: Changes, *, is_new: bool) -> None:
        saved.append(set(changes))
        write(db, changes, is_new=is_new)

    monkeypatch.setattr(snapshots, "write", noted)
    told = {"session": "ses_3", "message": "msg_more"}
    for record in await log.append([event("more", type_="human.input", stream="ses_3", payload=told)]):
        capture.state.apply(record.event)
    await kept(log, capture)
    assert saved == [{"ses_3"}]
    assert len(capture.state.sessions._here) == BUSY_SESSIONS
    state = await log.saved(CAPTURE, STATE_VERSION)
    assert state is not None and len(state.state) < 4000
    await log.close()


async def test_after_a_removal_what_is_left_is_saved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "IN_MEMORY", 1)
    events = many_sessions(8, 2)
    await life(tmp_path, events)
    log = await open_log(tmp_path)
    capture = await restore(log)
    upkeep = upkeep_of(log, capture)
    for session in ("ses_4", "ses_5"):
        assert (await upkeep.forget([session], [session])).records
        capture.save(lambda: False)  # hooks are on their way, so nothing is saved before the next removal
    await upkeep.keep_last()
    assert sorted(capture.state.sessions) == [f"ses_{number}" for number in (0, 1, 2, 3, 6, 7)]
    left = dumped(capture.state)
    await log.close()
    assert await life(tmp_path, []) == (left, len(events) - 1)


async def test_a_damaged_row_costs_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "IN_MEMORY", 0)
    events = many_sessions(4)
    await life(tmp_path, events)
    change(tmp_path, "UPDATE saved_sessions SET body = x'00'")
    log = await open_log(tmp_path)
    told = {"session": "ses_1", "message": "msg_more"}
    await log.append([event("more", type_="human.input", stream="ses_1", payload=told)])
    assert dumped((await restore(log)).state) == dumped(await folded(log))
    await log.close()


async def folded(log: Log) -> CaptureState:
    state = CaptureState()
    async for record in log.read_all():
        state.apply(record.event)
    return state


class CountingLock(asyncio.Lock):
    """A lock that counts the requests for it."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = asyncio.Semaphore(0)

    async def acquire(self) -> Literal[True]:
        self._asked.release()
        return await super().acquire()

    async def asked(self, times: int) -> None:
        for _ in range(times):
            await self._asked.acquire()


async def test_nothing_is_kept_of_what_is_being_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """During a removal no snapshot or search index is written; afterwards they lack what was removed."""
    log = await open_log(tmp_path)
    session = "ses_forgotten"
    payload = {"session": session, "title": "the secret title", "message": "msg_1"}
    await append(log, [event("c", type_="lifecycle.session.created", stream=session, payload=payload)])
    await append(log, [event(f"i{n}", type_="human.input", stream=session, payload=payload) for n in range(20)])
    monkeypatch.setattr(module, "SNAPSHOT_RECORDS", 1)
    upkeep = upkeep_of(log, await restore(log))
    at_work, go_on = asyncio.Event(), asyncio.Event()
    real = log.forget

    async def held(streams: Sequence[str], **how: Any) -> Removed:
        at_work.set()
        await go_on.wait()
        return await real(streams, **how)

    monkeypatch.setattr(log, "forget", held)
    lock = CountingLock()
    monkeypatch.setattr(upkeep, "_removing", lock)
    forgetting = asyncio.create_task(upkeep.forget([session]))
    async with asyncio.timeout(HANG_S):
        await at_work.wait()
    looking = asyncio.create_task(upkeep.look())
    indexing = asyncio.create_task(upkeep._advance_index())
    async with asyncio.timeout(HANG_S):
        await lock.asked(3)
    assert await log.saved(CAPTURE, STATE_VERSION) is None and not list(tmp_path.glob("search.db*"))
    go_on.set()
    await asyncio.gather(forgetting, looking, indexing)
    await upkeep._advance_index()
    assert (await forgetting).records == 21
    await upkeep.keep_last()
    assert await log.saved(CAPTURE, STATE_VERSION) is not None
    await upkeep.close()
    await log.close()
    assert (tmp_path / "search.db").exists()
    holders = [path.name for path in tmp_path.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]
    assert holders == []


@pytest.mark.parametrize("is_quiet", [True, False])
async def test_each_commit_is_indexed_without_waiting_for_a_look(
    tmp_path: Path, is_quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while hooks keep arriving; and what the index lacks from before is indexed first."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 10 * HANG_S)
    monkeypatch.setattr(module, "INDEX_RECORDS", 2)
    log = await open_log(tmp_path)
    await append(log, many_sessions(3))
    upkeep = upkeep_of(log, await restore(log), is_quiet)
    searched, reader = Filter(text="wo" + "rds"), LogReader(tmp_path)
    async with AsyncExitStack() as stack:
        await upkeep.start(stack)
        for number in range(3):
            await until(lambda: upkeep._index is not None and upkeep._index.position == log.head)
            assert len(await collect(reader.query(searched))) == number
            await log.append([event(f"later-{number}", stream="ses_later", payload={"text": "its words"})])
        await until(lambda: upkeep._index is not None and upkeep._index.position == log.head)
        await upkeep.forget(["ses_later"])
        assert await collect(reader.query(searched)) == []
        await log.append([event("after", stream="ses_later", payload={"text": "its words"})])
        await until(lambda: upkeep._index is not None and upkeep._index.position == log.head)
        assert [record.event.idempotency_key for record in await collect(reader.query(searched))] == ["test:after"]
    await reader.close()
    await log.close()


async def test_while_hooks_keep_arriving_a_search_index_never_lacks_more_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INDEX_RECORDS", 2)
    monkeypatch.setattr(module, "INDEX_LAG", 5)
    monkeypatch.setattr(module, "INDEX_REST", 1e9)
    log = await open_log(tmp_path)
    await append(log, many_sessions(20))
    upkeep = upkeep_of(log, await restore(log), is_quiet=False)
    async with AsyncExitStack() as stack:
        await upkeep.start(stack)
        await until(lambda: upkeep._index is not None and log.head - upkeep._index.position <= 5)
    await log.close()


@needs_descriptors
@pytest.mark.parametrize("what", ["prune", "forget"])
async def test_a_removal_lets_go_of_the_search_index_which_it_deletes(tmp_path: Path, what: str) -> None:
    """Otherwise the disk would keep its space and the forgotten text."""
    log = await open_log(tmp_path)
    await append(log, many_sessions(3))
    upkeep = upkeep_of(log, await restore(log))
    await moved(log)
    await upkeep._advance_index()
    assert "search.db" in held_open(tmp_path)
    if what == "prune":
        _, done = await upkeep.prune(PruneRequest(None, None, ("ses_1",)))
        assert done is not None and done.records
    else:
        assert (await upkeep.forget(["ses_1"])).records
    assert not (tmp_path / "search.db").exists() and deleted_and_open(tmp_path) == set()
    await upkeep._advance_index()
    assert "search.db" in held_open(tmp_path), "it is rebuilt"
    await upkeep.close()
    await log.close()
    assert held_open(tmp_path) == set()


def damaged(store: Path) -> None:
    (store / "search.db").write_bytes(b"damaged" * 1000)


def cut_off(store: Path) -> None:
    os.truncate(store / "search.db", 5000)


def without_tables(store: Path) -> None:
    with closing(sqlite3.connect(store / "search.db")) as connection:
        connection.execute("DROP TABLE progress")


def ahead(store: Path) -> None:
    """As beside a log that was restored from a backup."""
    with closing(sqlite3.connect(store / "search.db")) as connection, connection:
        connection.execute("UPDATE progress SET position = 999")


@pytest.mark.parametrize("damage", [damaged, cut_off, without_tables, ahead])
async def test_a_damaged_search_index_is_made_anew(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    log = await open_log(tmp_path)
    await append(log, [event(f"e{n}", payload={"text": "its words"}) for n in range(20)])
    await moved(log)
    for number in range(2):
        upkeep = upkeep_of(log, await restore(log))
        await upkeep._advance_index()
        assert upkeep._index is not None and upkeep._index.position == log.head
        await upkeep.close()
        if not number:
            damage(tmp_path)
            assert len(await found_by(tmp_path, "its words")) == 20, "an index is only a help"
    assert len(await found_by(tmp_path, "its words")) == 20
    await log.close()


async def test_an_index_that_is_damaged_under_the_sidecar_is_made_anew(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    await append(log, [event(f"e{n}", payload={"text": "its words"}) for n in range(20)])
    await moved(log)
    upkeep = upkeep_of(log, await restore(log))
    await upkeep._advance_index()
    for path in tmp_path.glob("search.db*"):
        path.write_bytes(b"damaged" * 1000)
    await append(log, [event("more", payload={"text": "its words"})])
    await moved(log)
    await upkeep._advance_index()
    assert upkeep._index is not None and upkeep._index.position == log.head
    assert len(await found_by(tmp_path, "its words")) == 21
    await upkeep.close()
    await log.close()


async def found_by(store: Path, text: str) -> list[Record]:
    reader = LogReader(store)
    try:
        return await collect(reader.query(Filter(text=text)))
    finally:
        await reader.close()
