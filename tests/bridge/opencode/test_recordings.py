"""What each recording of a real OpenCode 1 and 2 becomes: the ``.events`` file beside it has every event of its log.

``python -m tests.bridge.opencode.test_recordings`` writes these files anew. What changes in them is what changes for
everyone who reads a log.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.lineage import CREATED, RESUMED, STEP_STARTED, in_turn, span_id, trace_id
from tests.bridge.opencode import playing, playing2
from tests.bridge.opencode.playing import Log, story

ALL = [
    *(playing.RECORDINGS / f"{name}.events" for name in playing.names()),
    *(playing2.RECORDINGS / f"{name}.events" for name in playing2.names()),
]

BEGINS = {CREATED, RESUMED, "human.input", "agent.input"}
"""What needs no cause."""

BEGINS_IN_1 = BEGINS | {"agent.error", "opencode.command.executed", "opencode.message.removed"}
"""OpenCode 1 also names no cause of a compaction, and of what happened outside of a turn."""


def log_of(path: Path) -> Log:
    play = playing2.play2 if path.parent == playing2.RECORDINGS else playing.play
    return play(path.stem).log


@pytest.fixture(params=ALL, ids=lambda path: f"{path.parent.name}/{path.stem}")
def path(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_a_recording_becomes_these_events(path: Path) -> None:
    assert story(log_of(path)) == path.read_text().splitlines()


def test_every_event_has_a_cause_a_trace_and_a_project(path: Path) -> None:
    projects: dict[str, str | None] = {}
    before, is_second = set[str](), path.parent == playing2.RECORDINGS
    begun = set[tuple[str, str | None]]()
    for event in log_of(path).events.values():
        session = event.payload.get("session", "")
        if "project" in event.payload:
            projects[session] = event.payload["project"]
        assert event.metadata.get("project") == projects.get(session), event.type
        begins = event.type in (BEGINS if is_second else BEGINS_IN_1) or event.payload.get("trigger") == "compaction"
        assert event.causation_id in before if event.causation_id else begins, event.type
        before.add(event.id)
        if event.type == "turn.started":
            begun.add((session, event.payload["message"]))
        if session:
            own = f"00-{trace_id(event.stream_id)}-{span_id(session)}-01"
            in_its_turn = in_turn(own, str(event.correlation_id))
            assert event.traceparent == (in_its_turn if (session, event.correlation_id) in begun else own), event.type
            assert event.traceparent == in_its_turn or event.payload.get("turn") is None, event.type


def test_a_call_that_runs_is_told_once_before_its_one_step(path: Path) -> None:
    told, ended = [], []
    for event in log_of(path).events.values():
        if event.type == STEP_STARTED:
            assert event.payload["part"] not in ended
            told.append(event.payload["part"])
        elif event.type == "execution.step" and "part" in event.payload:
            ended.append(event.payload["part"])
    assert len(set(told)) == len(told) and len(set(ended)) == len(ended)


if __name__ == "__main__":
    for each in ALL:
        each.write_text("".join(f"{line}\n" for line in story(log_of(each))))
