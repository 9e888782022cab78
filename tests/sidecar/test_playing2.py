"""``play`` with recordings of OpenCode 2: the sidecar records what its translator makes of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from sidecar.home import Home, SidecarInfo
from sidecar.record.playing.play import play
from sidecar.record.playing.progress import Progress
from streams.event import StreamEvent
from streams.identity import system_identity
from streams.log.reader import LogReader
from tests.bridge.opencode.playing import Log
from tests.bridge.opencode.playing2 import RECORDINGS, Player2, Recording, names, summary
from tests.sidecar.cli.helpers import run

NONCE = system_identity().nonce


def whole(name: str) -> Player2:
    """A translator that was fed a recording as one process's, as ``play`` does."""
    player = Player2()
    origin = replace(Recording(name).items[0][0].origin, service="")
    player.feed([(token._replace(origin=origin), item) for token, item in Recording(name).items])
    player.settle()
    return player


async def recorded(home: Home) -> list[StreamEvent]:
    reader = LogReader(home.store_path)
    events = [record.event async for record in reader.read_all()]
    await reader.close()
    return events


def told(events: Iterable[StreamEvent]) -> dict[str, list[str]]:
    """Session → what ``summary`` says of its events. Their order is not compared, because a session's first event waits
    until the session can be placed, and others do not."""
    found: dict[str, list[StreamEvent]] = {}
    for event in events:
        found.setdefault(str(event.payload.get("session")), []).append(event)
    player = Player2()
    said = {}
    for session, of_session in found.items():
        player.log = Log()
        player.log.append(of_session)
        said[session] = sorted(summary(player))
    return said


def told_of(name: str) -> dict[str, list[str]]:
    return told(whole(name).log.events.values())


async def told_by(home: Home, name: str) -> dict[str, list[str]]:
    """What the log says of the sessions of a recording."""
    return {session: lines for session, lines in told(await recorded(home)).items() if session in told_of(name)}


async def test_every_recording_is_recorded_as_it_happened(home: Home) -> None:
    for name in names():
        result = await play(home, RECORDINGS / f"{name}.jsonl", nonce=NONCE)
        assert await told_by(home, name) == told_of(name), name
        assert result.kind == "events" and result.added == sum(map(len, told_of(name).values())), name
    before = len(await recorded(home))
    run(home.path, "stop")
    for name in names():
        assert (await play(home, RECORDINGS / f"{name}.jsonl", nonce=NONCE)).added == 0, name
    assert len(await recorded(home)) == before


async def test_a_sidecar_killed_meanwhile_loses_and_doubles_nothing(home: Home) -> None:
    killed: list[SidecarInfo] = []

    def kill(progress: Progress) -> None:
        info = home.running()
        if len(killed) < 3 and info is not None and info not in killed and progress.acked:
            killed.append(info)
            os.kill(info.pid, signal.SIGKILL)

    for name in ("tools", "subagents", "background"):
        await play(home, RECORDINGS / f"{name}.jsonl", nonce=NONCE, on_progress=kill)
        assert await told_by(home, name) == told_of(name)
    assert len(killed) == 3


async def test_the_services_own_event_stream_can_be_played(home: Home, tmp_path: Path) -> None:
    rows = [{"opencode": "2.0.15"}, *Recording("chat").rows, {"session": {}}, {"messages": [], "of": "ses_1"}]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    result = await play(home, path, nonce=NONCE)
    assert (result.kind, result.items) == ("events", len(rows) - 3)
    assert [event.type for event in await recorded(home)].count("turn.ended") == 2
