"""The reader of an OpenCode 2 service against a scripted one: holes, deletions, restarts, broken answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sidecar.opencode2.http import ServiceClient, ServiceError, ServiceGone
from sidecar.opencode2.reader import POLLED
from sidecar.opencode2.registration import Registration
from tests.bridge.opencode.playing2 import Recording
from tests.sidecar.opencode2_fakes import Bench, FakeService, lines_of, session_of


async def test_an_absent_time_is_back_filled() -> None:
    for name in ("chat", "tools", "busy", "crash", "errors", "retry", "shell"):
        bench = Bench(FakeService(Recording(name)))
        await bench.run(bench.reader())
        assert sorted(bench.lines()) == sorted(lines_of(name)), name
        assert bench.gaps() == [], name


async def test_live_events_are_taken_and_holes_are_read() -> None:
    recording = Recording("tools")
    service = FakeService(recording)
    bench = Bench(service)
    session, log = session_of(recording), recording.logs[session_of(recording)]
    service.logs[session] = []
    reader = bench.reader()
    rows = [row for row in recording.live if "durable" in row]
    service.logs[session] = log
    # Only every third event is announced; the log has the others.
    await bench.run(reader, *rows[::3])
    assert bench.lines() == lines_of("tools")


async def test_a_child_comes_below_its_call_whichever_is_read_first() -> None:
    recording = Recording("subagents")
    root, *children = recording.logs
    for first in (root, *children):
        service = FakeService(recording)
        # The API lists this one first, and a sidecar that was away reads it first.
        for session, info in service.sessions.items():
            info["time"] = {**info["time"], "created": 1 if session == first else 2}
        bench = Bench(service)
        await bench.run(bench.reader())
        assert sorted(bench.lines()) == sorted(lines_of("subagents"))
        calls = [e.payload["call"] for e in bench.log.events.values() if e.type == "agent.spawned"]
        assert sorted(calls) == ["call_1_0", "call_1_1"]
        steps = [e for e in bench.log.events.values() if e.payload.get("tool") == "subagent"]
        ended = {e.id for e in bench.log.events.values() if e.type == "turn.ended" and e.payload["session"] in children}
        assert {step.causation_id for step in steps} == ended


async def test_a_sidecar_killed_anywhere_goes_on_where_the_log_ends() -> None:
    recording = Recording("busy")
    session = session_of(recording)
    whole = [row for row in recording.logs[session] if "durable" in row]
    for cut in range(0, len(whole), 4):
        service = FakeService(recording)
        bench = Bench(service)
        service.logs[session], service.active = whole[:cut], [session]
        await bench.run(bench.reader())
        bench.restart()
        service.logs[session] = whole
        await bench.run(bench.reader())
        assert [line for line in bench.lines() if "resumed" not in line] == lines_of("busy"), cut
        assert bench.gaps() == [], cut


async def test_nothing_waits_between_an_event_and_its_write() -> None:
    # Otherwise a snapshot of the state could be ahead of the log.
    recording = Recording("busy")
    bench = Bench(FakeService(recording))
    reader = bench.reader()
    state, log = bench.translator.state, bench.log
    ahead = []

    async def watch() -> None:
        while True:
            recorded = max((e.metadata.get("host_seq", -1) for e in log.events.values()), default=-1)
            if bench.translator._out.events and recorded < max(s.host_seq for s in state.sessions.values()):
                ahead.append(recorded)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await bench.run(reader)
    watching.cancel()
    assert ahead == []
    assert bench.writes


async def test_old_sessions_are_history_until_they_go_on() -> None:
    recording = Recording("chat")
    bench = Bench(FakeService(recording))
    late = max(row["created"] for row in recording.live if "created" in row) + 60_000
    await bench.run(bench.reader(since_ms=late))
    assert bench.log.events == {}
    newest = {"id": "evt_n", "created": late + 1, "type": "session.renamed"}
    session = session_of(recording)
    row = {**newest, "durable": {"aggregateID": session, "seq": 22}, "data": {"sessionID": session, "title": "new"}}
    bench.service.logs[session] = [*bench.service.logs[session], row]
    await bench.run(bench.reader(since_ms=late), row)
    assert bench.lines() == [*lines_of("chat"), "0 opencode.session.renamed opencode"]


async def test_history_is_imported_once_and_marked() -> None:
    recording = Recording("busy")
    bench = Bench(FakeService(recording))
    late = max(row["created"] for row in recording.live if "created" in row) + 60_000
    found: list[int] = []
    for _ in range(2):
        reader = bench.reader(since_ms=late)
        running = asyncio.create_task(reader.run())
        await reader.caught_up.wait()
        assert found or bench.log.events == {}
        found.append(await reader.import_history())
        running.cancel()
    assert found == [1, 0]
    assert bench.lines() == lines_of("busy")
    assert all(event.metadata["history"] is True for event in bench.log.events.values())


async def test_a_session_without_a_log_is_not_one_of_this_service() -> None:
    bench = Bench(FakeService(Recording("chat")))
    for session in bench.service.logs:
        bench.service.logs[session] = []
    await bench.run(bench.reader())
    assert bench.log.events == {}


async def test_an_excluded_directory_is_not_recorded() -> None:
    recording = Recording("subagent")
    bench = Bench(FakeService(recording))
    reader = bench.reader(excludes=lambda directory: directory == "/work/project")
    await bench.run(reader, *[row for row in recording.live if "durable" in row])
    assert bench.log.events == {}
    assert reader.excluded > 0


async def test_a_deletion_that_took_unread_events_with_it_is_a_gap() -> None:
    recording = Recording("chat")
    session = session_of(recording)
    bench = Bench(FakeService(recording))
    deleted = {"sessionID": session}
    row = {"id": "evt_d", "created": 9, "type": "session.deleted", "data": deleted}
    reader = bench.reader()
    running = asyncio.create_task(reader.run())
    await reader.caught_up.wait()
    del bench.service.sessions[session], bench.service.logs[session]
    bench.service.live.put_nowait({**row, "durable": {"aggregateID": session, "seq": 30}})
    while not any(event.type == "lifecycle.session.ended" for event in bench.log.events.values()):
        await asyncio.sleep(0)
    running.cancel()
    assert bench.gaps() == [(session, 22, 29, "session_deleted")]


async def test_numbers_that_a_log_lacks_are_a_gap_once() -> None:
    recording = Recording("tools")
    session = session_of(recording)
    bench = Bench(FakeService(recording))
    whole = bench.service.logs[session]
    lost = {row["durable"]["seq"] for row in whole if "durable" in row and row["type"].startswith("session.text")}
    bench.service.logs[session] = [row for row in whole if row.get("durable", {}).get("seq") not in lost]
    for id_ in ("service-1", "service-2", "service-3"):
        reader = bench.reader(id_)
        await bench.run(reader)
        bench.restart()
        assert not reader.is_logless
    gaps = bench.gaps()
    assert {n for _, first, last, _ in gaps for n in range(first, last + 1)} == lost
    assert {(of, reason) for of, _, _, reason in gaps} == {(session, "hole_in_session_log")}
    assert len(gaps) == len(set(gaps))
    recorded = [e for e in bench.log.events.values() if e.type == "execution.step"]
    assert len(recorded) == sum("execution.step" in line for line in lines_of("tools"))


async def test_an_event_that_is_committed_while_its_log_is_read_is_no_gap() -> None:
    """The log's rows may be older than the number at their end."""
    recording = Recording("chat")
    session = session_of(recording)
    bench = Bench(FakeService(recording))
    whole = bench.service.logs[session]
    await bench.run(bench.reader(began_ms=0))
    row = {"id": "evt_n", "created": 9, "type": "session.renamed", "data": {"sessionID": session, "title": "new"}}
    last = {**row, "durable": {"aggregateID": session, "seq": 22}}
    bench.service.logs[session] = [*whole[:-1], {"type": "log.synced", "aggregateID": session, "seq": 22}]
    reader = bench.reader("service-2", began_ms=0)
    running = asyncio.create_task(reader.run())
    await reader.caught_up.wait()
    bench.service.logs[session].insert(-1, last)
    async with asyncio.timeout(10):
        while bench.lines()[-1] != "0 opencode.session.renamed opencode":
            await asyncio.sleep(0)
    running.cancel()
    assert bench.gaps() == []
    assert not reader.is_logless


async def test_a_live_event_after_numbers_that_its_log_lacks_is_recorded_after_a_gap() -> None:
    recording = Recording("chat")
    session = session_of(recording)
    bench = Bench(FakeService(recording))
    row = {"id": "evt_n", "created": 9, "type": "session.renamed", "data": {"sessionID": session, "title": "new"}}
    await bench.run(bench.reader(), {**row, "durable": {"aggregateID": session, "seq": 25}})
    assert bench.gaps() == [(session, 22, 24, "hole_in_session_log")]
    assert bench.lines()[-1] == "0 opencode.session.renamed opencode"


async def test_a_deletion_while_nobody_listened_ends_the_session() -> None:
    recording = Recording("chat")
    bench = Bench(FakeService(recording))
    await bench.run(bench.reader())
    bench.service.sessions.clear()
    bench.service.logs.clear()
    await bench.run(bench.reader("service-2"))
    await bench.run(bench.reader("service-3"))
    ended = [event for event in bench.log.events.values() if event.type == "lifecycle.session.ended"]
    assert [event.payload["reason"] for event in ended] == ["gone"]


async def test_another_service_does_not_end_the_sessions_of_this_one() -> None:
    recording = Recording("chat")
    bench = Bench(FakeService(recording))
    await bench.run(bench.reader())
    bench.service.sessions.clear()
    await bench.run(bench.reader("service-9", "elsewhere"))
    assert all(event.type != "lifecycle.session.ended" for event in bench.log.events.values())


async def test_open_asks_are_listed_and_a_turn_that_nobody_runs_ends() -> None:
    recording = Recording("permission")
    session = session_of(recording)
    service = FakeService(recording)
    asked = next(row["data"] for row in recording.live if row["type"] == "permission.asked")
    service.logs[session] = [row for row in recording.logs[session] if row.get("durable", {"seq": 99})["seq"] < 9]
    service.asks[f"{session}/permission"] = [asked]
    service.active = [session]
    bench = Bench(service)
    await bench.run(bench.reader())
    found = [event.payload["request"] for event in bench.log.events.values() if event.type == "workflow.checkpoint"]
    assert found == [asked["id"]]
    assert all(event.type != "turn.ended" for event in bench.log.events.values())
    service.active = []
    await bench.run(bench.reader("service-2"))
    ended = [event.payload["outcome"] for event in bench.log.events.values() if event.type == "turn.ended"]
    assert ended == ["interrupted"]


@pytest.mark.parametrize(("status", "is_logged"), [(404, False), (500, True)])
async def test_asks_that_cannot_be_listed_are_logged_and_the_rest_is_recorded(
    status: int, is_logged: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = Recording("permission")
    service = FakeService(recording)
    session = session_of(recording)
    service.logs[session] = [row for row in recording.logs[session] if row.get("durable", {"seq": 99})["seq"] < 9]
    service.active = [session]
    get = service.get

    async def refusing(path: str) -> Any:
        if path.endswith(("/permission", "/form", "/question")):
            raise ServiceError(status)
        return await get(path)

    monkeypatch.setattr(service, "get", refusing)
    bench = Bench(service)
    await bench.run(bench.reader())
    assert any(event.type == "turn.started" for event in bench.log.events.values())
    assert [str(status) in record.message for record in caplog.records] == [True] * 3 * is_logged


async def test_a_turn_of_another_server_on_the_database_is_polled_and_not_ended() -> None:
    recording = Recording("busy")
    session = session_of(recording)
    whole = [row for row in recording.logs[session] if "durable" in row]
    service = FakeService(recording)
    service.logs[session] = whole[:8]
    bench = Bench(service)
    reader = bench.reader(began_ms=whole[0]["created"], poll_seconds=0.001)
    running = asyncio.create_task(reader.run())
    await reader.caught_up.wait()
    service.logs[session] = whole  # nothing announces it
    while bench.lines() != lines_of("busy"):
        await asyncio.sleep(0.001)
    running.cancel()


async def test_an_old_session_that_another_server_runs_is_polled_in_turn() -> None:
    recording = Recording("busy")
    session = session_of(recording)
    bench = Bench(FakeService(recording))
    service, whole = bench.service, bench.service.logs[session_of(recording)]
    service.logs[session] = whole[:8]
    for n in range(4 * POLLED):
        service.sessions[f"ses_{n}"] = {"id": f"ses_{n}", "time": {"created": 2**51 + n, "updated": 2**51}}
        service.logs[f"ses_{n}"] = []
    reader = bench.reader(began_ms=0, poll_seconds=0.001)
    running = asyncio.create_task(reader.run())
    await reader.caught_up.wait()
    service.logs[session] = whole  # nothing announces it
    service.requests.clear()
    async with asyncio.timeout(10):
        while bench.lines() != lines_of("busy"):
            await asyncio.sleep(0.001)
    running.cancel()
    looks = [path for path in service.requests if path == f"/api/session?limit={POLLED}"]
    assert len(looks) <= 5


@pytest.mark.parametrize("name", ["tools", "busy", "crash"])
async def test_two_servers_of_one_database_are_recorded_once(name: str) -> None:
    recording = Recording(name)
    bench = Bench(FakeService(recording))
    logs, bench.service.logs = bench.service.logs, {session: [] for session in bench.service.logs}
    readers = [bench.reader(f"service-{n}", f"place-{n}", began_ms=0, poll_seconds=0.001) for n in (1, 2)]
    running = [asyncio.create_task(reader.run()) for reader in readers]
    bench.service.logs = {session: [] for session in logs}
    for row in recording.live:
        of = row["data"].get("sessionID")
        if "durable" in row and of in logs:
            bench.service.logs[of] = [r for r in logs[of] if "durable" in r and r["id"] <= row["id"]]
        bench.service.live.put_nowait(row)  # one of the two gets it; the other one polls
        await asyncio.sleep(0.001)
    bench.service.logs = logs
    wanted = [line for line in lines_of(name) if "lifecycle" not in line]
    async with asyncio.timeout(10):
        while [line for line in bench.lines() if "lifecycle" not in line] != wanted:
            await asyncio.sleep(0.001)
    for task in running:
        task.cancel()


async def test_more_events_than_can_wait_are_read_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.opencode2.reader.MAX_WAITING", 3)
    recording = Recording("tools")
    bench = Bench(FakeService(recording))
    session = session_of(recording)
    log = bench.service.logs.pop(session)
    info = bench.service.sessions.pop(session)
    reader = bench.reader()
    running = asyncio.create_task(reader.run())
    await reader.caught_up.wait()
    bench.service.logs[session], bench.service.sessions[session] = log, info
    for row in recording.live:
        bench.service.live.put_nowait(row)
    for _ in range(500):
        await asyncio.sleep(0)
    running.cancel()
    assert bench.lines() == lines_of("tools")


class RawService:
    """A socket that answers every request with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self.answer, self.seen = answer, b""

    async def __aenter__(self) -> ServiceClient:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        return ServiceClient(Registration("i", "2", "127.0.0.1", port, 1, "pässword"))

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen = await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        writer.close()


def chunked(*pieces: bytes) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


async def test_answers_are_read_in_every_framing() -> None:
    body = json.dumps({"data": [1, "ü"]}).encode()
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    for answer in (plain, b"HTTP/1.1 200 OK\r\n\r\n" + body, chunked(body[:3], body[3:])):
        service = RawService(answer)
        async with service as client:
            assert await client.get("/x") == {"data": [1, "ü"]}
        assert service.seen.startswith(b"GET /x HTTP/1.1\r\n")
        assert b"Authorization: Basic b3BlbmNvZGU6cMOkc3N3b3Jk\r\n" in service.seen


async def test_lines_are_joined_across_pieces() -> None:
    answer = chunked(b': hi\n\ndata: {"a"', b": 1}\n\nda", b'ta: {"b": 2}\n\ndata: not json\n\n')
    async with RawService(answer) as client:
        assert [row async for row in client.stream("/x")] == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\nnot json",
    ],
)
async def test_half_an_answer_is_none(answer: bytes) -> None:
    async with RawService(answer) as client:
        with pytest.raises(ServiceGone):
            await client.get("/x")


async def test_a_status_is_told_and_no_listener_is_gone() -> None:
    async with RawService(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n") as client:
        with pytest.raises(ServiceError) as caught:
            await client.get("/x")
        assert caught.value.status == 401
    with pytest.raises(ServiceGone):
        await client.get("/x")
