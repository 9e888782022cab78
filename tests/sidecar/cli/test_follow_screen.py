"""``log --follow`` without a stream as a person sees it: two sessions, a new one, an ask that waits and its answer."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from bridge.opencode.capture.translate import Translator
from streams.identity import seeded_identity
from tests.real.terminal import Terminal
from tests.sidecar.cli.helpers import ROOT, append, command, environment, events_of
from tests.sidecar.cli.test_read import SCREENS


def test_the_screen_is_as_it_was_drawn(tmp_path: Path) -> None:
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
    golden = SCREENS / f"follow-{width}.txt"
    if os.environ.get("DRAW_SCREENS"):
        golden.write_text(screen)
    assert screen == golden.read_text(), "if it is meant: DRAW_SCREENS=1 pytest tests/sidecar/cli/test_follow_screen.py"
