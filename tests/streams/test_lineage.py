"""Who descends from whom."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from streams.lineage import CREATED, ENDED, LINKED, RESUMED, Lineage, Session, span_id, trace_id, traceparent
from streams.store import Record
from tests.streams.builders import event

Told = tuple[str, str, dict[str, Any]]
"""Stream, type, payload."""


def told(*records: Told) -> Lineage[Session]:
    lineage = Lineage(Session)
    for position, (stream, type_, payload) in enumerate(records):
        lineage.apply(Record(event(stream=stream, type_=type_, payload=payload), 0, position, ""))
    return lineage


def created(session: str, parent: str | None = None, *, stream: str | None = None, **more: Any) -> Told:
    return (stream or parent or session, CREATED, {"session": session, "parent": parent, **more})


def linked(session: str, parent: str) -> Told:
    return (session, LINKED, {"session": session, "parent": parent})


class TestIds:
    def test_they_never_change(self) -> None:
        assert trace_id("ses_1") == "217a8a468e7915355885d169de0b9f71"
        assert span_id("ses_1") == "e3b3d596dd6c7d49"
        assert traceparent("ses_1", "ses_2") == "00-217a8a468e7915355885d169de0b9f71-5f5927dd72d83a4c-01"


class TestTree:
    def test_children_of_children_belong_to_the_root(self) -> None:
        lineage = told(created("r"), created("c", "r", stream="r"), created("g", "c", stream="r"), created("other"))
        assert [lineage.root(each) for each in ("r", "c", "g", "other")] == ["r", "r", "r", "other"]
        assert [s.id for s in lineage.roots()] == ["r", "other"]
        assert [s.id for s in lineage.children("r")] == ["c"]
        assert [s.id for s in lineage.children("g")] == []
        assert lineage.streams_of("g") == lineage.streams_of("r") == ["r"]

    def test_an_unknown_parent_is_joined_later_and_no_record_moves(self) -> None:
        before = [created("r"), created("u", stream="u", lineage="unknown"), created("k", "u", stream="u")]
        lineage = told(*before)
        assert not lineage.sessions["u"].known and lineage.root("k") == "u"
        assert lineage.streams_of("r") == ["r"] and lineage.streams_of("k") == ["u"]
        lineage = told(*before, linked("u", "r"))
        assert lineage.sessions["u"].known and lineage.sessions["u"].stream == "u"
        assert [lineage.root(each) for each in ("u", "k")] == ["r", "r"]
        assert lineage.streams_of("r") == lineage.streams_of("k") == ["r", "u"]
        assert [s.id for s in lineage.roots()] == ["r"]

    def test_a_parent_that_comes_after_its_child_is_found(self) -> None:
        for order in permutations([created("r"), created("c", "r", stream="c"), created("g", "c", stream="g")]):
            lineage = told(*order)
            assert {lineage.root(each) for each in ("r", "c", "g")} == {"r"}
            assert lineage.streams_of("g") == ["r", "c", "g"]

    def test_a_link_to_a_parent_that_is_not_in_the_log_waits_for_it(self) -> None:
        lineage = told(created("u", lineage="unknown"), linked("u", "gone"))
        assert lineage.root("u") == "u" and [s.id for s in lineage.roots()] == ["u"]

    @pytest.mark.parametrize(
        "circle",
        [
            [created("a", "a", stream="a")],
            [created("a", "b", stream="a"), created("b", "a", stream="b")],
            [created("a"), created("b", "a", stream="a"), created("c", "b", stream="a"), linked("a", "c")],
        ],
    )
    def test_a_circle_does_not_hang_and_loses_nobody(self, circle: list[Told]) -> None:
        lineage = told(*circle, created("x", "b", stream="x"), created("y"))
        members = [payload["session"] for _, type_, payload in circle if type_ == CREATED]
        assert {lineage.root(each) for each in members} == {"a"}, "the first in the log"
        below = set(members) | ({"x"} if "b" in members else set())
        assert [s.id for s in lineage.roots()] == ["a", *(["x"] if "x" not in below else []), "y"]
        streams = lineage.streams_of(members[-1])
        assert streams[0] == "a" and len(streams) == len(set(streams))


class TestLife:
    def test_a_session_ends_and_is_resumed(self) -> None:
        story = [created("r", title="Fix it"), ("r", ENDED, {"session": "r", "title": "Fixed"})]
        assert told(*story).sessions["r"].ended and told(*story).sessions["r"].title == "Fixed"
        again = told(*story, ("r", RESUMED, {"session": "r"}))
        assert not again.sessions["r"].ended and again.sessions["r"].title == "Fixed"

    def test_a_session_first_seen_resumed_may_be_unknown(self) -> None:
        lineage = told(("ses_9", RESUMED, {"session": "ses_9", "lineage": "unknown"}))
        assert list(lineage.sessions) == ["ses_9"] and not lineage.sessions["ses_9"].known
