"""``notify test``, ``signal``, and answers to what does not wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.sidecar.background.receiver import SECRET, Receiver
from tests.sidecar.cli.helpers import run, run_and_stop


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


def test_where_background_work_can_edit_is_told(tmp_path: Path) -> None:
    done = run_and_stop(tmp_path / "home", "spawn", "x", "--isolation", "foo")
    assert done.err.endswith("[bad-arguments]\n")
    shown = run(tmp_path / "home", "spawn", "--help", COLUMNS="200").out
    for place in ("auto", "worktree", "shared"):
        assert place in done.err and f"{place}: " in shown


@pytest.mark.parametrize("arguments", [("chk_1", "--answer", "once"), ("--answer", "once"), ("chk_1",)])
def test_what_does_not_wait_cannot_be_answered(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run_and_stop(tmp_path / "home", "checkpoints", *arguments)
    assert (done.code, done.err.rstrip()[-15:]) == (1, "[no-checkpoint]")
