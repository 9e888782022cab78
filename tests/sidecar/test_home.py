"""The home: its place, its token, one sidecar at a time; and another program's directory, which is refused."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.cli.app import app
from sidecar.home import Home, HomeLocked, SidecarInfo
from sidecar.private_files import HomeError
from tests.sidecar.cli.helpers import append, run
from tests.streams.builders import events

TOKEN = "7e" * 32
INFO = SidecarInfo(pid=os.getpid(), port=4000, boot="b", version="0.1", protocol=1, started_ms=5)


def test_the_path_is_the_flag_then_the_environment_then_the_platforms(tmp_path: Path) -> None:
    environ = {"DURABLE_STREAM_HOME": str(tmp_path / "env")}
    assert Home(tmp_path / "flag", environ).path == tmp_path / "flag"
    assert Home(None, environ).path == tmp_path / "env"
    assert Home(None, {}).path.name == "durable-stream"
    assert not (tmp_path / "flag").exists()


# --- the token ---
def test_the_first_token_stays(home: Home) -> None:
    assert home.ensure_token(lambda: TOKEN) == TOKEN
    assert home.ensure_token(lambda: "00" * 32) == TOKEN
    assert home.read_token() == TOKEN


def test_a_race_for_the_token_has_one_winner(home: Home) -> None:
    def slow() -> str:
        Home(home.path).token_path.write_text("11" * 32)
        home.token_path.chmod(0o600)
        return TOKEN

    assert home.ensure_token(slow) == "11" * 32
    assert not list(home.path.glob("token.*"))


def test_a_missing_token_says_what_to_do(home: Home) -> None:
    with pytest.raises(HomeError, match="durable-stream serve") as missing:
        home.read_token()
    assert missing.value.path == home.token_path


# --- the sidecar ---
def test_info_survives_and_a_broken_file_is_none(home: Home) -> None:
    assert home.read_info() is None
    home.write_info(INFO)
    assert home.read_info() == INFO
    whole = home.info_path.read_text()
    extra = json.loads(whole) | {"later": 1}
    home.info_path.write_text(json.dumps(extra))
    assert home.read_info() == INFO
    for text in ("", whole[: len(whole) // 2], "[]", "null", '{"pid":1}', "[" * 60000, whole.replace("4000", '"x"')):
        home.info_path.write_text(text)
        assert home.read_info() is None, text[:30]
    home.info_path.write_bytes(b"\xff")
    assert home.read_info() is None
    home.remove_info()
    home.remove_info()


def test_the_second_sidecar_is_refused_and_told_by_whom(home: Home) -> None:
    with home.lock():
        home.write_info(INFO)
        with pytest.raises(HomeLocked, match=f"pid {os.getpid()}.*durable-stream stop"):
            home.lock()
    home.lock().close()


def test_running_needs_a_live_process_and_the_lock(home: Home) -> None:
    assert home.running() is None
    home.write_info(INFO)
    assert home.running() is None  # the file is stale: nobody holds the lock
    with home.lock():
        assert home.running() == INFO
        done = subprocess.Popen([sys.executable, "-c", ""])
        done.wait()
        home.write_info(SidecarInfo(done.pid, 4000, "b", "0.1", 1, 5))
        assert home.running() is None
    home.write_info(INFO)
    assert home.running() is None  # this process lives, but serves nobody


SENTENCE = "it contains other files and is not a Durable Stream home; choose another home with `--home`"
ARGUMENTS = {
    "fork": ["ses_1", "--at", "01HF7YAT00ZMZYPF4JA2VSEMMB", "--yes"],
    "log": ["ses_a"],
    "show": ["evt"],
    "why": ["evt"],
    "state": ["ses_a"],
    "diff": ["ses_a", "ses_b"],
    "replay": ["ses_a"],
    "export": ["ses_a"],
    "import": ["--opencode"],
    "play": ["FILE"],
    "prune": ["--older-than", "1s", "--yes"],
    "forget": ["ses_a", "--yes"],
    "pin": ["ses_a"],
    "unpin": ["ses_a"],
    "name": ["ses_a", "mine"],
    "send": ["counter", "add"],
    "spawn": ["do it"],
    "signal": ["deployed"],
    "notify": ["test"],
}
ELSEWHERE = {"demo", "uninstall"}
"""They touch no home, or one of their own."""


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    made = tmp_path / "foreign"
    (made / "src").mkdir(parents=True)
    (made / "README").write_text("mine\n")
    return made


def state(place: Path) -> dict[str, tuple[int, bytes | None]]:
    paths = [place, *sorted(place.rglob("*"))]
    return {str(path): (path.stat().st_mode, path.read_bytes() if path.is_file() else None) for path in paths}


def recording(tmp_path: Path) -> Path:
    path = tmp_path / "recording.jsonl"
    path.write_text('{"t":1,"hook":"dispose","input":null,"output":null}\n')
    return path


def test_every_command_refuses_it(foreign: Path, tmp_path: Path) -> None:
    foreign.chmod(0o755)
    before = state(foreign)
    file = str(recording(tmp_path))
    names = {command.name for command in app.registered_commands if command.name} - ELSEWHERE
    asked = [[name, *ARGUMENTS.get(name, [])] for name in sorted(names)]
    asked += [["serve", "--idle-exit"], ["doctor", "--fix"]]
    asked += [["mirror", what] for what in ("status", "verify", "rebuild")]
    for words in asked:
        done = run(foreign, *(file if word == "FILE" else word for word in words))
        told = done.out + done.err
        assert done.code == 1, (words, done)
        if words[0] in ("doctor", "status"):
            assert f"{foreign}: it contains other files" in told and "chmod" not in told, (words, done)
        else:
            assert told == f"durable-stream: {foreign}: {SENTENCE} [bad-home]\n", (words, done)
        assert state(foreign) == before, words
    assert not (tmp_path / "config").exists(), "no plugin would write its spool there"


@pytest.mark.parametrize("what", ["store", "a terminal's focus"])
def test_what_may_become_a_home_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    home = Home(tmp_path / "home")
    home.path.mkdir(mode=0o755)
    if what == "store":
        asyncio.run(append(home.store_path, [events(3)]))
    else:
        (home.path / "terminals").mkdir()
    assert run(home.path, "install").code == 0
    assert run(home.path, "streams").code == 0
    try:
        done = run(home.path, "play", str(recording(tmp_path)))
        assert done.code == 0, done
        assert run(home.path, "status").code == 0
    finally:
        run(home.path, "stop")
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
