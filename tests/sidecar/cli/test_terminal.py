"""Terminal output: lines that fit, and colour unless it is off."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from sidecar.cli.look.streams import MOST
from sidecar.cli.printing.output import Column, Output
from streams.event import StreamEvent
from streams.identity import Identity, seeded_identity
from tests.sidecar.cli.helpers import LIMIT_SECONDS, append, command, environment, run
from tests.streams.builders import event

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def on_terminal(home: Path, *arguments: str, width: int, code: int = 0, cwd: Path | None = None, **environ: str) -> str:
    """The output on a terminal of that width of a command that exits with ``code``."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    process = subprocess.Popen(
        command(home, *arguments),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm", **environ),
        cwd=cwd,
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
    assert process.wait(LIMIT_SECONDS) == code
    return said.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("width", [60, 200])
def test_the_cost_stays_where_a_line_is_cut(tmp_path: Path, width: int) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    spent = {"tokens": {"input": 123456, "output": 65432}, "cost": 1.25, "session": "ses_a"}
    made = [
        event("a", type_="turn.ended", payload={"outcome": "completed", "steps": 120, "message": "m", **spent}),
        event("b", payload={"kind": "inference", "finish": "stop" * 9, **spent}),
    ]
    asyncio.run(append(home / "store", [made]))
    lines = ANSI.sub("", on_terminal(home, "log", "ses_a", width=width)).splitlines()
    assert [line.rstrip().endswith("$1.25") for line in lines].count(True) == 2 and max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [80])
def test_errors_and_plans_are_broken_at_words(recorded_home: Path, width: int) -> None:
    parent = run(recorded_home, "query", "--type", "agent.spawned", "--json").objects()[0]["event"]["stream_id"]
    whole = run(recorded_home, "log", "ses_").err
    assert len(whole) > 200 and len(whole.splitlines()) == 1, "one line where no terminal is"
    said = on_terminal(recorded_home, "log", "ses_", width=width, code=1)
    assert said.replace("\n", " ").strip() == whole.strip() and "\n" in said.strip()
    for verb in (["prune", "--older-than", "1s"], ["forget", parent]):
        lines = ANSI.sub("", on_terminal(recorded_home, *verb, width=width)).splitlines()
        assert max(map(len, lines)) <= width and "title" in lines[0]
        assert "--yes" in lines[-1] and any(line.startswith("would ") for line in lines)
    assert max(map(len, said.splitlines())) <= width


def test_child_sessions_are_indented_and_ids_can_be_used(recorded_home: Path) -> None:
    stream = run(recorded_home, "query", "--type", "agent.spawned", "--json").objects()[0]["event"]["stream_id"]
    said = ANSI.sub("", on_terminal(recorded_home, "log", stream, width=120))
    assert re.search(r"^\S+  \S{6}  build         spawns", said, re.M)
    child = re.search(r"^\S+  (\S{6})  general       1 bash", said, re.M)
    assert child is not None
    assert run(recorded_home, "show", child[1], "--json").objects()[0]["event"]["payload"]["tool"] == "bash"


def test_colour_is_left_out_when_it_is_unwanted(recorded_home: Path) -> None:
    stream = run(recorded_home, "query", "--type", "agent.error", "--json").objects()[0]["event"]["stream_id"]
    assert "\x1b[31m" in on_terminal(recorded_home, "log", stream, width=80)
    assert not re.search(r"\x1b\[(?:\d+;)?3\dm", on_terminal(recorded_home, "log", stream, width=80, NO_COLOR="1"))


def test_a_quick_verify_shows_the_verdict_alone(recorded_home: Path) -> None:
    said = ANSI.sub("", on_terminal(recorded_home, "verify", width=80))
    assert re.fullmatch(r"all \d+ records in \d+ streams verified\n", said)


LIMITS = ((), ("--limit", "1000"))


def worked(identity: Identity, session: str, type_: str, ts: int, actor: str = "build", **payload: Any) -> StreamEvent:
    """An event of a session in the stream ``ses_root``."""
    about: dict[str, Any] = {"actor": actor, "identity": identity, "ts": ts, "payload": {"session": session, **payload}}
    return event(stream="ses_root", type_=type_, **about)


def test_wide_and_harmful_characters_are_aligned_and_harmless(tmp_path: Path) -> None:
    width = 60
    identity = seeded_identity(8)
    wide = "修复登录测试 👩‍💻 \x1b[31mred\x1b]0;title\x07 \u202eright\r\n\x9b2J " * 20
    texts = (wide, "plain", "\x1b[2J" * 3 + "after")
    made = [worked(identity, "ses_root", "lifecycle.session.created", 1, lineage="root", title=wide)]
    for actor, text in zip(("建築者的代理人", "build", "\x1b[1mx"), texts, strict=True):
        made.append(worked(identity, "ses_root", "execution.output", 2, actor, kind="text", text=text))
        made.append(worked(identity, "ses_root", "execution.step", 3, actor, kind="tool", tool="工具", title=text))
    asyncio.run(append(tmp_path / "store", [made]))
    shown = [["show", made[0].id], ["show", made[-1].id], ["show", made[-1].id, "--raw"], ["query", "right"]]
    for verb in (["log", "ses_root"], ["query"], ["tree"], ["streams"]):
        said = on_terminal(tmp_path, *verb, width=width, NO_COLOR="1")
        bare = re.sub(r"\x1b\[[0-9;]*m", "", said)  # the styles are ours
        assert not [c for c in bare if not c.isprintable() and c not in "\n\u200d"]
        assert max(map(cell_len, bare.splitlines())) <= width
    for verb in shown:
        bare = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(tmp_path, *verb, width=width))
        assert bare and not [c for c in bare if not c.isprintable() and c not in "\n\u200d"]
    lines = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(tmp_path, "log", "ses_root", width=width)).splitlines()
    starts = {cell_len(row[: row.index(word)]) for row in lines for word in ("says", "工具") if word in row[:45]}
    assert len(starts) == 1


def test_a_terminal_lists_the_newest_streams_and_a_pipe_all(tmp_path: Path) -> None:
    names = [f"ses_{number:03}" for number in range(MOST + 5)]
    made = [event(name, stream=name, payload={"session": name}) for name in names]
    asyncio.run(append(tmp_path / "store", [made]))
    listed = [
        re.findall(r"ses_\d{3}", ANSI.sub("", on_terminal(tmp_path, "streams", *more, width=120))) for more in LIMITS
    ]
    assert listed == [names[:4:-1], names[::-1]]
    assert [row[0] for row in run(tmp_path, "streams").rows()[1:]] == names[::-1]


def test_a_step_tells_working_from_waiting_wherever_it_is_shown(tmp_path: Path) -> None:
    identity = seeded_identity(11)
    made = [
        worked(identity, "ses_root", "lifecycle.session.created", 1, lineage="root"),
        turn := worked(identity, "ses_root", "turn.started", 1000, message="m"),
    ]

    def caused(by: StreamEvent, type_: str, ts: int, **payload: Any) -> StreamEvent:
        event = worked(identity, "ses_root", type_, ts, turn="m", **payload)
        made.append(StreamEvent.parse(event.fields() | {"causation_id": by.id}))
        return made[-1]

    ask = {"kind": "permission", "request": "r", "call": "c"}
    asked = caused(turn, "workflow.checkpoint", 2000, state="asked", permission="bash", **ask)
    caused(asked, "workflow.checkpoint", 5100, state="replied", reply="once", **ask)
    step = caused(turn, "execution.step", 6200, kind="tool", tool="bash", call="c", title="npm test", duration_ms=4200)
    asyncio.run(append(tmp_path / "store", [made]))
    for verb in (["log", "ses_root"], ["log", "ses_root", "-n", "1"], ["why", step.id],
                 ["query", "--type", "execution.step"], ["query", "npm"]):  # fmt: skip
        assert run(tmp_path, *verb).rows()[-1][-1] == "bash: npm test · 4.2s (waited 3.1s for you)", verb
    out = run(tmp_path, "show", step.id).out
    assert re.search(r"^took +4\.2s$", out, re.M) and re.search(r"^waited +3\.1s for you$", out, re.M)


def test_a_found_text_is_highlighted_and_shown_where_the_line_does_not_hold_it(recorded_home: Path) -> None:
    said = on_terminal(recorded_home, "query", "SCRIPTED", width=120)
    assert re.search(r"\x1b\[[0-9;]*7[0-9;]*mscripted\x1b\[0m", said)
    said = on_terminal(recorded_home, "query", "--type", "execution.step", "call_1_0", width=120)
    lines = ANSI.sub("", said).splitlines()
    found = [number for number, line in enumerate(lines) if line.strip() == "call_1_0"]
    assert len(found) > 1 and all("call_1_0" not in lines[number - 1] for number in found)


ID = "chk_f877f6d0128a"
COLUMNS = (
    Column("id"),
    Column("state"),
    Column("started"),
    Column("ran", right=True),
    Column("cost", right=True),
    Column("title"),
)
ROW = (ID, "completed", "12 min ago", "1 min", "$0.0123", "Look for the cause of the failing login test")


def drawn(width: int, *rows: tuple[str, ...]) -> list[str]:
    """The lines of a table on a terminal of that width, the heading first."""
    out = Output()
    file = StringIO()
    out.terminal = True
    out.__dict__["console"] = Console(file=file, width=width, highlight=False, markup=False)
    out.table(COLUMNS, rows)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 40, 50, 60, 70, 80, 90, 95])
def test_only_the_text_is_cut(width: int) -> None:
    heading, _, line = drawn(width, ROW)
    shown = heading.split()
    assert shown[0] == "id" and shown[-1] == "title"
    assert shown[1:-1] == ["state", "started", "ran", "cost"][: len(shown) - 2]
    assert all(text in line for text in ROW[: len(shown) - 1])
    assert cell_len(line) <= width and line.split("  ")[-1].rstrip().endswith("…")


def test_a_column_is_left_out_only_where_the_text_would_have_no_room() -> None:
    assert drawn(75, ROW)[0].split() == ["id", "state", "started", "ran", "cost", "title"]
    assert drawn(50, ROW)[0].split() == ["id", "state", "title"]
    assert drawn(64, (*ROW[:-1], "-"))[0].split() == ["id", "state", "started", "ran", "cost", "title"]
