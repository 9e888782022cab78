"""When the end of an ordinary turn rings, and what the terminals say of their focus."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sidecar.background.people.rings import OLD_MS, QUIET, Focus, why_not_raised, why_not_sent
from sidecar.background.people.terminals import FOLDER, MOST_BYTES, read_focus
from sidecar.notify_config import NotifyConfig, Turns


@pytest.mark.parametrize(
    ("turns", "outcome", "took_ms", "why"),
    [
        ("off", "failed", 900_000, "off"),
        ("away", "aborted", 900_000, "aborted"),
        ("away", "completed", 59_999, "short"),
        ("away", "completed", 60_000, ""),
        ("away", "failed", 59_999, "short"),
        ("always", "failed", 60_000, ""),
        ("always", "completed", 59_999, "short"),
        ("unless-in-front", "interrupted", 60_000, ""),
        ("unless-in-front", "stopped", 60_000, ""),
    ],
)
def test_which_turns_are_worth_a_message(turns: Turns, outcome: str, took_ms: int, why: str) -> None:
    assert why_not_raised(NotifyConfig(turns=turns), outcome, took_ms) == why
    assert not why or why in QUIET


@pytest.mark.parametrize(
    ("turns", "focus", "age_ms", "why"),
    [
        ("away", "away", 0, ""),
        ("away", "front", 0, "in-front"),
        ("away", "unknown", 0, "focus-unknown"),
        ("unless-in-front", "away", 0, ""),
        ("unless-in-front", "front", 0, "in-front"),
        ("unless-in-front", "unknown", 0, ""),
        ("always", "front", 0, ""),
        ("always", "unknown", OLD_MS, ""),
        ("always", "away", OLD_MS + 1, "old"),
    ],
)
def test_where_the_terminal_is_decides(turns: Turns, focus: Focus, age_ms: int, why: str) -> None:
    assert why_not_sent(NotifyConfig(turns=turns), focus, age_ms) == why
    assert not why or why in QUIET


def test_only_terminals_that_run_and_tell_their_focus_count(tmp_path: Path) -> None:
    assert read_focus(tmp_path) == {}
    folder = tmp_path / FOLDER
    folder.mkdir()

    def told(pid: int, session: object, focus: str) -> None:
        (folder / f"{pid}.json").write_text(json.dumps({"session": session, "focus": focus}))

    told(os.getpid(), "ses_1", "away")
    assert read_focus(tmp_path) == {"ses_1": "away"}
    told(os.getppid(), "ses_1", "front")
    assert read_focus(tmp_path) == {"ses_1": "front"}, "one of two terminals is in front"
    told(2**22 + 1, "ses_2", "front")
    told(os.getpid(), None, "front")
    told(os.getppid(), ["ses_1"], "x" * MOST_BYTES)
    (folder / "7.json").write_text("[")
    assert read_focus(tmp_path) == {}
    assert not (folder / f"{2**22 + 1}.json").exists(), "the file of a terminal that was killed"
