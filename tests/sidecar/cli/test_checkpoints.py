"""``checkpoints``: what was asked does not vanish when it is answered, wherever that was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sidecar.read.ask_text import checkpoint_id
from tests.sidecar.cli.helpers import append, run
from tests.sidecar.cli.test_projects import asked, happened, session
from tests.streams.builders import event

FIRST, SECOND, THIRD, LAST = (checkpoint_id("ses_a", f"per_{each}") for each in "1234")


def answered(request: str, by: str, **payload: Any) -> Any:
    payload |= {"session": "ses_a", "state": "replied", "kind": "permission", "request": request}
    return event(stream="ses_a", type_="workflow.checkpoint", ts=20, actor=by, payload=payload)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A session in which one ask was answered, one fell with it, one outlived its turn, and one waits."""
    place = tmp_path / "home"
    place.mkdir(mode=0o700)
    made = [
        *session("ses_a", tmp_path, 5),
        happened("ses_a", "turn.started", message="m_ses_a"),
        *(asked("ses_a", f"per_{n}", permission="bash", patterns=[f"make {n}"]) for n in (1, 2, 3)),
        answered("per_1", "user", reply="reject", message="no"),
        answered("per_2", "opencode", reply="reject", **{"with": "per_1"}),
        happened("ses_a", "turn.ended", message="m_ses_a", outcome="completed"),
        happened("ses_a", "turn.started", message="m_2"),
        asked("ses_a", "per_4", permission="bash", patterns=["make 4"]),
    ]
    asyncio.run(append(place / "store", [made]))
    return place


def test_what_was_answered_in_opencode_stays_listed(home: Path) -> None:
    assert [each["id"] for each in run(home, "checkpoints", "--json").objects()] == [LAST]
    found = {each["id"]: each for each in run(home, "checkpoints", "--all", "--json").objects()}
    assert {name: (each["state"], each["by"], each["why"]) for name, each in found.items()} == {
        FIRST: ("answered", "user", ""),
        SECOND: ("withdrawn", "", f"rejected with {FIRST}"),
        THIRD: ("withdrawn", "", "its turn ended"),
        LAST: ("queued", "", ""),
    }
    said = run(home, "checkpoints", "--all").out
    for words in ("answered, in OpenCode", f"withdrawn: rejected with {FIRST}", "withdrawn: its turn ended"):
        assert words in said
    assert "answered, in OpenCode" in run(home, "checkpoints", FIRST[:9]).out
