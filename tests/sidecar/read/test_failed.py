"""What runs and what failed is seen alike in every view: one fact, for OpenCode 1 and 2."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.background.board import Board
from sidecar.cli.work.top import _sessions
from sidecar.read.fields import has_failed
from sidecar.read.past.compare import figures
from sidecar.read.past.drawing import svg
from sidecar.read.past.lanes import Lanes
from sidecar.read.past.traces import chrome, otlp
from sidecar.read.rendering.call_starts import Starts
from sidecar.read.rendering.describe import describe
from sidecar.read.story.catalog import Catalog
from streams.event import StreamEvent
from streams.lineage import STEP_STARTED
from tests.bridge.opencode.playing2 import play2
from tests.sidecar.cli.helpers import append, run
from tests.sidecar.read.conversations import every_recording, happened, recorded, sessions_of, written
from tests.sidecar.read.story.playing import catalog_of, past_of, records_of, snapshot, spans_of

LATE = 4_000_000_000_000


def steps(events: list[StreamEvent]) -> Iterator[StreamEvent]:
    return (e for e in events if e.type == "execution.step" and e.payload.get("kind") != "inference")


@pytest.mark.parametrize("name", ["bash_exit_1", "tools", "tool_throws_read"])
def test_a_failed_step_is_failed_everywhere(name: str) -> None:
    events = dict(every_recording())[name]
    failed = {event.id for event in steps(events) if has_failed(event.payload)}
    assert failed and failed == {event.id for event in steps(events) if describe(event).tone == "bad"}
    spans = spans_of(events)
    assert {span.event for span in spans if span.kind == "tool" and span.state == "error"} == failed
    assert Lanes(spans, LATE).sums()["errors"] >= len(failed)
    slices = {each["args"].get("event"): each["args"] for each in chrome(spans, LATE)["traceEvents"] if "cat" in each}
    sent = otlp(spans, LATE)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    for span, told in zip(spans, sent, strict=True):
        assert (told["status"] == {"code": 2}) == (span.state == "error")
        if span.facts.get("exit"):
            assert {"key": "durable_stream.exit_code", "value": {"intValue": "3"}} in told["attributes"]
            assert slices[span.event]["exit"] == 3
    drawn, _ = svg(Lanes(spans, LATE), 1000, lambda span: f"#{span.event}")
    assert all(f'href="#{event}"' in drawn for event in failed) and 'class="error"' in drawn
    assert {event.id for event in steps(events)} & {e.id for mark, e in marked(events) if mark == "error"} == failed
    past = past_of(records_of(events))
    assert figures(past)["failed"] == len(failed)
    assert written(sessions_of(events), "html").count('class="facts bad"') == len(failed)


@pytest.mark.parametrize("name", ["bash_exit_1", "tools"])
def test_a_command_with_another_code_than_0_has_failed(name: str) -> None:
    codes = [
        (e.payload["metadata"]["exit"], has_failed(e.payload))
        for e in steps(dict(every_recording())[name])
        if _ended(e)
    ]
    assert (3, True) in codes and all(failed == bool(code) for code, failed in codes)


def _ended(step: StreamEvent) -> bool:
    return (step.payload.get("metadata") or {}).get("exit") is not None


def test_the_head_and_the_timeline_count_the_same_failures() -> None:
    for name, events in every_recording():
        marks = [event for mark, event in marked(events) if mark == "error" and event.type != "capture.gap"]
        inside = [event for event in marks if event.type != "agent.error" or in_turn(event, events)]
        assert Lanes(spans_of(events), LATE).sums()["errors"] == len(inside), name


def in_turn(error: StreamEvent, events: list[StreamEvent]) -> bool:
    """Whether a turn was open: of an error before or after it, a timeline has no bar."""
    before = [e for e in events[: events.index(error)] if e.payload.get("session") == error.payload["session"]]
    turns = [event.type for event in before if event.type in ("turn.started", "turn.ended", "lifecycle.session.ended")]
    return turns[-1:] == ["turn.started"]


def marked(events: list[StreamEvent]) -> Iterator[tuple[str, StreamEvent]]:
    return ((mark, events[number]) for number, mark in past_of(records_of(events)).marks())


def test_a_turn_whose_end_was_not_recorded_has_not_failed() -> None:
    turns = [happened("turn.started", 1, message="m"), happened("turn.started", 9, message="n")]
    first, second = [span for span in spans_of(turns) if span.kind == "turn"]
    assert (first.end, first.state, second.end, second.state) == (9, "over", None, "running")
    assert Lanes(spans_of(turns), 9).sums()["errors"] == 0


def test_a_pause_ends_with_its_turn_or_the_next_attempt() -> None:
    retries = [happened("opencode.session.retry.scheduled", ts, at_ms=ts + 50) for ts in (10, 30)]
    ends = (happened("turn.ended", 40, message="m", outcome="aborted"),)
    for model in ({}, {"model": {"provider": "mock", "model": "m"}}):
        events = [happened("turn.started", 1, message="m", **model), *retries, *ends]
        pauses = [(span.start, span.end, span.state) for span in spans_of(events) if span.kind == "pause"]
        assert pauses == [(10, 30, "completed"), (30, 40, "completed")]


def test_each_attempt_of_a_model_call_and_the_pause_after_it_has_a_bar() -> None:
    found = [
        (span.kind, span.state)
        for span in spans_of(dict(every_recording())["retry"])
        if span.kind in ("model", "pause")
    ]
    assert found == [("model", "error"), ("pause", "completed")] * 2 + [("model", "completed")]
    sums = Lanes(spans_of(dict(every_recording())["retry"]), 0, 0, LATE).sums()
    chain = dict(sums["chain"])
    assert chain["waiting to try again"] > 6000 > 500 > chain["mock-1"], "the pauses took nearly all of the time"
    spans = spans_of(dict(every_recording())["retry_exhausted"])
    assert [span.kind for span in spans if span.state == "error" and span.kind == "model"] == ["model"] * 4
    assert len([span for span in spans if span.kind == "pause"]) == 3, "the first, the second and the fourth"


STEP, ASKS = "execution.step", "workflow.checkpoint"
OPENCODE_1 = ("permission_once", "parallel_tools", "question_aborted", "abort_tool", "shell_abort")
OPENCODE_2 = ("2/permission", "2/tools", "2/abort", "2/question", "2/background")


def events_of(name: str) -> list[StreamEvent]:
    """The events of a recording of OpenCode 1, or of OpenCode 2 (``2/NAME``), of a process that may still run."""
    events = list(play2(name[2:]).log.events.values()) if name.startswith("2/") else recorded(name)
    for event in events:
        event.metadata.pop("pid", None)
    return events


@pytest.mark.parametrize("name", [*OPENCODE_1, *OPENCODE_2])
def test_a_call_is_shown_from_its_start_to_its_step_and_not_while_it_waits(name: str) -> None:
    records, seen = records_of(events_of(name)), set[str]()
    story = snapshot(records)
    for record in records:
        catalog = Catalog(story, record.position)
        event, call = record.event, str(record.event.payload.get("call"))
        if not (session := catalog.sessions.get(str(event.payload.get("session")))):
            continue
        shown = {call.since_ms for call in session.running}
        assert not shown or (session.is_active and not session.asks)
        if event.type == STEP_STARTED:
            assert event.ts in shown or session.asks
            assert session.calls[call].text.startswith(event.payload["tool"])
            seen |= {call}
        elif event.type == STEP:
            assert call not in session.calls
        elif event.type == ASKS:
            assert bool(shown) is (event.payload["state"] != "asked" and bool(session.calls))
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
    assert [ended.holds(record, 0, "") for record in records_of(events_of("parallel_tools"))].count(True) == 2
    assert ended.running() == []
    runs = [record for record in records_of(until_it_runs("run_tool")) if starts.holds(record, 1, "1")]
    assert starts.running() == [(runs[0], 1, "1")]


def test_several_calls_are_counted_and_counts_of_steps_stay() -> None:
    events = events_of("parallel_tools")
    records, board, most = records_of(events), Board(), ""
    story = snapshot(records)
    for record in records:
        board.take(Catalog(story, record.position))
        board.remember(record)
        state = board.state(record.event.ts)
        most = max([most, *(row[-1] for row in _sessions(state))], key=len)
    assert "(and 1 more)" in most
    without = [event for event in events if event.type != STEP_STARTED]
    assert len(without) == len(events) - 2
    (told,), (bare,) = sessions_of(events), sessions_of(without)
    assert [(turn.steps, turn.cost, len(turn.items)) for turn in told.turns] == [
        (turn.steps, turn.cost, len(turn.items)) for turn in bare.turns
    ]


def test_a_call_that_never_ended_does_not_run_after_its_turn() -> None:
    catalog = catalog_of(
        [
            happened("turn.started", message="m"),
            happened(STEP_STARTED, part="p", tool="bash", input={"command": "sleep 60"}),
            happened("turn.ended", message="m", outcome="interrupted"),
            happened("turn.started", message="n"),
        ]
    )
    assert catalog.sessions["ses_root"].calls == {}
