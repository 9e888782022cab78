"""What stands behind ``/background``, and what it shows."""

from __future__ import annotations

import pytest

from sidecar.background.background_command import MAX_ASK, RECENT_MS, listing, parse
from sidecar.background.intents.state import Intent
from sidecar.background.people.checkpoints import Checkpoint


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("", ("list", "", "")),
        (" list ", ("list", "", "")),
        ("cancel int_1", ("cancel", "int_1", "")),
        ("answer chk_1 on Monday, please", ("answer", "chk_1", "on Monday, please")),
        ("cancel", ("help", "", "")),
        ("answer chk_1", ("help", "", "")),
        ("destroy int_1", ("help", "", "")),
    ],
)
def test_a_command_is_understood_or_explained(text: str, asked: tuple[str, str, str]) -> None:
    assert parse(text) == asked


def test_what_runs_what_ended_lately_and_what_waits_is_listed() -> None:
    about = {"prompt": "p", "parent": None, "directory": "/p", "created": 0}
    runs = Intent("int_1", title="tests", state="running", started=0, cost=0.5, **about)  # type: ignore[arg-type]
    ended = Intent("int_2", title="old", state="failed", ended=0, reason="timeout", **about)  # type: ignore[arg-type]
    waits = Checkpoint(id="chk_1", kind="permission", session="s", text="bash\nrm\x1b[2J" + "x" * 500, opened=0)
    shown = listing([ended, runs], [waits], RECENT_MS - 1).splitlines()
    assert shown[0].startswith("int_2 · failed") and "timeout" in shown[0]
    assert shown[1].startswith("int_1 · running · ") and "tests" in shown[1]
    runs.asks.append("chk_1")
    assert listing([runs], [waits], 1).startswith("int_1 · waiting for you · ")
    asks = next(line for line in shown if line.startswith("chk_1"))
    assert len(asks) < MAX_ASK + 80 and "\x1b" not in asks and "characters left out" in asks
    assert asks.partition(" · since ")[0].endswith("xxx")
    always = Checkpoint(id="chk_2", kind="permission", session="s", text="bash rm", opened=0, always=["rm *"])
    assert "rm *" in listing([], [always], 0)
    assert "int_2" not in listing([ended, runs], [], RECENT_MS)
    assert len(listing([], [], 0).splitlines()) == 1
