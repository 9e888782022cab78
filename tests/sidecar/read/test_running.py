"""What a session runs now: from the start of a call to its step, and not while the session waits for a person."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sidecar.background.board import Board
from sidecar.cli.work.top import _sessions
from sidecar.read.catalog import Catalog
from sidecar.read.telling.starts import Starts
from streams.event import StreamEvent
from streams.lineage import STEP_STARTED
from streams.store import Record
from tests.bridge.opencode.playing2 import play2
from tests.sidecar.cli.helpers import append, run
from tests.sidecar.read.conversations import folded, happened, recorded

STEP, ASKS = "execution.step", "workflow.checkpoint"
OPENCODE_1 = ("permission_once", "parallel_tools", "question_aborted", "abort_tool", "shell_abort")
OPENCODE_2 = ("2/permission", "2/tools", "2/abort", "2/question", "2/background")


def events_of(name: str) -> list[StreamEvent]:
    """The events of a recording of OpenCode 1, or of OpenCode 2 (``2/NAME``), of a process that may still run."""
    events = list(play2(name[2:]).log.events.values()) if name.startswith("2/") else recorded(name)
    for event in events:
        event.metadata.pop("pid", None)
    return events


def records(events: list[StreamEvent]) -> list[Record]:
    return [Record(event, position, position, "") for position, event in enumerate(events)]


@pytest.mark.parametrize("name", [*OPENCODE_1, *OPENCODE_2])
def test_a_call_is_shown_from_its_start_to_its_step_and_not_while_it_waits(name: str) -> None:
    catalog, seen = Catalog(), set[str]()
    for record in records(events_of(name)):
        catalog.apply(record)
        event, part = record.event, str(record.event.payload.get("part"))
        if not (session := catalog.sessions.get(str(event.payload.get("session")))):
            continue
        shown = {call.since_ms for call in session.running}
        assert not shown or (session.is_active and not session.asks)
        if event.type == STEP_STARTED:
            assert event.ts in shown or session.asks
            assert session.calls[part].text.startswith(event.payload["tool"])
            seen |= {part}
        elif event.type == STEP:
            assert part not in session.calls
        elif event.type == ASKS:
            assert bool(shown) is (event.payload["state"] != "asked" and bool(session.calls))
        kept = Catalog.load(catalog.dump()).sessions[session.id]
        assert kept.running == session.running
    assert seen and not any(session.running for session in catalog.sessions.values())


def until_it_runs(name: str) -> list[StreamEvent]:
    events = events_of(name)
    return events[: 1 + next(n for n, event in enumerate(events) if event.type == STEP_STARTED)]


@pytest.mark.parametrize("name", ["run_tool", "2/tools"])
def test_top_tree_and_log_show_the_call_and_since_when(name: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    events = until_it_runs(name)
    tool, since = events[-1].payload["tool"], events[-1].ts
    asyncio.run(append(home / "store", [[event] for event in events]))
    (state,) = run(home, "top", "--json").objects()
    (row,) = state["sessions"]
    assert row["began"] == since and row["done"] is None and row["doing"].startswith(f"{tool}: ")
    assert f"runs {row['doing']} · for " in run(home, "top").out
    (root,) = run(home, "tree", "--json").objects()
    assert root["running"] == [{"since_ms": since, "text": row["doing"]}] and root["asks"] == 0
    assert f"runs {row['doing']} since " in run(home, "tree").out
    assert f"runs: {row['doing']}" in run(home, "log").out.splitlines()[-1]


def test_what_waits_for_a_person_does_not_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    events = events_of("permission_once")
    asks = next(n for n, event in enumerate(events) if event.type == ASKS)
    assert STEP_STARTED in {event.type for event in events[:asks]}, "OpenCode 1 asks when the call already runs"
    asyncio.run(append(home / "store", [[event] for event in events[: asks + 1]]))
    for shown in (run(home, "top").out, run(home, "tree").out):
        assert "waiting for you" in shown and "runs bash" not in shown
    assert run(home, "tree", "--json").objects()[0]["asks"] == 1


def test_what_is_past_is_told_without_the_starts_of_calls_that_ended() -> None:
    ended, starts = Starts(), Starts()
    assert [ended.holds(record, 0, "") for record in records(events_of("parallel_tools"))].count(True) == 2
    assert ended.running() == []
    runs = [record for record in records(until_it_runs("run_tool")) if starts.holds(record, 1, "1")]
    assert starts.running() == [(runs[0], 1, "1")]


def test_several_calls_are_counted_and_counts_of_steps_stay() -> None:
    events = events_of("parallel_tools")
    board, most = Board(Catalog()), ""
    for record in records(events):
        board.apply(record)
        state = board.state(record.event.ts)
        most = max([most, *(row[-1] for row in _sessions(state))], key=len)
    assert "(and 1 more)" in most
    without = [event for event in events if event.type != STEP_STARTED]
    assert len(without) == len(events) - 2
    (told,), (bare,) = folded(events), folded(without)
    assert [(turn.steps, turn.cost, len(turn.items)) for turn in told.turns] == [
        (turn.steps, turn.cost, len(turn.items)) for turn in bare.turns
    ]


def test_a_call_that_never_ended_does_not_run_after_its_turn() -> None:
    catalog = Catalog()
    for record in records(
        [
            happened("turn.started", message="m"),
            happened(STEP_STARTED, part="p", tool="bash", input={"command": "sleep 60"}),
            happened("turn.ended", message="m", outcome="interrupted"),
            happened("turn.started", message="n"),
        ]
    ):
        catalog.apply(record)
    assert catalog.sessions["ses_root"].calls == {}
