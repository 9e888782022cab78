"""Another program's directory as home: one sentence from every command, and nothing in it changes."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sidecar.cli.app import app
from sidecar.home import Home
from tests.sidecar.bad_stores import make_store
from tests.sidecar.cli.helpers import run

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
    "migrate": ["--to", "sqlite"],
    "prune": ["--older-than", "1s", "--yes"],
    "forget": ["ses_a", "--yes"],
    "listen": [">"],
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
    asked += [["serve", "--idle-exit"], ["doctor", "--fix"], ["repair", "--dry-run"]]
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


@pytest.mark.parametrize("what", ["nothing", "configuration", "store", "a terminal's focus"])
def test_what_may_become_a_home_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    home = Home(tmp_path / "home")
    if what != "nothing":
        home.path.mkdir(mode=0o755)
    if what == "configuration":
        home.config_path.write_text("")
    elif what == "store":
        make_store(home.store_path, "jsonl")
    elif what == "a terminal's focus":
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
