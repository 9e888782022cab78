"""What waits, failed and was lost, on a terminal of 80 columns: each list says the same, and cuts none of it."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.capture.translate import Translator
from sidecar.background.intents.state import Intent
from sidecar.background.intents.texts import told
from sidecar.home import Home
from streams.event import StreamEvent
from streams.identity import seeded_identity
from tests.sidecar.cli.helpers import append, events_of
from tests.sidecar.cli.test_losses import begun, gap
from tests.sidecar.cli.test_read import SCREENS, drawn, shown
from tests.sidecar.cli.test_terminal import on_terminal
from tests.sidecar.cli.test_top import intent, made_by
from tests.streams.builders import event

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
    changes = {"ref": "refs/x", "count": 1, "files": [], "diff": ""}
    ask = {"intent": "int_asks", "session": "ses_x", "kind": "permission", "request": "per_1", "tell": "ses_parent"}
    ask |= {"work": "clean the build", "options": ["once", "always", "reject"], "always": ["rm *"]}
    question = {"kind": "ask", "session": "ses_y", "options": ["red", "blue"], "tell": "ses_y"}
    wrong = {"reason": "HTTP 401: the key is wrong", "code": "error"}
    message = told(Intent("int_done", "p", "count lines", "ses_1", "/p", 0), "completed", {"result": "**42** lines"})
    mark = {"durable_stream": {"key": "ntc_done"}}
    alert = {"alert": "alr_1", "session": None, "about": "int_wrong", "stages": [["ntfy:1f3a9c2e"]], "how": ""}
    text = "count words in shop failed: HTTP 401: the key is wrong (int_wrong)"
    made = [
        *asking[:asks],
        begun("ses_wake", "b1"),
        woken("agent.input", message="m", parts=[{"type": "text", "text": message, "metadata": mark}]),
        woken("turn.started", message="m", agent="build"),
        gap("memory_full", 3, "b1"),
        *intent("int_asks", begins, title="clean the build", **shop),
        made_by("intents", "intent.paused", intent="int_asks", checkpoint="chk_one", ts=ts),
        made_by("checkpoints", "checkpoint.opened", checkpoint="chk_one", text="bash rm -rf build", **ask, **shop),
        made_by("checkpoints", "checkpoint.opened", checkpoint="chk_two", text="Which colour?", **question, **shop),
        *intent("int_changed", begins, ("intent.completed", {"ts": ts, "changes": changes}), title="tidy", **shop),
        *intent("int_wrong", begins, ("intent.failed", {"ts": lately, **wrong}), title="count words", **shop),
        *intent("int_cut", begins, ("intent.interrupted", {"ts": ts}), title="port", **shop),
        *intent("int_queued", title="translate the manual into a language that nobody of us can read", **shop),
        made_by("intents", "notice.queued", notice="ntc_done", session="ses_wake", text=message, key="k"),
        made_by("alerts", "alert.raised", title="OpenCode", text=text, ts=ts, due=None, **alert),
        made_by("alerts", "alert.failed_to", alert="alr_1", channel="ntfy:1f3a9c2e", error="404", attempt=3, ts=ts),
    ]  # fmt: skip
    asyncio.run(append(healthy_home.store_path, [[event] for event in made]))
    return healthy_home.path


@pytest.mark.parametrize("verb", ["status", "top --once", "intents", "checkpoints", "notices", "log ses_wake"])
def test_the_screen_is_as_it_was_drawn(troubled_home: Path, verb: str) -> None:
    screen = shown(drawn(on_terminal(troubled_home, *verb.split(), width=80, HOME="/home/ada"), 80))
    # A long path breaks wherever the line ends.
    screen = re.sub(r"\s*".join(map(re.escape, str(troubled_home))), "HOME", screen)
    for pattern, text in CHANGES:
        screen = re.sub(pattern, text, screen, flags=re.MULTILINE)
    golden = SCREENS / f"told-{verb.split()[0]}-80.txt"
    if os.environ.get("DRAW_SCREENS"):
        golden.write_text(screen)
    assert screen == golden.read_text(), "if it is meant: DRAW_SCREENS=1 pytest tests/sidecar/cli/test_told_screens.py"
