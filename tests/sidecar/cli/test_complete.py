"""Shell completion, in a real bash."""

from __future__ import annotations

import os
import pty
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from typer.main import get_command

from sidecar.cli.app import app
from tests.sidecar.cli.helpers import LIMIT_SECONDS, ROOT, environment, make_home, run

HEAVY = ("rich", "websockets", "nats", "aiohttp")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``durable-stream`` for the PATH."""
    directory = tmp_path_factory.mktemp("programs")
    script = directory / "durable-stream"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m sidecar.cli "$@"\n')
    script.chmod(0o755)
    return directory


def in_bash(programs: Path, home: Path, script: str, **more: str) -> str:
    path = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", script],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        cwd=ROOT,
        env=environment(PATH=path, DURABLE_STREAM_HOME=str(home), **more),
    )
    assert done.stderr == ""
    return done.stdout


def offered(home: Path, *words: str) -> list[str]:
    """What bash is offered for the last of ``words``, found in this process; two tests below ask a real bash."""
    typed = " ".join(map(shlex.quote, ("durable-stream", *words)))
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(words)), "_DURABLE_STREAM_COMPLETE": "complete_bash"}
    done = CliRunner().invoke(
        get_command(app), [], prog_name="durable-stream", env={**asked, "DURABLE_STREAM_HOME": str(home)}
    )
    return done.stdout.split()


def test_commands_and_options(recorded_home: Path) -> None:
    assert offered(recorded_home, "st") == ["streams", "state", "status", "stop"]
    assert set(offered(recorded_home, "log", "--")) >= {"--follow", "--last", "--from", "--json"}


def test_streams_and_sessions(recorded_home: Path) -> None:
    streams = {stream["stream_id"] for stream in run(recorded_home, "streams", "--json").objects()}
    for words in (["log"], ["read"], ["tree"], ["export"], ["query", "--stream"]):
        assert set(offered(recorded_home, *words, "ses_")) >= streams
    one = min(streams)
    assert offered(recorded_home, "log", one[:-2]) == [one]
    event = run(recorded_home, "query", "--type", "agent.spawned", "--json").objects()[0]["event"]
    child = event["payload"]["child"]
    assert offered(recorded_home, "log", child[:-2]) == [child]
    assert offered(recorded_home, "export", child[:-2]) == []


def test_events_types_and_actors(recorded_home: Path) -> None:
    event = run(recorded_home, "query", "--type", "agent.error", "--json").objects()[0]["event"]
    assert offered(recorded_home, "show", event["id"][-6:-1]) == [event["id"][-6:]]
    assert offered(recorded_home, "why", event["id"][:-1]) == [event["id"]]
    newest = run(recorded_home, "query", "--limit", "1", "--json").objects()[0]["event"]["id"]
    assert offered(recorded_home, "show", "")[0] == newest[-6:]
    assert offered(recorded_home, "query", "--type", "agent.e") == ["agent.error"]
    assert "execution.*" in offered(recorded_home, "query", "--type", "exec")
    assert offered(recorded_home, "query", "--actor", "us") == ["user"]


def test_an_event_id_is_completed_from_any_beginning_of_what_a_terminal_shows(recorded_home: Path) -> None:
    """Also where that begins as whole ids do."""
    ids = [record["event"]["id"] for record in run(recorded_home, "query", "--json").objects()]
    for identifier in (ids[0], next(each for each in ids if each[-6:].startswith("0")), ids[-1]):
        for typed in (identifier[-6:-5], identifier[-6:-2]):
            found = offered(recorded_home, "show", typed)
            assert identifier[-6:] in found and set(found) == {each[-6:] for each in ids if each[-6:].startswith(typed)}
    found = offered(recorded_home, "why", ids[0][:16])
    assert ids[0] in found and set(found) == {each for each in ids if each.startswith(ids[0][:16])}


@pytest.mark.parametrize("change", ["DELETE FROM records", "UPDATE records SET event = x'03'", "DROP TABLE records"])
def test_what_cannot_be_read_is_left_out_quietly(tmp_path: Path, change: str) -> None:
    home = make_home(tmp_path / "home", "chat")
    with closing(sqlite3.connect(home / "store" / "log.db")) as database, database:
        database.execute(change if change.startswith("DROP") else f"{change} WHERE position = 3")
    assert len(offered(home, "log", "ses_")) <= 1
    (home / "store" / "store.json").write_text("{")
    assert offered(home, "log", "ses_") == []


def test_completing_imports_no_screen_and_no_network(recorded_home: Path) -> None:
    program = (
        "import sys, json; from sidecar.cli import main\n"
        "try: main()\n"
        "except SystemExit: print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    wanted = {"COMP_WORDS": "durable-stream show ", "COMP_CWORD": "2", "_DURABLE_STREAM_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv = ['durable-stream']\n{program}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(DURABLE_STREAM_HOME=str(recorded_home), **wanted),
        timeout=LIMIT_SECONDS,
    )
    assert len(done.stdout.split()) == 30
    assert not {name for name in HEAVY if f'"{name}"' in done.stderr}


def test_a_press_of_the_tab_key_completes_the_line(programs: Path, recorded_home: Path, tmp_path: Path) -> None:
    stream = run(recorded_home, "streams", "--json").objects()[0]["stream_id"]
    start = tmp_path / "rc"
    start.write_text(
        "bind 'set enable-bracketed-paste off'\nPS1='ready> '\neval \"$(durable-stream --show-completion)\"\n"
    )
    path = f"{programs}:{os.environ['PATH']}"
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--noprofile", "--rcfile", str(start), "-i"],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, start_new_session=True,
        env=environment(PATH=path, DURABLE_STREAM_HOME=str(recorded_home), TERM="dumb", HISTFILE=""),
    )  # fmt: skip
    os.close(theirs)
    said = b""

    def until(wanted: bytes) -> None:
        nonlocal said
        while wanted not in said:
            said += os.read(ours, 4096)

    try:
        until(b"ready> ")
        os.write(ours, f": durable && durable-stream log {stream[:-2]}\t".encode())
        until(f"{stream} ".encode())
    finally:
        shell.kill()
        shell.wait(LIMIT_SECONDS)
        os.close(ours)


def test_install_completion_writes_what_bash_loads(programs: Path, recorded_home: Path, tmp_path: Path) -> None:
    said = in_bash(programs, recorded_home, "durable-stream --install-completion; true", HOME=str(tmp_path))
    assert "bash completion installed in" in said
    script = f'. "{tmp_path}/.bashrc"; complete -p durable-stream'
    assert "_durable_stream_completion" in in_bash(programs, recorded_home, script, HOME=str(tmp_path))
