"""The home: closed to others, one sidecar at a time, and a token nobody can swap."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.home import Home, HomeError, HomeLocked, SidecarInfo

TOKEN = "7e" * 32
INFO = SidecarInfo(pid=os.getpid(), port=4000, boot="b", version="0.1", protocol=1, started_ms=5)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.create()
    return made


@pytest.fixture(params=[0o000, 0o077, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_the_path_is_the_flag_then_the_environment_then_the_platforms(tmp_path: Path) -> None:
    environ = {"DURABLE_STREAM_HOME": str(tmp_path / "env")}
    assert Home(tmp_path / "flag", environ).path == tmp_path / "flag"
    assert Home(None, environ).path == tmp_path / "env"
    assert Home(None, {}).path.name == "durable-stream"
    assert not (tmp_path / "flag").exists()


def test_everything_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    home = Home(tmp_path / "home")
    home.create()
    home.create()
    home.ensure_token(lambda: TOKEN)
    home.write_info(INFO)
    with home.lock():
        for path in (home.path, home.store_path, home.spool_path):
            assert mode(path) == 0o700, path
        for path in (home.token_path, home.info_path, home.lock_path):
            assert mode(path) == 0o600, path
    names = {path.name for path in home.path.iterdir()}
    assert names == {"token", "sidecar.json", "sidecar.lock", "store", "spool"}


def test_an_empty_or_former_home_is_closed_a_foreign_directory_is_not_touched(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    empty.chmod(0o755)
    Home(empty).create()
    assert mode(empty) == 0o700
    empty.chmod(0o755)
    Home(empty).ensure_token(lambda: TOKEN)
    Home(empty).create()
    assert mode(empty) == 0o700

    foreign = tmp_path / "foreign"
    foreign.mkdir()
    foreign.chmod(0o755)
    (foreign / "letters.txt").touch()
    with pytest.raises(HomeError, match="chmod 700"):
        Home(foreign).create()
    assert mode(foreign) == 0o755


def test_a_file_in_the_homes_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(HomeError, match=str(tmp_path)):
        Home(tmp_path / "home").create()


def test_a_directory_swapped_for_a_link_is_told(home: Home, tmp_path: Path) -> None:
    home.spool_path.rmdir()
    home.spool_path.symlink_to(tmp_path)
    with pytest.raises(HomeError, match="not a directory"):
        home.create()


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


@pytest.mark.parametrize("bits", [0o604, 0o640, 0o620, 0o601])
def test_a_token_open_to_others_is_refused(home: Home, bits: int) -> None:
    home.ensure_token(lambda: TOKEN)
    home.token_path.chmod(bits)
    with pytest.raises(HomeError, match="open to others"):
        home.read_token()


def test_a_linked_token_is_refused_also_when_it_dangles(home: Home, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    home.token_path.symlink_to(target)
    with pytest.raises(HomeError, match="symbolic link"):
        home.ensure_token(lambda: TOKEN)
    assert not target.exists()
    target.write_text(TOKEN)
    target.chmod(0o600)
    with pytest.raises(HomeError, match="symbolic link"):
        home.read_token()


@pytest.mark.parametrize("kind", ["directory", "pipe", "socket"])
def test_a_token_that_is_no_file_is_refused_and_does_not_hang(
    home: Home, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "directory":
        home.token_path.mkdir(0o700)
    elif kind == "pipe":
        os.mkfifo(home.token_path, 0o600)
    else:
        monkeypatch.chdir(home.path)  # a socket's path must be short
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("token")
    with pytest.raises(HomeError):
        home.read_token()


def test_another_users_token_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.ensure_token(lambda: TOKEN)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(HomeError, match="not to you"):
        home.read_token()


@pytest.mark.parametrize("text", ["", "short", TOKEN + TOKEN, TOKEN.upper(), "é" * 64])
def test_a_broken_token_is_refused_and_never_printed(home: Home, text: str) -> None:
    home.token_path.write_text(text)
    home.token_path.chmod(0o600)
    with pytest.raises(HomeError) as broken:
        home.read_token()
    assert not text or text not in str(broken.value)


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
    home.lock().release()


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


def test_a_killed_sidecar_leaves_the_home_free(home: Home) -> None:
    code = (
        "import sys; from sidecar.home import Home\n"
        "lock = Home(sys.argv[1]).lock(); print('locked', flush=True); sys.stdin.read()"
    )
    root = str(Path(__file__).resolve().parents[2])
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(home.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert other.stdout is not None
    assert other.stdin is not None
    try:
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(HomeLocked):
            home.lock()
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait(10)
        other.stdout.close()
        other.stdin.close()
    home.lock().release()


def test_a_linked_lock_is_refused(home: Home, tmp_path: Path) -> None:
    home.lock_path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HomeError, match="cannot open"):
        home.lock()
    assert not (tmp_path / "elsewhere").exists()
