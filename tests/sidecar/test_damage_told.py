"""What commands say of a damaged store: the cause by name, once, and what to do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.home import Home
from streams.stores.head import Head, format_head
from tests.sidecar.bad_stores import (
    HEAD,
    line_damaged,
    make_store,
    segments,
    snapshot,
)
from tests.sidecar.cli.helpers import run
from tests.sidecar.support import RECORDINGS


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = Home(tmp_path_factory.mktemp("sound") / "home")
    home.create()
    home.ensure_token(lambda: "a" * 64)
    make_store(home.store_path)
    return home.path


@pytest.fixture
def damaged_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test puts a log and damages it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "home"


def put(home: Path, sound: Path) -> Path:
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(sound, home)
    return home / "store"


def files(home: Path) -> dict[str, tuple[int, bytes]]:
    found = snapshot(home) if home.is_dir() else {}
    return {name: what for name, what in found.items() if name != "sidecar.lock"}


def file_for_home(home: Path) -> str:
    shutil.rmtree(home)
    home.write_text("a thesis")
    return "not a directory"


def file_for_store(home: Path) -> str:
    shutil.rmtree(home / "store")
    (home / "store").write_text("a thesis")
    return "choose another home"


@pytest.mark.parametrize("foreign", [file_for_home, file_for_store])
def test_what_is_not_ours_is_no_damage(damaged_home: Path, sound: Path, foreign: Callable[[Path], str]) -> None:
    put(damaged_home, sound)
    wanted = foreign(damaged_home)
    before = files(damaged_home)
    for name in ("verify", "streams", "query"):
        done = run(damaged_home, *name.split())
        assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1) and wanted in done.err, (name, done)
    assert files(damaged_home) == before
    assert run(damaged_home, "status").code == run(damaged_home, "doctor").code == 1


def change(store: Path, at: bytes | int, by: int, value: int) -> None:
    """Change one byte of the database, ``by`` bytes after ``at``."""
    path = store / "log.db"
    data = bytearray(path.read_bytes())
    data[(data.index(at) if isinstance(at, bytes) else at) + by] = value
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "by"), [(b"CREATE INDEX records_by_type", 3), (b"records_by_typerecords", 3), (b"CREATE TABLE records", 30)]
)
def test_a_damaged_schema_is_a_fault_in_plain_letters(damaged_home: Path, sound: Path, at: bytes, by: int) -> None:
    store = put(damaged_home, sound)
    change(store, at, by, 0x1B)
    for name in ("verify", "streams", "status", "doctor"):
        done = run(damaged_home, *name.split())
        assert done.code == 1 and "log.db" in done.out + done.err, (name, done)
        assert "\x1b" not in done.out + done.err, (name, done)


def test_a_damaged_line_is_told_with_the_same_place_everywhere(damaged_home: Path, sound: Path) -> None:
    store = put(damaged_home, sound)
    line_damaged(store)
    place = f"{segments(store)[1]}:1 (position 8): wrong checksum"
    for name in ("verify", "status", "doctor", "streams", "query", "log", "serve"):
        done = run(damaged_home, *name.split())
        assert done.code == 1 and place in done.out + done.err, (name, done)
    played = run(damaged_home, "play", str(RECORDINGS / "chat.jsonl"))
    reason = done.err.removeprefix("durable-stream: ").removesuffix(" [log-damaged]\n")
    assert played.code == 1 and "ended right after it started" in played.err
    assert played.err.endswith(f"{reason} [sidecar-unavailable]\n"), "the sidecar's own reason"


class TestWhatKeepsASidecarFromStarting:
    """Reads may work although nothing can be recorded: ``status`` must not say that all is well."""

    @pytest.fixture
    def installed_home(self, damaged_home: Path) -> Path:
        config = damaged_home.parent / "config"
        assert run(damaged_home, "install", HOME=str(damaged_home.parent), XDG_CONFIG_HOME=str(config)).code == 0
        return damaged_home

    def test_the_last_start_failed_until_one_serves(self, installed_home: Path, sound: Path) -> None:
        store = put(installed_home, sound)
        segment, head = segments(store)[-1], store / "head"
        data = head.read_bytes()
        head.write_bytes(format_head(Head(HEAD, "0" * 64)))
        assert run(installed_home, "status").code == 0, "who reads forward does not see it"
        assert run(installed_home, "serve").code == 1
        done = run(installed_home, "status")
        assert done.code == 1 and "the last sidecar failed" in done.out and segment.name in done.out, done
        (check,) = (c for c in run(installed_home, "doctor", "--json").objects() if c["name"] == "start")
        assert check["level"] == "problem" and segment.name in check["text"]
        head.write_bytes(data)
        recording = installed_home.parent / "recording.jsonl"
        recording.write_text('{"t":1,"hook":"dispose","input":null,"output":null}\n')
        assert run(installed_home, "status").code == 1
        try:
            played = run(installed_home, "play", str(recording))
            assert played.code == 0, played
            assert "last sidecar" not in run(installed_home, "status").out
        finally:
            run(installed_home, "stop")
        assert run(installed_home, "status").code == 0


def test_a_page_of_zeros_is_told_in_a_short_line(damaged_home: Path, sound: Path) -> None:
    store = put(damaged_home, sound)
    size = 4096
    with (store / "log.db").open("r+b") as file:
        file.seek(size)  # the map of pages, which every tree in the file is compared with
        file.write(bytes(size))
    for name in ("verify", "doctor"):
        done = run(damaged_home, *name.split())
        (line,) = (line for line in done.out.splitlines() if "SQLite reports" in line or "log.db: " in line)
        assert done.code == 1 and len(line) - len(str(store)) < 250, (name, done)
        assert re.search(r"SQLite reports: Failed to .* \(and \d+ more\)", line) and "***" not in line, (name, line)
