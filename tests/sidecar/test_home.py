"""The home: its place, its token, one sidecar at a time. Access by others: tests/security/test_files.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.home import Home, HomeLocked, SidecarInfo
from sidecar.private_files import HomeError

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
