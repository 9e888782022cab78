"""What failed is seen as failed in every view: one fact, for OpenCode 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sidecar.read.fields import has_failed
from sidecar.read.past.compare import figures
from sidecar.read.past.drawing import svg
from sidecar.read.past.lanes import Lanes
from sidecar.read.past.records import Past
from sidecar.read.past.spans import Span, Spans
from sidecar.read.past.traces import chrome, otlp
from sidecar.read.select import Family
from sidecar.read.telling.describe import describe
from streams.event import StreamEvent
from streams.store import Record
from tests.sidecar.read.conversations import every_recording, folded, happened, written

LATE = 4_000_000_000_000
RECORDED = dict(every_recording())


def steps(events: list[StreamEvent]) -> Iterator[StreamEvent]:
    return (e for e in events if e.type == "execution.step" and e.payload.get("kind") != "inference")


def spans_of(events: list[StreamEvent]) -> list[Span]:
    spans = Spans()
    for position, event in enumerate(events):
        spans.apply(Record(event, position, position, ""))
    return spans.found


@pytest.mark.parametrize("name", ["bash_exit_1", "tools", "tool_throws_read"])
def test_a_failed_step_is_failed_everywhere(name: str) -> None:
    events = RECORDED[name]
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
    past = past_of(events)
    assert figures(past.session, past.records)["failed"] == len(failed)
    assert written(folded(events), "html").count('class="facts bad"') == len(failed)


@pytest.mark.parametrize("name", ["bash_exit_1", "tools"])
def test_a_command_with_another_code_than_0_has_failed(name: str) -> None:
    codes = [(e.payload["metadata"]["exit"], has_failed(e.payload)) for e in steps(RECORDED[name]) if _ended(e)]
    assert (3, True) in codes and all(failed == bool(code) for code, failed in codes)


def _ended(step: StreamEvent) -> bool:
    return (step.payload.get("metadata") or {}).get("exit") is not None


def past_of(events: list[StreamEvent]) -> Past:
    session = events[0].payload["session"]
    past = Past(session, session, Family(session))
    for position, event in enumerate(events):
        past.add(Record(event, position, position, ""))
    return past


def test_the_head_and_the_timeline_count_the_same_failures() -> None:
    for name, events in RECORDED.items():
        marks = [event for mark, event in marked(events) if mark == "error" and event.type != "capture.gap"]
        inside = [event for event in marks if event.type != "agent.error" or in_turn(event, events)]
        assert Lanes(spans_of(events), LATE).sums()["errors"] == len(inside), name


def in_turn(error: StreamEvent, events: list[StreamEvent]) -> bool:
    """Whether a turn was open: of an error before or after it, a timeline has no bar."""
    before = [e for e in events[: events.index(error)] if e.payload.get("session") == error.payload["session"]]
    turns = [event.type for event in before if event.type in ("turn.started", "turn.ended", "lifecycle.session.ended")]
    return turns[-1:] == ["turn.started"]


def marked(events: list[StreamEvent]) -> Iterator[tuple[str, StreamEvent]]:
    return ((mark, events[number]) for number, mark in past_of(events).marks)


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
    found = [(span.kind, span.state) for span in spans_of(RECORDED["retry"]) if span.kind in ("model", "pause")]
    assert found == [("model", "error"), ("pause", "completed")] * 2 + [("model", "completed")]
    sums = Lanes(spans_of(RECORDED["retry"]), 0, 0, LATE).sums()
    chain = dict(sums["chain"])
    assert chain["waiting to try again"] > 6000 > 500 > chain["mock-1"], "the pauses took nearly all of the time"
    (failed,) = [span for span in spans_of(RECORDED["retry_exhausted"]) if span.kind == "model"]
    assert failed.state == "error" and (failed.end or 0) - failed.start > 5000
