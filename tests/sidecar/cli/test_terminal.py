"""What a terminal gets: lines that fit, colour unless it is unwanted."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from tests.sidecar.cli.helpers import LIMIT_SECONDS, command, environment, run

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def on_terminal(home: Path, *arguments: str, width: int, **environ: str) -> str:
    """What a command prints on a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    process = subprocess.Popen(
        command(home, *arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=environment(TERM="xterm", **environ)
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:
        pass  # how Linux says that the other end of a terminal was closed
    finally:
        os.close(ours)
    assert process.wait(LIMIT_SECONDS) == 0
    return said.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("verb", ["streams", "tree", "query", "log"])
def test_nothing_is_wider_than_the_terminal(home: Path, verb: str, width: int) -> None:
    stream = run(home, "query", "--type", "agent.spawned", "--json").objects()[0]["event"]["stream_id"]
    said = on_terminal(home, verb, *([stream] if verb == "log" else []), width=width)
    lines = ANSI.sub("", said).splitlines()
    assert len(lines) > 5 and max(map(len, lines)) <= width


def test_child_sessions_are_indented_and_ids_can_be_used(home: Path) -> None:
    stream = run(home, "query", "--type", "agent.spawned", "--json").objects()[0]["event"]["stream_id"]
    said = ANSI.sub("", on_terminal(home, "log", stream, width=120))
    assert re.search(r"^\S+  \S{6}  build         spawns", said, re.M)
    child = re.search(r"^\S+  (\S{6})  general         bash", said, re.M)
    assert child is not None
    assert run(home, "show", child[1], "--json").objects()[0]["event"]["payload"]["tool"] == "bash"


def test_colour_is_left_out_when_it_is_unwanted(home: Path) -> None:
    stream = run(home, "query", "--type", "agent.error", "--json").objects()[0]["event"]["stream_id"]
    assert "\x1b[31m" in on_terminal(home, "log", stream, width=80)
    assert not re.search(r"\x1b\[(?:\d+;)?3\dm", on_terminal(home, "log", stream, width=80, NO_COLOR="1"))


def test_a_quick_verify_shows_the_verdict_alone(home: Path) -> None:
    said = ANSI.sub("", on_terminal(home, "verify", width=80))
    assert re.fullmatch(r"all \d+ records in \d+ streams verified\n", said)


def test_a_long_verify_shows_a_bar_and_then_the_verdict(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sidecar.cli import checking
    from sidecar.cli.output import Output
    from streams.verify import Verification

    out = Output()
    out.terminal = True
    monkeypatch.setattr(checking, "BAR_BYTES", 1)
    check = Verification(home / "store")
    with checking._progress(out, check):
        assert check.progress is not None
        check.progress(10)
