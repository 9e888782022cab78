"""The sidecar as a process: one winner, clean ends, and nothing lost when it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.link.frames import MAX_FRAME_BYTES
from sidecar.home import Home, SidecarInfo
from sidecar.link.client import ControlClient, LinkClosed, LinkUnavailable
from sidecar.link.launch import ensure_running
from sidecar.record.playing.hooks import RecordingError, read_recording
from sidecar.record.playing.play import MAX_EXPLAINED, play
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
    def test_a_second_one_started_by_hand_is_told_who_serves(self, home: Home) -> None:
        first = start(home)
        info = running(home)
        second = run(home.path, "serve")
        assert second.code == 1 and str(info.pid) in second.err and "durable-stream stop" in second.err
        first.terminate()
        assert first.wait(HANG_SECONDS) == 0

    def test_its_own_log_holds_no_payload(self, home: Home) -> None:
        played = run(home.path, "play", str(RECORDINGS / "parallel_tools.jsonl"))
        assert played.code == 0, played.err
        run(home.path, "stop")
        log = home.log_path.read_text()
        assert "serving on port" in log and "stopped" in log
        assert "CALL:" not in log and "echo" not in log and "/home/dev" not in log
        assert home.log_path.stat().st_mode & 0o077 == 0

    def test_files_are_the_users_alone(self, home: Home) -> None:
        previous = os.umask(0)
        try:
            run_process(home.path, "play", str(RECORDINGS / "chat.jsonl"))
        finally:
            os.umask(previous)
        open_ = [p for p in [home.path, *home.path.rglob("*")] if p.lstat().st_mode & 0o077]
        assert open_ == []
        run(home.path, "stop")

    async def test_a_damaged_log_is_refused_with_file_and_line(self, home: Home, recorded: Home) -> None:
        shutil.copytree(recorded.path, home.path, dirs_exist_ok=True)
        segment = next((home.store_path / "log").iterdir())
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 1
        segment.write_bytes(data)
        refused = run_process(home.path, "serve")
        assert refused.code == 1 and f"{segment}:" in refused.err
        played = run_process(home.path, "play", str(RECORDINGS / "chat.jsonl"))
        assert played.code == 1 and "ended right after it started" in played.err
        reason = refused.err.removeprefix("durable-stream: ").removesuffix(" [log-damaged]\n")
        assert played.err.endswith(f"{reason} [sidecar-unavailable]\n"), "the sidecar's own reason"
        assert segment.read_bytes() == data, "nothing was changed"

    def test_why_it_could_not_start_is_in_its_log_and_in_status(self, home: Home) -> None:
        home.create()
        home.config_path.write_text("[link]\nport = 'many'\n")
        assert run(home.path, "serve", "--idle-exit").code == 1
        assert "could not serve" in home.log_path.read_text() and "link.port" in home.log_path.read_text()
        status = run(home.path, "status")
        assert status.code == 1 and "Something is wrong" in status.out and "link.port" in status.out

    def test_a_token_open_to_others_is_told_by_status(self, home: Home, recorded: Home) -> None:
        shutil.copytree(recorded.path, home.path, dirs_exist_ok=True)
        home.token_path.chmod(0o644)
        status = run(home.path, "status")
        assert status.code == 1 and "accessible to other users" in status.out

    def test_one_that_hangs_is_ended_by_stop(self, home: Home) -> None:
        process = start(home)
        running(home)
        process.send_signal(signal.SIGSTOP)
        stopped = run(home.path, "stop")
        assert stopped.code == 0 and "with SIGKILL" in stopped.out, stopped.out + stopped.err
        assert process.wait(HANG_SECONDS) == -signal.SIGKILL

    def test_serve_in_the_foreground_says_where_it_listens(self, home: Home, tmp_path: Path) -> None:
        with (tmp_path / "printed").open("w+") as printed:
            process = start(home, output=printed)
            info = running(home)
            wait_for(lambda: f"on port {info.port}" in (tmp_path / "printed").read_text(), "it says so")
            process.terminate()
            process.wait(HANG_SECONDS)


class TestControl:
    async def test_status_and_stop(self, home: Home) -> None:
        await ensure_running(home)
        nonce = system_identity().nonce
        async with await ControlClient.connect(home, version="test", nonce=nonce) as client:
            status = await client.request("status")
            assert status["sidecar"]["pid"] == home.running().pid  # type: ignore[union-attr]
            empty = {"files": 0, "bytes": 0}
            assert status["log"] == {"head": -1, "backend": "jsonl", "torn": None, "segments": empty}
            assert status["links"] == []
            json.dumps(status)
            assert (await client.request("stop"))["stopping"] is True
        wait_for(lambda: home.running() is None, "the sidecar stops")


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

    async def test_sidecars_that_take_nothing_are_not_started_for_ever(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def up(*_: object) -> SidecarInfo:
            """A running sidecar, until a test kills it."""
            return SidecarInfo(1, 1, "boot", "", 1, 0)

        async def lost(*_: object, **__: object) -> None:
            raise LinkClosed("lost")

        monkeypatch.setattr("sidecar.record.playing.play.ensure_running", up)
        monkeypatch.setattr("sidecar.record.playing.play.ShimClient.connect", lost)
        with pytest.raises(LinkUnavailable):
            await play(home, RECORDINGS / "chat.jsonl", nonce=NONCE, give_up_seconds=0)

    async def test_sidecars_killed_while_they_start_are_started_again(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        killed = 0

        async def killed_at_first(*arguments: Any) -> SidecarInfo:
            nonlocal killed
            if killed < 25:
                killed += 1
                raise LinkUnavailable("the sidecar ended right after it started (exit code -9)", "read its log")
            return await ensure_running(*arguments)

        monkeypatch.setattr("sidecar.record.playing.play.ensure_running", killed_at_first)
        monkeypatch.setattr("sidecar.record.playing.play._MAX_PAUSE_SECONDS", 0)
        result = await play(home, RECORDINGS / "chat.jsonl", nonce=NONCE)
        assert killed == 25 and result.added == len(await keys(home)) > 0

    async def test_a_log_that_lost_what_nobody_acknowledged_is_counted_from_there(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        heads = iter([20, 3, 8])
        monkeypatch.setattr("sidecar.record.playing.play._head", lambda _: next(heads))
        assert (await play(home, RECORDINGS / "chat.jsonl", nonce=NONCE)).added == 5

    async def test_a_log_that_shrank_meanwhile_is_no_negative_number(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        heads = iter([20, 20, 8])
        monkeypatch.setattr("sidecar.record.playing.play._head", lambda _: next(heads))
        assert (await play(home, RECORDINGS / "chat.jsonl", nonce=NONCE)).added == 0

    async def test_a_log_that_cannot_be_written_is_tried_twice_and_told(self, home: Home) -> None:
        assert (await asyncio.to_thread(run, home.path, "play", str(RECORDINGS / "chat.jsonl"))).code == 0
        await asyncio.to_thread(run, home.path, "stop")
        held = await keys(home)
        limited = f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({8 * 1024}, {8 * 1024}))"
        words = [sys.executable, "-c", f"{limited}; from sidecar.cli import main; main()", "--home", str(home.path)]
        done = subprocess.run(
            [*words, "play", str(RECORDINGS / "task_parallel.jsonl")],
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
            # A limited process would leave cut files of bytecode in the checkout, which break the next process.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done
        assert re.search(
            "ended repeatedly without accepting anything: the log could not be written .*; free", done.stderr
        )
        assert home.log_path.read_text().count("ERROR sidecar: stopped: the log could not be written") == MAX_EXPLAINED
        assert await keys(home) == held

    async def test_a_recording_that_another_process_plays_is_left_to_it(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def up(*_: object) -> None:
            """A sidecar runs."""

        async def replaced(*_: object, **__: object) -> None:
            raise LinkClosed("replaced")

        monkeypatch.setattr("sidecar.record.playing.play.ensure_running", up)
        monkeypatch.setattr("sidecar.record.playing.play.ShimClient.connect", replaced)
        with pytest.raises(LinkUnavailable, match="another process is playing"):
            await play(home, RECORDINGS / "chat.jsonl", nonce=NONCE)

    async def test_a_parent_that_never_appears_ends_in_good_time(self, home: Home, tmp_path: Path) -> None:
        lines = (RECORDINGS / "task_child.jsonl").read_text().splitlines()
        root = json.loads(lines[0])["input"]["event"]["properties"]["sessionID"]
        child_only = [line for line in lines if root not in line or '"session.created"' in line][1:]
        path = tmp_path / "child.jsonl"
        path.write_text("\n".join(child_only) + "\n")
        async with asyncio.timeout(HANG_SECONDS):
            await play(home, path, nonce=NONCE)
        records = [r.event async for r in JsonlReader(home.store_path).read_all()]
        assert records[0].payload["lineage"] == "unknown" and records[0].stream_id == records[0].payload["session"]

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("{", "not valid JSON"),
            ("[]", "must be a JSON object"),
            ('{"t": 1}', "must be a JSON object"),
            ('{"opencode": "0.0.0-next-16350", "shows": "x"}', "must be a JSON object"),
            ('{"id": "evt_1", "type": "session.created", "data": {}}', "must be a JSON object"),
            ('{"hook": "event"}', "must be milliseconds"),
            ('{"hook": "event", "t": "x"}', "must be milliseconds"),
            ('{"hook": "event", "t": -1}', "must be milliseconds"),
            pytest.param(f'{{"hook": "event", "t": 1, "input": "{"é" * MAX_FRAME_BYTES}"}}', "too long", id="long"),
        ],
    )
    async def test_what_is_no_recording_is_refused_and_nothing_is_sent(
        self, home: Home, tmp_path: Path, line: str, said: str
    ) -> None:
        path = tmp_path / "bad.jsonl"
        path.write_text('{"hook": "event", "t": 1, "input": null, "output": null}\n' + line + "\n")
        with pytest.raises(RecordingError, match=said) as raised:
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
