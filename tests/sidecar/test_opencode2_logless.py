"""The reader of an OpenCode 2 service that keeps no log of its sessions: what it announces is all there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bridge.opencode.capture.state import RENAMED
from sidecar.opencode2.reader import Reader
from streams.event import StreamEvent
from tests.bridge.opencode.playing2 import Recording, names, play2
from tests.sidecar.opencode2_fakes import Bench, LoglessService, Row, lines_of, session_of

Numbers = set[tuple[str, int]]


class LoglessBench(Bench):
    service: LoglessService

    def __init__(self, name: str) -> None:
        super().__init__(LoglessService(Recording(name)))

    @asynccontextmanager
    async def reading(self, id_: str = "service-1", **options: Any) -> AsyncIterator[Reader]:
        reader = self.reader(id_, began_ms=0, **options)
        running = asyncio.create_task(reader.run())
        await reader.caught_up.wait()
        await rest()
        try:
            yield reader
            await rest()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert not self.translator.drain().events

    async def happen(self, rows: list[Row], *, heard: bool = True) -> None:
        for row in rows:
            self.service.happen(row, heard=heard)
            await rest()

    def lost(self) -> Numbers:
        return {(session, number) for session, first, last, _ in self.gaps() for number in range(first, last + 1)}

    def recorded(self) -> Numbers:
        return numbers(event for event in self.log.events.values() if event.type != "capture.gap")


def numbers(events: Any) -> Numbers:
    found: list[StreamEvent] = list(events)
    return {(e.payload["session"], e.metadata["host_seq"]) for e in found if e.metadata.get("host_seq")}


async def rest() -> None:
    for _ in range(60):
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", names())
async def test_everything_that_is_announced_is_recorded_without_a_gap(name: str) -> None:
    bench = LoglessBench(name)
    async with bench.reading():
        await bench.happen(bench.service.rows)
    assert bench.lines() == lines_of(name)
    assert bench.gaps() == []


@pytest.mark.parametrize("name", ["tools", "busy", "retry", "shell", "subagents"])
@pytest.mark.parametrize("is_killed", [True, False])
async def test_what_happened_in_an_absence_is_recorded_or_in_a_gap(name: str, is_killed: bool) -> None:
    events = play2(name).log.events.values()
    rows, wanted = LoglessBench(name).service.rows, numbers(events)
    wanted -= numbers(event for event in events if event.type == RENAMED)  # a title that is not known may be any
    # Where a turn begins and ends is made from several events, and some of them are lost.
    turns = numbers(event for event in events if event.type in ("turn.started", "turn.ended"))
    for left in range(1, len(rows), 5):
        for back in (left + 1, left + 9, len(rows)):
            bench = LoglessBench(name)
            async with bench.reading():
                await bench.happen(rows[:left])
            await bench.happen(rows[left:back], heard=False)
            if is_killed:
                bench.restart()
            async with bench.reading("service-2"):
                await bench.happen(rows[back:])
            missed = {(row["durable"]["aggregateID"], row["durable"]["seq"]) for row in rows[left:back]}
            assert wanted - (turns - missed) <= bench.recorded() | bench.lost(), (left, back)
            assert not bench.recorded() & bench.lost(), (left, back)
            assert {reason for *_, reason in bench.gaps()} <= {"no_session_log"}


async def test_events_that_wait_while_the_sessions_are_listed_are_no_gap() -> None:
    bench = LoglessBench("tools")
    for row in bench.service.rows:
        bench.service.happen(row)
    async with bench.reading() as reader:
        await rest()
        while reader._live.qsize():
            await rest()
    assert bench.lines() == lines_of("tools")
    assert bench.gaps() == []


async def test_numbers_that_stand_for_no_message_are_no_gap_after_a_restart() -> None:
    bench = LoglessBench("chat")
    session, last = session_of(Recording("chat")), bench.service.rows[-1]
    async with bench.reading():
        await bench.happen(bench.service.rows)
    viewed = {**last, "id": "evt_v", "type": "session.viewed", "data": {"sessionID": session}}
    await bench.happen([{**viewed, "durable": {"aggregateID": session, "seq": 30}}], heard=False)
    bench.restart()
    async with bench.reading("service-2") as reader:
        assert reader.is_logless
        await bench.happen([{**viewed, "id": "evt_w", "durable": {"aggregateID": session, "seq": 32}}])
    assert bench.lines() == lines_of("chat")


async def test_numbers_that_stand_for_no_message_are_no_gap_while_other_events_wait() -> None:
    bench = LoglessBench("chat")
    session, last = session_of(Recording("chat")), bench.service.rows[-1]["created"]
    async with bench.reading():
        await bench.happen(bench.service.rows)
    bench.restart()

    def row(seq: int, type_: str, **data: Any) -> Row:
        durable, data = {"aggregateID": session, "seq": seq}, {"sessionID": session, **data}
        return {"id": f"evt_{seq}", "created": last + seq, "type": f"session.{type_}", "durable": durable, "data": data}

    bench.service.happen(row(30, "viewed"), heard=False)
    given = {"type": "user", "data": {"text": "more"}, "delivery": "steer"}
    bench.service.happen(row(31, "input.admitted", inputID="msg_x", input=given))
    bench.service.happen(row(32, "input.promoted", inputID="msg_x"))
    async with bench.reading("service-2"):
        await rest()
    assert bench.gaps() == []
    assert "human.input" in bench.lines()[-1]


async def test_a_loss_after_a_loss_is_a_gap_of_its_own() -> None:
    bench = LoglessBench("chat")
    rows = bench.service.rows
    async with bench.reading():
        await bench.happen(rows[:6])
    for begin, end in ((6, 9), (9, 12)):
        await bench.happen(rows[begin:end], heard=False)
        bench.restart()
        async with bench.reading("service-2"):
            await rest()
    first, second = bench.gaps()
    assert second[1] == first[2] + 1
    assert second[2] == rows[11]["durable"]["seq"]


async def test_a_deletion_after_numbers_that_are_never_announced_is_no_gap() -> None:
    bench = LoglessBench("chat")
    session = session_of(Recording("chat"))
    async with bench.reading():
        await bench.happen(bench.service.rows)
        deleted = {"id": "evt_d", "created": 9, "type": "session.deleted", "data": {"sessionID": session}}
        await bench.happen([{**deleted, "durable": {"aggregateID": session, "seq": 30}}])
    assert [line.split()[1] for line in bench.lines()][-1] == "lifecycle.session.ended"
    assert bench.gaps() == []


async def test_a_session_that_is_deleted_before_its_loss_is_judged_is_a_gap() -> None:
    bench = LoglessBench("chat")
    session = session_of(Recording("chat"))
    async with bench.reading():
        await bench.happen(bench.service.rows[:9])
    await bench.happen(bench.service.rows[9:], heard=False)
    bench.restart()
    reader = bench.reader("service-2", began_ms=0)
    running = asyncio.create_task(reader.run())
    await reader.caught_up.wait()
    del bench.service.sessions[session], bench.service.logs[session]
    await rest()
    assert not running.done()
    running.cancel()
    assert [(of, reason) for of, _, _, reason in bench.gaps()] == [(session, "session_deleted")]


async def test_an_event_of_a_session_that_was_pruned_does_not_end_the_reader() -> None:
    bench = LoglessBench("chat")
    session = session_of(Recording("chat"))
    async with bench.reading():
        await bench.happen(bench.service.rows)
        bench.translator.state.drop((), [session])
        deleted = {"id": "evt_d", "created": 9, "type": "session.deleted", "data": {"sessionID": session}}
        await bench.happen([{**deleted, "durable": {"aggregateID": session, "seq": 30}}])
        fresh = bench.service.rows[0]
        other = {"aggregateID": "ses_other", "seq": 0}
        data = {"sessionID": "ses_other", "info": {"id": "ses_other", "directory": "/d"}}
        await bench.happen([{**fresh, "id": "evt_o", "durable": other, "data": data}])
    assert bench.lines()[-1] == "1 lifecycle.session.created opencode"


async def test_dropped_live_events_are_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.opencode2.reader.MAX_WAITING", 5)
    bench = LoglessBench("tools")
    rows = bench.service.rows
    async with bench.reading():
        await bench.happen(rows[:20])
        for place in range(20, 60, 8):
            for row in rows[place : place + 8]:
                bench.service.happen(row)
            for _ in range(4):
                await asyncio.sleep(0)  # they come faster than they are recorded
        await rest()
        await bench.happen(rows[60:])
    wanted = numbers(play2("tools").log.events.values())
    assert wanted <= bench.recorded() | bench.lost()
    assert bench.lost()


async def test_old_sessions_without_a_log_are_not_imported() -> None:
    bench = LoglessBench("chat")
    await bench.happen(bench.service.rows, heard=False)
    late = max(row["created"] for row in bench.service.rows) + 60_000
    reader = bench.reader(since_ms=late)
    running = asyncio.create_task(reader.run())
    await reader.caught_up.wait()
    assert await reader.import_history() == 0
    running.cancel()
    assert bench.log.events == {}
