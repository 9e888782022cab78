"""The sidecar as a process: one winner, clean ends, and nothing lost when it is killed."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from bridge.opencode.link.frames import MAX_FRAME_BYTES
from sidecar.failure import Failure
from sidecar.home import Home, SidecarInfo
from sidecar.record.playing.hooks import read_recording
from sidecar.record.playing.play import play
from sidecar.record.playing.progress import Progress
from streams.identity import system_identity
from streams.stores.jsonl.reader import JsonlReader
from tests.sidecar.cli.helpers import run, run_process
from tests.sidecar.support import HANG_SECONDS, RECORDINGS, running, start, wait_for

NONCE = system_identity().nonce


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with a recording in its log and no running sidecar. Copy it to change it."""
    home = Home(tmp_path_factory.mktemp("recorded") / "home")
    assert run(home.path, "play", str(RECORDINGS / "chat.jsonl")).code == 0
    assert run(home.path, "stop").code == 0
    return home


async def keys(home: Home) -> list[str]:
    return [record.event.idempotency_key async for record in JsonlReader(home.store_path).read_all()]


class TestLife:
    def test_a_damaged_log_is_refused_with_file_and_line(self, home: Home, recorded: Home) -> None:
        shutil.copytree(recorded.path, home.path, dirs_exist_ok=True)
        segment = next((home.store_path / "log").iterdir())
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 1
        segment.write_bytes(data)
        refused = run(home.path, "serve")
        assert refused.code == 1 and f"{segment}:" in refused.err
        played = run(home.path, "play", str(RECORDINGS / "chat.jsonl"))
        assert played.code == 1 and "ended right after it started" in played.err
        reason = refused.err.removeprefix("durable-stream: ").removesuffix(" [log-damaged]\n")
        assert played.err.endswith(f"{reason} [sidecar-unavailable]\n"), "the sidecar's own reason"
        assert segment.read_bytes() == data, "nothing was changed"

    def test_serve_in_the_foreground_says_where_it_listens(self, home: Home, tmp_path: Path) -> None:
        with (tmp_path / "printed").open("w+") as printed:
            process = start(home, output=printed)
            info = running(home)
            wait_for(lambda: f"on port {info.port}" in (tmp_path / "printed").read_text(), "it says so")
            process.terminate()
            process.wait(HANG_SECONDS)


class TestPlay:
    async def test_a_recording_played_twice_adds_nothing(self, home: Home) -> None:
        path = RECORDINGS / "task_parallel.jsonl"
        result = await play(home, path, nonce=NONCE)
        once = await keys(home)
        assert result.items == len(read_recording(path).items) and len(once) == len(set(once)) > 20
        await play(home, path, nonce=NONCE)
        assert await keys(home) == once
        await asyncio.to_thread(run, home.path, "stop")
        await play(home, path, nonce=NONCE)
        assert await keys(home) == once, "also in another life of the sidecar"

    async def test_killed_again_and_again_it_records_everything_once(self, home: Home, tmp_path: Path) -> None:
        path = RECORDINGS / "permission_child.jsonl"
        undisturbed = Home(tmp_path / "undisturbed")
        await play(undisturbed, path, nonce=NONCE)
        await asyncio.to_thread(run, undisturbed.path, "stop")
        killed: list[SidecarInfo] = []

        acked = 0

        def kill(progress: Progress) -> None:
            nonlocal acked
            info = home.running()
            # Each sidecar that acknowledged something, except the last ones, so that the test ends.
            if len(killed) < 5 and info is not None and info not in killed and progress.acked > acked:
                acked = progress.acked
                killed.append(info)
                os.kill(info.pid, signal.SIGKILL)

        async with asyncio.timeout(120):
            # So slowly that what is left is more than one sidecar after the next acknowledges at once.
            await play(home, path, nonce=NONCE, on_progress=kill, speed=0.4)
        assert len(killed) >= 3
        assert await keys(home) == await keys(undisturbed)

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("{", "not valid JSON"),
            ('{"t": 1}', "must be a JSON object"),
            ('{"id": "evt_1", "type": "session.created", "data": {}}', "must be a JSON object"),
            ('{"hook": "event", "t": -1}', "must be milliseconds"),
            pytest.param(f'{{"hook": "event", "t": 1, "input": "{"é" * MAX_FRAME_BYTES}"}}', "too long", id="long"),
        ],
    )
    async def test_what_is_no_recording_is_refused_and_nothing_is_sent(
        self, home: Home, tmp_path: Path, line: str, said: str
    ) -> None:
        path = tmp_path / "bad.jsonl"
        path.write_text('{"hook": "event", "t": 1, "input": null, "output": null}\n' + line + "\n")
        with pytest.raises(Failure, match=said) as raised:
            await play(home, path, nonce=NONCE)
        assert f"{path}:2" in str(raised.value)
        assert home.running() is None
        shown = await asyncio.to_thread(run, home.path, "play", str(path))
        assert shown.code == 1 and said in shown.err and shown.err.endswith("[bad-recording]\n")


def test_the_demo_holds_and_leaves_nothing_behind(tmp_path: Path) -> None:
    shown = run_process(tmp_path / "unused", "demo")
    assert shown.code == 0, shown.out + shown.err
    assert "kill -9" in shown.out and "Nothing is missing, and nothing is duplicated." in shown.out
    assert not (tmp_path / "unused").exists()
