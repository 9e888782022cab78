"""A session at any moment of its past is as it was then."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import pytest

from sidecar.inspector.drawn import drawn
from sidecar.read.past.moment import state
from sidecar.read.story.costs import WAYS, When, costs
from sidecar.read.story.past import Past
from sidecar.read.story.timeline import Timeline
from sidecar.read.tree import Tree
from tests.sidecar.read.story.playing import RECORDINGS, past_of, recorded

SOME = (
    *("task_nested", "permission_once", "revert_command", "kill9_in_tool_then_resumed", "write_edit"),
    *("2/background", "2/permission", "2/retry", "2/crash"),
)
NAMES = [*RECORDINGS] if "DURABLE_STREAM_EVERY_MOMENT" in os.environ else [n for n in SOME if n in RECORDINGS]


def told(past: Past, at: int) -> dict[str, Any]:
    """Everything that is shown of a moment, apart from what is told of the log as it is now."""
    moment, head = past.at(at), state(past, at)
    timeline = Timeline(moment)
    spans = timeline.spans()
    count = sum(span.kind != "session" for span in spans)
    assert not timeline.is_longer(count) and (not count or timeline.is_longer(count - 1))
    assert [span for span in spans if span.kind != "session"][-3:] == [
        span for span in timeline.spans(3) if span.kind != "session"
    ]
    catalog = moment.catalog
    tree = Tree(catalog, {row.name: moment.turns(key) for key, row in moment.sessions.items()})
    return {
        "head": {name: value for name, value in head.items() if name != "records"},
        "spans": spans,
        "marks": [mark for mark in past.marks() if mark[0] < at],
        "tree": [tree.as_json(root) for root in catalog.roots()],
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_moment_is_the_end_of_a_log_that_ends_with_it(name: str) -> None:
    records = recorded(name)
    whole = past_of(records)
    assert whole.count == len(records) > 3
    for at in range(1, len(records) + 1):
        ended = past_of(records[:at])
        assert told(whole, at) == told(ended, at) and ended.count == at
        assert whole.number(whole.position(at)) == at - 1
    assert [record.position for record in whole.records(1, 3)] == [1, 2]
    assert whole.number(len(records)) is None and whole.last(0) is None


@pytest.mark.parametrize("way", WAYS)
def test_what_steps_cost_is_what_their_sessions_cost(way: Any) -> None:
    for name in NAMES:
        past = past_of(recorded(name))
        catalog = past.at().catalog
        found = costs(past.story, way, When(None, None), catalog.root, lambda root, at: root, lambda root: [1, 3])
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
