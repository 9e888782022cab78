"""Whole screens as a person sees them: ``changes``, a log that is followed, and what waits, failed and was lost."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.capture.translate import Translator
from sidecar.background.intents.state import Intent
from sidecar.background.intents.texts import notice_text
from sidecar.home import Home
from streams.event import StreamEvent
from streams.identity import seeded_identity
from tests.real.terminal import Terminal
from tests.sidecar.cli.helpers import ROOT, append, command, environment, events_of, make_home
from tests.sidecar.cli.test_losses import begun, gap
from tests.sidecar.cli.test_read import check_drawn, drawn, shown
from tests.sidecar.cli.test_terminal import on_terminal
from tests.sidecar.cli.test_top import intent, made_by
from tests.sidecar.read.conversations import DEMO
from tests.streams.builders import event


def test_a_log_that_is_followed(tmp_path: Path) -> None:
    width = 80
    translator = Translator(seeded_identity(2))
    chat, asking = events_of("chat", translator), events_of("permission_once", translator)
    asks = next(n for n, event in enumerate(asking, 1) if event.type == "workflow.checkpoint")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    asyncio.run(append(home / "store", [chat[:-1]]))
    arguments = command(home, "log", "--follow", "--last", "4")
    with Terminal(arguments, ROOT, environment(HOME="/home/dev"), columns=width) as terminal:
        terminal.wait_for("Press Ctrl-C to stop")
        asyncio.run(append(home / "store", [asking[:asks]]))
        terminal.wait_for("waiting for you")
        asyncio.run(append(home / "store", [chat[-1:], asking[asks:]]))
        lines = terminal.wait_until(lambda lines: sum("turn end" in line for line in lines) == 2, "both ends")
    screen = "\n".join(lines).rstrip("\n") + "\n"
    check_drawn(f"follow-{width}", screen)


@pytest.fixture(scope="module")
def changes_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only: edits, an approved command, and one that was rejected in a session of its own."""
    return make_home(tmp_path_factory.mktemp("changes") / "home", DEMO, "permission_reject")


@pytest.mark.parametrize(("options", "width"), [([], 80), (["--diff"], 200)])
def test_what_agents_changed(changes_home: Path, options: list[str], width: int) -> None:
    output = on_terminal(changes_home, "changes", *options, width=width, HOME="/home/ada")
    name = "-".join(["changes", *(option.strip("-") for option in options)])
    check_drawn(f"{name}-{width}", shown(drawn(output, width)))


DAY_MS = 86_400_000
CHANGES = (
    (r"\d\d [A-Z][a-z]{2},(\s+)\d\d:\d\d", r"DD Mon,\1hh:mm"),
    (r"\b\d+(m|h|d) (ago|ahead)|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\b\d+[smhd]\b", "N"),
    (r"^\d\d:\d\d:\d\d \w{6}", "hh:mm:ss EVENT_"),
    (r"(?<=\S) {2,}|─+", "  "),  # how wide a column is depends on the ages in it
)
"""What differs from day to day."""


def woken(type_: str, **payload: Any) -> StreamEvent:
    return event(stream="ses_wake", type_=type_, payload={"session": "ses_wake", **payload})


@pytest.fixture
def troubled_home(healthy_home: Home) -> Path:
    """A session, a model and background work wait for a person; work failed, ended and is queued; hooks were lost."""
    asking = events_of("permission_once", Translator(seeded_identity(2)))
    asks = next(n for n, event in enumerate(asking, 1) if event.type == "workflow.checkpoint")
    ts, lately = asking[asks - 1].ts + 60_000, time.time_ns() // 1_000_000 - DAY_MS // 2
    shop = {"directory": "/home/ada/shop", "ts": ts}
    begins = ("intent.started", {"session": "ses_x", "parent": None, "ts": ts})
    changes = {"saved": True, "count": 1, "files": [], "diff": ""}
    ask = {"intent": "int_asks", "session": "ses_x", "kind": "permission", "request": "per_1", "to": "ses_parent"}
    ask |= {"work": "clean the build", "options": ["once", "always", "reject"], "always": ["rm *"]}
    question = {"kind": "ask", "session": "ses_y", "options": ["red", "blue"], "to": "ses_y"}
    wrong = {"reason": "HTTP 401: the key is wrong", "code": "error"}
    done = Intent("int_done", "p", "count lines", "ses_1", "/p", 0)
    message = notice_text(done, "completed", {"result": "**42** lines"})
    mark = {"durable_stream": {"key": "ntc_done"}}
    alert = {"message": "alr_1", "kind": "alert", "to": None, "about": "int_wrong", "stages": [["ntfy:1f3a9c2e"]]}
    text = "count words in shop failed: HTTP 401: the key is wrong (int_wrong)"
    made = [
        *asking[:asks],
        begun("ses_wake", "b1"),
        woken("agent.input", message="m", parts=[{"type": "text", "text": message, "metadata": mark}]),
        woken("turn.started", message="m", agent="build"),
        gap("memory_full", 3, "b1"),
        *intent("int_asks", begins, title="clean the build", **shop),
        made_by("intents", "intent.paused", intent="int_asks", checkpoint="chk_one", ts=ts),
        made_by("messages", "message.queued", message="chk_one", text="bash rm -rf build", **ask, **shop),
        made_by("messages", "message.queued", message="chk_two", text="Which colour?", **question, **shop),
        *intent("int_changed", begins, ("intent.completed", {"ts": ts, "changes": changes}), title="tidy", **shop),
        *intent("int_wrong", begins, ("intent.failed", {"ts": lately, **wrong}), title="count words", **shop),
        *intent("int_cut", begins, ("intent.interrupted", {"ts": ts}), title="port", **shop),
        *intent("int_queued", title="translate the manual into a language that nobody of us can read", **shop),
        made_by("messages", "message.queued", message="ntc_done", kind="result", to="ses_wake", text=message),
        made_by("messages", "message.queued", title="OpenCode", text=text, ts=ts, due=None, **alert),
        made_by("messages", "message.failed", message="alr_1", channel="ntfy:1f3a9c2e", error="404", attempt=3, ts=ts),
    ]  # fmt: skip
    asyncio.run(append(healthy_home.store_path, [[event] for event in made]))
    return healthy_home.path


@pytest.mark.parametrize("verb", ["status", "top --once", "intents", "checkpoints", "notices", "log ses_wake"])
def test_what_waits_failed_and_was_lost(troubled_home: Path, verb: str) -> None:
    screen = shown(drawn(on_terminal(troubled_home, *verb.split(), width=80, HOME="/home/ada"), 80))
    # A long path breaks wherever the line ends.
    screen = re.sub(r"\s*".join(map(re.escape, str(troubled_home))), "HOME", screen)
    for pattern, text in CHANGES:
        screen = re.sub(pattern, text, screen, flags=re.MULTILINE)
    check_drawn(f"told-{verb.split()[0]}-80", screen)
