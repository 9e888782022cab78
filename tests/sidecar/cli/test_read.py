"""``read`` as a person sees it: whole screens at two widths, the pager, and each format it writes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
from pathlib import Path

import pyte
import pytest

from tests.sidecar.cli.helpers import append, make_home, run, run_process
from tests.sidecar.cli.test_terminal import ANSI, on_terminal
from tests.sidecar.read.conversations import DEMO, happened
from tests.sidecar.read.test_hostile_transcript import conversation

SCREENS = Path(__file__).parent / "screens"
ROWS = 120


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Read only: a home for each recording, so that its session is the newest."""
    place = tmp_path_factory.mktemp("read")
    names = {"demo": DEMO, "permission": "permission_child"}
    return {name: make_home(place / name, recording) for name, recording in names.items()}


def drawn(output: str, width: int) -> pyte.Screen:
    """What is on the screen of a terminal after ``output``."""
    screen = pyte.Screen(width, ROWS)
    pyte.Stream(screen).feed(output.replace("\n", "\r\n"))
    return screen


def shown(screen: pyte.Screen) -> str:
    return "\n".join(line.rstrip() for line in screen.display).rstrip("\n") + "\n"


def check_drawn(name: str, screen: str) -> None:
    """The screen is the one that was drawn before under this name."""
    golden = SCREENS / f"{name}.txt"
    if os.environ.get("DRAW_SCREENS"):
        golden.write_text(screen)
    assert screen == golden.read_text(), "if it is meant: DRAW_SCREENS=1 pytest tests/sidecar/cli"


@pytest.mark.parametrize(
    ("name", "options", "width"), [("demo", [], 80), ("demo", ["--children"], 200), ("permission", [], 80)]
)
def test_the_screen_is_as_it_was_drawn(homes: dict[str, Path], name: str, options: list[str], width: int) -> None:
    output = on_terminal(homes[name], "read", *options, width=width, PAGER="cat", HOME="/home/ada")
    words = "-".join(["read", name, *(option.strip("-") for option in options)])
    check_drawn(f"{words}-{width}", shown(drawn(output, width)))


def test_diffs_have_their_colours(homes: dict[str, Path]) -> None:
    screen = drawn(on_terminal(homes["demo"], "read", width=80, PAGER="cat"), 80)

    def colour(text: str) -> str:
        row, line = next((row, line) for row, line in enumerate(screen.display) if text in line)
        return str(screen.buffer[row][line.index(text)].fg)

    assert [colour(text) for text in ("-    return", "+    return")] == ["brightred", "brightgreen"]
    assert not re.search(
        r"\x1b\[(?:\d+;)*3\dm", on_terminal(homes["demo"], "read", width=80, PAGER="cat", NO_COLOR="1")
    )


@pytest.mark.parametrize("width", [30, 200])
def test_nothing_hostile_reaches_the_terminal(tmp_path: Path, width: int) -> None:
    options = ["--full", "--children"]
    asyncio.run(append(tmp_path / "store", [conversation()]))
    said = on_terminal(tmp_path, "read", "ses_root", *options, width=width, PAGER="cat")
    bare = re.sub(r"\x1b\[[0-9;]*m", "", said)  # colours are ours; nothing else may be left
    assert [c for c in bare if not c.isprintable() and c != "\n"] == []
    assert max(map(len, bare.splitlines())) <= width


def test_long_text_goes_through_the_pager_and_short_text_does_not(homes: dict[str, Path], tmp_path: Path) -> None:
    pager = tmp_path / "my pager"
    pager.write_text(f"#!/bin/sh\ncat > {tmp_path}/paged; head -n 3 {tmp_path}/paged\n")
    pager.chmod(0o700)
    environ = {"PAGER": f"'{pager}' -x"}
    assert "ask kid" in on_terminal(homes["permission"], "read", width=80, **environ)
    assert not (tmp_path / "paged").exists(), "it fits on the screen"
    told = ANSI.sub("", on_terminal(homes["demo"], "read", "--full", "--children", width=80, **environ)).splitlines()
    assert len(told) == 3 and "Committed." in (tmp_path / "paged").read_text()
    (tmp_path / "paged").unlink()
    whole = on_terminal(homes["demo"], "read", "--full", "--children", "--no-pager", width=80, **environ)
    assert "Committed." in whole and not (tmp_path / "paged").exists()
    assert "Committed." in on_terminal(homes["demo"], "read", "--full", "--children", width=80, PAGER="no-such-pager")
    left = on_terminal(homes["demo"], "read", "--full", "--children", width=80, PAGER="true")
    assert left == "", "a pager that is left at once ends the command well"


def test_a_pipe_gets_markdown_and_a_note_of_what_was_chosen(homes: dict[str, Path]) -> None:
    done = run_process(homes["demo"], "read")
    assert done.code == 0 and done.out.startswith("# Fix the failing login test\n")
    assert "```diff\n@@" in done.out and "ses_" in done.err
    assert run(homes["demo"], "read", "--format", "markdown").out == done.out
    assert not ANSI.search(done.out)


def test_what_is_shortened_says_so_and_full_shows_it(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(300)]
    step = {"kind": "tool", "tool": "bash", "input": {"command": "seq"}, "output": "\n".join(lines), "turn": "m"}
    thought = {"kind": "reasoning", "text": "\n".join(f"thought {number}" for number in range(50)), "turn": "m"}
    made = [happened("execution.step", **step), happened("execution.output", **thought)]
    asyncio.run(append(tmp_path / "store", [made]))
    pipe, terminal = run(tmp_path, "read").out, on_terminal(tmp_path, "read", "--no-pager", width=80)
    for short in (pipe, terminal):
        assert "288 more lines" in short and "line 299" in short and "line 100" not in short
    assert "288 more lines (--full)" in terminal and "38 more lines (--full)" in terminal
    assert "--full" not in pipe  # what is written has no options
    full = (run(tmp_path, "read", "--full").out, on_terminal(tmp_path, "read", "--full", "--no-pager", width=80))
    for whole in full:
        assert "more lines" not in whole and all(line in whole for line in (*lines, "thought 49"))


def test_a_child_session_is_read_by_its_own_id(homes: dict[str, Path]) -> None:
    spawned = run(homes["permission"], "query", "--type", "agent.spawned", "--json").objects()[0]["event"]["payload"]
    (session,) = run(homes["permission"], "read", spawned["child"][-8:], "--json").objects()
    assert session["id"] == spawned["child"] and session["turns"]


@pytest.mark.parametrize(("ending", "begins"), [("md", "# "), ("html", "<!doctype html>"), ("json", "{")])
def test_a_file_is_new_private_and_in_the_form_of_its_ending(
    homes: dict[str, Path], tmp_path: Path, ending: str, begins: str
) -> None:
    path = tmp_path / f"session.{ending}"
    done = run(homes["demo"], "read", "--output", str(path))
    assert done.code == 0 and done.out == "" and path.read_text().startswith(begins)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = run(homes["demo"], "read", "--output", str(path))
    assert again.code == 1 and again.err.endswith("[exists]\n")


def test_export_writes_the_whole_conversation(homes: dict[str, Path], tmp_path: Path) -> None:
    stream = run(homes["demo"], "streams", "--json").objects()[0]["stream_id"]
    exported = run(homes["demo"], "export", stream, "--format", "markdown").out
    assert exported == run(homes["demo"], "read", stream, "--full", "--children", "--format", "markdown").out
    newest = run(homes["demo"], "export", "--format", "markdown")
    assert newest.out == exported and stream in newest.err
    page = tmp_path / "page"
    assert run(homes["demo"], "export", stream, "--format", "html", "-o", str(page)).code == 0
    assert page.read_text().startswith("<!doctype html>") and stat.S_IMODE(page.stat().st_mode) == 0o600
    header = json.loads(run(homes["demo"], "export", stream).out.splitlines()[0])
    assert header["durable_stream_export"] == 1
    assert run(homes["demo"], "export", stream, "--json", "--format", "html").code == 2


def test_a_page_names_the_record_that_it_ends_with(homes: dict[str, Path]) -> None:
    last = run(homes["demo"], "log", "--json").objects()[-1]
    page = run(homes["demo"], "read", "--format", "html").out
    assert last["hash"] in page and f"position {last['position']} " in page
    assert last["hash"] not in run(homes["demo"], "read", "--format", "markdown").out


@pytest.mark.parametrize("form", ["html", "markdown"])
def test_a_page_to_send_has_no_directory_of_its_author(homes: dict[str, Path], form: str) -> None:
    directory = run(homes["permission"], "streams", "--json").objects()[0]["directory"]
    assert directory.startswith("/home/")
    plain = run(homes["permission"], "export", "--format", form).out
    sent = run(homes["permission"], "export", "--format", form, "--redact-paths").out
    assert directory in plain and "/home/" not in sent and "/project" in sent
    assert sent.count("\n") == plain.count("\n")
    assert run(homes["permission"], "export", "--redact-paths").code == 2
    assert "/home/" not in run(homes["permission"], "read", "--json", "--children", "--redact-paths").out


def test_an_exported_page_has_the_timeline_and_the_files_and_leads_from_them_to_the_conversation(
    homes: dict[str, Path],
) -> None:
    page = run(homes["demo"], "export", "--format", "html").out
    timeline = page[page.index("<figure") : page.index("</figure>")]
    assert timeline.count("<title>turn ") == 2 and "Where the time went" in timeline and "<script" not in page
    links = set(re.findall(r'href="#([^"]+)"', page))
    tools = run(homes["demo"], "query", "--type", "execution.step", "--json").objects()
    calls = {each["event"]["id"] for each in tools if each["event"]["payload"]["kind"] != "inference"}
    assert calls <= links and links <= set(re.findall(r'id="([^"]+)"', page)), "each bar leads to a place in the page"
    files = page[page.index('class="changed"') : page.index("</ul>")]
    assert "login.py" in files and "+1 −1" in files
    sent = run(homes["demo"], "export", "--format", "html", "--redact-paths").out
    assert "/home/" not in sent and "<figure" in sent
    assert "<figure" not in run(homes["demo"], "read", "--format", "html").out


def test_the_timeline_of_a_killed_opencode_leads_nowhere_else(tmp_path: Path) -> None:
    page = run(make_home(tmp_path / "home", "kill9_in_tool_then_resumed"), "export", "--format", "html").out
    assert 'class="tool"' in page and set(re.findall(r'href="#([^"]+)"', page)) <= set(
        re.findall(r'id="([^"]+)"', page)
    )


def test_what_cannot_be_read_is_an_error(homes: dict[str, Path], empty: Path) -> None:
    assert run(homes["demo"], "read", "nobody").err.endswith("[not-found]\n")
    assert run(empty, "read").err.endswith("[no-log]\n")
    assert run(homes["demo"], "read", "ses_", "--project", "all").code == 2
