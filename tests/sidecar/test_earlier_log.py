"""A home whose ``store/`` was deleted: a new log begins, and that the earlier one is gone is told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.home import Home
from tests.sidecar.cli.helpers import RECORDINGS, Done, run, run_process
from tests.sidecar.life import end_sidecars, logged

GONE = "the log that this home held before"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    home = Home(tmp_path / "home")
    yield home
    end_sidecars(home)


def play(home: Home, name: str) -> Done:
    done = run_process(home.path, "play", str(RECORDINGS / f"{name}.jsonl"))
    assert done.code == 0 and run(home.path, "stop").code == 0, done
    return done


def notes(home: Home) -> list[str]:
    """What ``status`` and ``doctor`` say of it, alike."""
    told = [note for note in run(home.path, "status", "--json").objects()[0]["notes"] if GONE in note]
    checks = [check for check in run(home.path, "doctor", "--json").objects() if check["name"] == "earlier log"]
    assert all(check["level"] == "note" for check in checks)
    assert [f"{check['text']}; {check['hint']}" for check in checks] == told
    return told


def test_a_log_that_is_gone_is_told_before_and_after_a_new_one_begins(home: Home, tmp_path: Path) -> None:
    assert notes(home) == []
    play(home, "chat")
    assert notes(home) == [] and GONE not in logged(home)
    shutil.copytree(home.store_path, tmp_path / "backup")
    shutil.rmtree(home.store_path)
    [before] = notes(home)
    home.store_path.mkdir(mode=0o700)
    assert notes(home) == [before]
    assert "was deleted or emptied; if that was not meant, restore store/ from a backup before the next" in before
    play(home, "deletion")
    assert logged(home).count(f"WARNING sidecar: {GONE} is gone: {home.store_path} was deleted or emptied") == 1
    [after] = notes(home)
    assert "and a new log was begun; if that was not meant, restore store/ from a backup" in after
    play(home, "two_queued")
    assert notes(home) == [after] and logged(home).count(GONE) == 1, "it is told of one start"
    shutil.rmtree(home.store_path)
    shutil.copytree(tmp_path / "backup", home.store_path)
    assert notes(home) == [], "it is here again"


def test_a_log_that_was_repaired_or_moved_is_not_gone(home: Home) -> None:
    play(home, "chat")
    (home.store_path / "store.json").unlink()
    assert run(home.path, "repair").code == 0 and notes(home) == []
    assert run(home.path, "migrate", "--to", "sqlite").code == 0 and notes(home) == []
    play(home, "deletion")
    assert notes(home) == [] and GONE not in logged(home)


def test_a_log_of_which_a_part_is_left_is_not_gone(home: Home) -> None:
    play(home, "chat")
    pointer = (home.store_path / "store.json").read_bytes()
    (home.store_path / "store.json").unlink()
    assert notes(home) == [], "the log lies there, and the next start refuses it"
    shutil.rmtree(home.store_path / "log")
    assert notes(home) == [], "its head file lies there, and the next start refuses it"
    (home.store_path / "head").unlink()
    assert len(notes(home)) == 1
    (home.store_path / "store.json").write_bytes(pointer)
    assert notes(home) == []
