"""A session at any moment of its past is as it was then. ``TORTURE_MOMENTS=0`` compares each moment of recordings."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from sidecar.inspector.drawn import drawn
from sidecar.read.story.catalog import Catalog
from sidecar.read.story.costs import WAYS, When, cells, costs
from sidecar.read.story.past import Past
from sidecar.read.story.timeline import Timeline
from tests.sidecar.read.story.moments import compared, of_list
from tests.sidecar.read.story.playing import RECORDINGS, eventful, past_of, recorded, records_of, snapshot
from tests.streams.sizes import size

SOME = (
    *("task_nested", "permission_once", "revert", "kill9_in_tool_then_resumed", "write_edit"),
    *("2/background", "2/permission", "2/retry", "2/crash"),
)
NAMES = [name for name in SOME if name in RECORDINGS]


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_moment_is_the_end_of_a_log_that_ends_with_it(name: str) -> None:
    if records := recorded(name):
        assert compared(records, size("MOMENTS", 1)) > 0


def test_a_moment_of_many_sessions_is_the_end_of_a_log_that_ends_with_it() -> None:
    records = records_of(eventful())
    assert all(of_list(Catalog(snapshot(records), 140)).values())
    assert compared(records, size("MOMENTS", 3)) > 0


def test_a_query_that_forgets_when_rows_died_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.read.story.catalog.ALIVE", "born <= :n")
    with pytest.raises(AssertionError):
        compared(recorded("command"))


def test_records_are_found_by_their_numbers() -> None:
    records = recorded("task_nested")
    whole = past_of(records)
    assert whole.count == len(records) > 3
    assert [record.position for record in whole.records(1, 3)] == [1, 2]
    assert whole.number(len(records)) is None and whole.last(0) is None


@pytest.mark.parametrize("way", WAYS)
def test_what_steps_cost_is_what_their_sessions_cost(way: Any) -> None:
    for name in NAMES:
        past = past_of(recorded(name))
        catalog = past.at().catalog
        some = cells(past.story, When(None, None), lambda names: [1, 3])
        found = costs(some, way, catalog.root, lambda root, at: root)
        used = catalog.figures(catalog.sessions)
        assert found.total().cost == used["cost"], name
        assert found.is_partial == (name.startswith("2/") and found.total().steps > 0)


def test_a_moment_has_no_more_than_its_own_session_and_what_it_started() -> None:
    records = recorded("task_nested")
    past = past_of(records)
    names = [row.name for row in past.at().sessions.values()]
    past.family.session = names[1]
    child = Past(past.story, names[1], past.family)
    assert [row.name for row in child.at().sessions.values()] == names[1:]
    inside = [n for n, record in enumerate(records) if record.event.payload.get("session") in names[1:]]
    assert [record.position for record in child.records()] == inside and child.count == len(inside)
    assert {span.session for span in Timeline(child.at(4)).spans()} <= set(names[1:])
    assert [child.position(n + 1) for n in range(child.count)] == inside


@pytest.mark.parametrize("name", NAMES)
def test_the_map_has_every_turn_and_what_took_its_time(name: str) -> None:
    past = past_of(recorded(name))
    timeline, now = Timeline(past.at()), past.last_ts()
    spans = [span for span in timeline.spans() if span.session == past.session]
    turns = [span for span in spans if span.kind == "turn"]
    took = {
        kind: sum((s.end or s.start) - s.start for s in spans if s.kind == kind) for kind in ("model", "tool", "wait")
    }
    for most in (1, 2, 1000):
        found = timeline.columns(past.session, now, most)
        assert len(found) == min(len(turns), most) or len(turns) % most
        assert [each for first, last, *_ in found for each in range(first, last + 1)] == [*range(1, len(turns) + 1)]
        assert all(start <= end for _, _, start, end, *_ in found)
        model, tool, wait, failed = (sum(each[place] for each in found) for place in (4, 5, 6, 7))
        assert (model, wait, failed) == (took["model"], took["wait"], sum(turn.state == "error" for turn in turns))
        assert took["tool"] - took["wait"] <= tool <= took["tool"]
    assert Timeline(past.at(0)).columns(past.session, now, 3) == []


@pytest.mark.parametrize("name", ["task_nested", "2/background", "permission_once"])
def test_a_stretch_is_drawn_as_if_everything_around_it_were_known(name: str) -> None:
    past = past_of(recorded(name))
    timeline = Timeline(past.at())
    spans, now = timeline.spans(), past.last_ts()
    moments = sorted({moment for span in spans for moment in (span.start, span.end or now)})
    for begin, end in [*pairwise(moments[::2]), (moments[0], moments[2]), (moments[1], moments[-1])]:
        some = timeline.between(begin, end, len(spans))
        assert drawn(some, now, 900, begin, end) == drawn(spans, now, 900, begin, end)
        fewer = [span for span in timeline.between(begin, end, 2) if span.kind != "session"]
        assert fewer[-2:] == [span for span in some if span.kind != "session"][-2:]
    assert len(timeline.between(moments[-1] + 1, moments[-1] + 2, len(spans))) < len(spans)
