"""``play`` with recordings of OpenCode 2: the sidecar reads them as it reads a service."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from sidecar.home import Home, SidecarInfo
from sidecar.playing.play import play
from sidecar.playing.progress import Progress
from sidecar.playing.recorded_service import read_service_recording
from streams.event import StreamEvent
from streams.identity import system_identity
from streams.log.reader import LogReader
from tests.bridge.opencode.playing import Log
from tests.bridge.opencode.playing2 import RECORDINGS, names, play2, summary
from tests.sidecar.cli.helpers import run_process

NONCE = system_identity().nonce


async def recorded(home: Home) -> list[StreamEvent]:
    reader = LogReader(home.store_path)
    events = [record.event async for record in reader.read_all()]
    await reader.close()
    return events


def told(events: Iterable[StreamEvent]) -> dict[str, list[str]]:
    """Session → what ``summary`` says of its events, in their order."""
    found: dict[str, list[StreamEvent]] = {}
    for event in events:
        found.setdefault(str(event.payload.get("session")), []).append(event)
    player = play2("chat")
    said = {}
    for session, of_session in found.items():
        player.log = Log()
        player.log.append(of_session)
        said[session] = summary(player)
    return said


def told_of(name: str) -> dict[str, list[str]]:
    return told(play2(name).log.events.values())


async def told_by(home: Home, name: str) -> dict[str, list[str]]:
    """What the log says of the sessions of a recording."""
    return {session: lines for session, lines in told(await recorded(home)).items() if session in told_of(name)}


async def test_every_recording_is_read_as_its_service_was(home: Home) -> None:
    for name in names():
        result = await play(home, RECORDINGS / f"{name}.jsonl", nonce=NONCE)
        assert await told_by(home, name) == told_of(name), name
        assert result.kind == "events" and result.added == sum(map(len, told_of(name).values())), name
        assert not list(home.path.glob("recording-*")), "nothing is left of the service"
    before = len(await recorded(home))
    for name in ("permission", "subagents", "subagent", "abort"):
        assert (await play(home, RECORDINGS / f"{name}.jsonl", nonce=NONCE)).added == 0, name
    run_process(home.path, "stop")
    assert (await play(home, RECORDINGS / "tools.jsonl", nonce=NONCE)).added == 0
    assert len(await recorded(home)) == before


async def test_a_sidecar_killed_meanwhile_loses_and_doubles_nothing(home: Home) -> None:
    killed: list[SidecarInfo] = []

    def kill(progress: Progress) -> None:
        info = home.running()
        if len(killed) < 3 and info is not None and info not in killed and progress.acked:
            killed.append(info)
            os.kill(info.pid, signal.SIGKILL)

    await play(home, RECORDINGS / "question.jsonl", nonce=NONCE, on_progress=kill)
    assert len(killed) == 3
    found, wanted = await told_by(home, "question"), told_of("question")
    assert {session: Counter(lines) for session, lines in found.items()} == {
        session: Counter(lines) for session, lines in wanted.items()
    }


@pytest.mark.parametrize("field", ["data", "ev"])
async def test_events_may_be_wrapped_and_repeated_and_logs_may_be_missing(
    home: Home, tmp_path: Path, field: str
) -> None:
    rows = [json.loads(line) for line in (RECORDINGS / "abort.jsonl").read_text().splitlines()]
    events = [row for row in rows if "type" in row]
    other = {"t": 1.5, "comment": ": heartbeat"}
    wrapped = [other, *({"t": 1.5, "src": "global", field: event} for event in [*events, events[3]])]
    path = tmp_path / "wrapped.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in wrapped))
    result = await play(home, path, nonce=NONCE)
    assert await told_by(home, "abort") == told_of("abort")
    assert (result.items, result.skipped) == (len(events), 1)


def test_what_only_the_durable_log_has_is_played_too() -> None:
    whole = [json.loads(line) for line in (RECORDINGS / "chat.jsonl").read_text().splitlines()]
    logs_only = "".join(f"{json.dumps(row)}\n" for row in whole if "type" not in row)
    recording = read_service_recording(logs_only.encode())
    assert recording is not None
    (log,) = recording.logs.values()
    assert [event.seq for _, event in recording.rows] == [event.seq for _, event in log]


@pytest.mark.parametrize(
    "content", ["", "{}", "no JSON", "[" * 100_000, '{"t": 1, "hook": "event", "input": {}, "output": {}}']
)
def test_other_files_are_no_recordings_of_a_service(content: str) -> None:
    assert read_service_recording(content.encode()) is None
