"""Commands beside a growing log and a running sidecar: ``log --follow``, ``status``, ``play``, ``notify`` and more."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from sidecar.cli.shared.follow import follow
from sidecar.home import Home
from tests.sidecar.background.receiver import SECRET, Receiver
from tests.sidecar.cli.helpers import LIMIT_SECONDS, MAY_REMOVE, RECORDINGS, append, run, run_and_stop
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


class TestFeed:
    """``log --after POSITION``: every record once, for whoever goes on after the last position it saw."""

    def test_readers_that_are_killed_between_lines_miss_and_repeat_nothing(
        self, tmp_path: Path, started: list[Process]
    ) -> None:
        store, seen = tmp_path / "store", list[int]()

        def write(life: str) -> None:
            streams = ("ses_a", "ses_b", "agent/intents")
            asyncio.run(append(store, [events(2, prefix=f"{life}{stream}", stream=stream) for stream in streams]))

        def read(count: int) -> None:
            after = str(seen[-1]) if seen else "-1"
            started.append(feed := Process(tmp_path, "log", "--follow", "--json", "--after", after))
            for number in range(count):
                if number == 1:
                    write(f"after {len(seen)}")  # as a sidecar that was started again
                seen.append(feed.record()["position"])
            feed.end()

        (tmp_path / "config.toml").write_text(MAY_REMOVE)
        write("first")
        read(4)
        read(5)
        assert run(tmp_path, "prune", "--stream", "ses_b", "--yes").code == 0 and run(tmp_path, "stop").code == 0
        left = [record["position"] for record in run(tmp_path, "query", "--json").objects()]
        expected = [*range(9), *(position for position in left if position > 8)]
        assert left[0] == 0 and len(expected) < left[-1], "the prune left holes"
        read(len(expected) - 9)
        assert seen == expected

    def test_it_reads_what_is_there_without_follow_of_one_stream_or_of_all(self, tmp_path: Path) -> None:
        streams = ("ses_a", "agent/intents", "ses_b")
        batches = [events(2, prefix=stream, stream=stream) for stream in streams]
        asyncio.run(append(tmp_path / "store", batches))

        def positions(*arguments: str) -> list[int]:
            return [record["position"] for record in run(tmp_path, "log", *arguments, "--json").objects()]

        for after in range(-1, 6):
            assert positions("--after", str(after)) == list(range(after + 1, 6))
        assert positions("ses_b", "--after", "4") == [5] and positions("ses_a", "--after", "1") == []
        assert run(tmp_path, "log", "--after", "3").out.count("ses_b") == 2, "for a person, too"

    @pytest.mark.parametrize(
        "wrong", ["--after 6", "--after -2", "--after 1 --last 3", "--after 1 --from 1", "--after x"]
    )
    def test_what_cannot_be_meant_is_refused(self, tmp_path: Path, wrong: str) -> None:
        asyncio.run(append(tmp_path / "store", [events(6)]))
        done = run(tmp_path, "log", "ses_a", *wrong.split())
        assert (done.code, done.out) == (2, "")


async def test_following_needs_no_watcher_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)  # a system has few watchers, and an editor takes many
    records = follow(tmp_path / "store")
    for life in range(3):
        await append(tmp_path / "store", [events(1, prefix=f"life{life}")])
        assert (await anext(records)).offset == life
    await records.aclose()  # type: ignore[attr-defined]


class TestSidecar:
    def test_status_answers_beside_silent_connections_and_notes_them(self, home: Home) -> None:
        run(home.path, "play", str(RECORDINGS / "chat.jsonl"))
        info = home.running()
        assert info is not None
        with ExitStack() as stack:
            for _ in range(270):  # and 256 may wait to prove themselves
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
        assert run(home.path, "play", file).code == 0
        assert run(home.path, "query", "--json").objects() == records, "also in another life of the sidecar"

    def test_stop_without_one(self, empty: Path) -> None:
        done = run(empty, "stop")
        assert (done.code, done.out) == (0, f"no sidecar is running for {empty}\n")
        assert not empty.exists()


def configured(home: Path, *urls: str) -> Path:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(f"[notify]\nurls = {json.dumps(urls)}\n")
    return home


def test_each_channel_is_proved(tmp_path: Path) -> None:
    with Receiver() as phone, Receiver(failing=9) as broken:
        home = configured(tmp_path / "home", phone.url, broken.url)
        done = run_and_stop(home, "notify", "test", "--json")
        assert done.code == 1
        found = done.objects()[0]["channels"]
        assert done.objects()[0]["turns"] == "off"
        assert [each["ok"] for each in found] == [True, False]
        assert "500" in found[1]["error"]
        assert len(phone.taken) == 1
        assert SECRET not in done.out + done.err
        kept = [path for path in home.rglob("*") if path.is_file() and path.name != "config.toml"]
        assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []


def test_without_a_channel_nothing_is_proved(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = run(home, "notify", "test")
    assert (done.code, done.err) == (
        1,
        "No channel is configured: set `urls`, `command` or `desktop` in [notify] in config.toml.\n",
    )
    (home / "config.toml").write_text("[notify]\ndesktop = true\n")
    (config,) = (each for each in run(home, "doctor", "--json").objects() if each["name"] == "config")
    assert (config["level"], "durable-stream stop" in config["hint"]) == ("note", True)
    done = run_and_stop(home, "notify", "test")
    assert (done.code, done.err.count("\n")) == (1, 1), "a channel that is configured is not missing"
    assert done.err.startswith("config.toml changed")


def test_a_signal_is_counted_and_the_same_key_counts_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for arguments, count in (((), 1), (("--key", "k"), 2), (("--key", "k"), 2)):
        assert run(home, "signal", "deployed", "7", *arguments, "--json").objects()[0]["count"] == count
    assert run_and_stop(home, "signal", "deployed", "{7").err.endswith("[bad-json]\n")


@pytest.mark.parametrize("name", ["a b", "", "-", ".a", "a" * 101, "ä"])
def test_the_names_that_a_signal_may_have_are_told(tmp_path: Path, name: str) -> None:
    done = run(tmp_path / "home", "signal", "--", name)
    assert (done.code, done.err[-16:]) == (1, "[bad-arguments]\n")
    assert f"{name!r} is not a valid signal name; use at most 100 letters, digits" in done.err
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_work_without_a_prompt_is_a_wrong_call(tmp_path: Path, prompt: str) -> None:
    assert run(tmp_path / "home", "spawn", prompt).code == 2
    assert not (tmp_path / "home").exists()


def test_where_background_work_can_edit_is_told(tmp_path: Path) -> None:
    done = run_and_stop(tmp_path / "home", "spawn", "x", "--isolation", "foo", "--parent", "ses_1")
    assert done.err.endswith("[bad-arguments]\n")
    shown = run(tmp_path / "home", "spawn", "--help", COLUMNS="200").out
    for place in ("auto", "copy", "shared"):
        assert place in done.err and f"{place}: " in shown


def test_what_does_not_wait_cannot_be_answered(home: Home) -> None:
    home.config_path.write_text('[link]\nscripts_may = ["answer"]\n')
    for arguments in (["chk_1", "--answer", "once"], ["--answer", "once"], ["chk_1"]):
        done = run(home.path, "checkpoints", *arguments)
        assert (done.code, done.err.rstrip()[-15:]) == (1, "[no-checkpoint]")
