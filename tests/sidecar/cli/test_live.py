"""Commands beside a growing log and a running sidecar: ``log --follow``, ``status``, ``stop``, ``play``."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

from sidecar.home import Home
from tests.sidecar.cli.helpers import LIMIT_SECONDS, RECORDINGS, append, run
from tests.sidecar.cli.processes import Process
from tests.streams.builders import events


class TestFollow:
    def test_new_records_appear_until_ctrl_c(self, tmp_path: Path, started: list[Process]) -> None:
        asyncio.run(append(tmp_path / "store", [events(2, prefix="old")]))
        started.append(follower := Process(tmp_path, "log", "ses_a", "--follow", "--json"))
        assert [follower.record()["offset"] for _ in range(2)] == [0, 1]
        # The writer comes, goes and comes back, as a sidecar that is killed and started again.
        for life in range(2):
            batches = [events(1, prefix=f"new{life}"), events(1, prefix=f"other{life}", stream="ses_b")]
            asyncio.run(append(tmp_path / "store", batches))
            assert follower.record()["offset"] == 2 + life
        assert follower.interrupt() == 130
        assert follower.err.empty()

    def test_it_waits_for_a_log_that_does_not_exist_yet(self, tmp_path: Path, started: list[Process]) -> None:
        started.append(follower := Process(tmp_path / "home", "log", "ses_a", "--follow", "--json"))
        assert "Waiting for the stream" in follower.err.get(timeout=LIMIT_SECONDS)
        asyncio.run(append(tmp_path / "home" / "store", [events(1, prefix="f")]))
        assert follower.record()["event"]["stream_id"] == "ses_a"


class TestSidecar:
    def test_status_answers_beside_silent_connections_and_notes_them(self, home: Home) -> None:
        home.config_path.write_text("[link]\nmax_connections = 4\nhandshake_seconds = 60\n")
        run(home.path, "play", str(RECORDINGS / "chat.jsonl"))
        info = home.running()
        assert info is not None
        with ExitStack() as stack:
            for _ in range(10):
                stack.enter_context(socket.create_connection(("127.0.0.1", info.port)))
            told = run(home.path, "status", "--json")
        (status,) = told.objects()
        assert told.code == 0 and status["problems"] == []
        assert any("connections" in note for note in status["notes"])

    def test_play_starts_one_status_shows_it_and_stop_ends_it(self, home: Home) -> None:
        file = str(RECORDINGS / "task_child.jsonl")
        played = run(home.path, "play", file, "--json")
        assert played.code == 0, played.err
        assert played.objects()[0]["items"] > 20
        records = run(home.path, "query", "--json").objects()
        assert [r["event"]["type"] for r in records].count("agent.spawned") == 1
        assert run(home.path, "play", file).code == 0
        assert run(home.path, "query", "--json").objects() == records, "played twice it adds nothing"

        told = run(home.path, "status", "--json")
        status = told.objects()[0]
        assert told.code == 0 and status["running"] is True
        assert status["log"]["head"] == len(records) - 1
        assert f"pid {status['sidecar']['pid']}" in run(home.path, "status").out
        assert run(home.path, "verify").code == 0

        stopped = run(home.path, "stop", "--json")
        assert stopped.objects() == [{"stopped": True, "pid": status["sidecar"]["pid"]}]
        assert home.running() is None
        assert run(home.path, "status", "--json").objects()[0]["sidecar"] is None

    def test_stop_without_one(self, empty: Path) -> None:
        done = run(empty, "stop")
        assert (done.code, done.out) == (0, f"no sidecar is running for {empty}\n")
        assert not empty.exists()
