"""The timeline of a session: what it says about the time, and the drawing of it."""

from __future__ import annotations

import re
from itertools import pairwise
from random import Random
from typing import Any
from xml.etree import ElementTree

from sidecar.inspector.drawn import drawn
from sidecar.read.past.drawing import svg
from sidecar.read.past.lanes import Lanes, Scale, chain_of, facts_of, with_background
from sidecar.read.past.spans import Span, SpanKind

ROOT, CHILD = "ses_a", "ses_b"
MINUTE = 60_000


def span(kind: SpanKind, name: str, start: int, end: int | None, session: str = ROOT, **more: Any) -> Span:
    parent = more.pop("parent", "" if kind == "session" else "turn" if kind != "turn" else f"session:{session}")
    state = more.pop("state", "completed")
    facts: dict[str, Any] = {"tokens": {"input": 10}, "cost": 0.5} if kind == "model" else {}
    facts |= {"number": 2 if name == "second" else 1} if kind == "turn" else {}
    identifier = f"session:{session}" if kind == "session" else "turn" if name == "turn" else name
    return Span(identifier, kind, name, start, session, parent, end, state, f"event of {name}", facts=facts | more)


def told() -> list[Span]:
    """A turn: a model, then two tools side by side, one with a child session; an ask; a model. Then idle, and more."""
    return [
        span("session", "The root", 0, 200 * MINUTE),
        span("turn", "turn", 0, 10 * MINUTE + 40_000),
        span("model", "m1", 0, 10_000),
        span("tool", "quick", 10_000, 12_000),
        span("tool", "task", 10_000, 30_000),
        span("session", "The child", 10_000, 30_000, CHILD, parent="task"),
        span("turn", "below", 10_000, 30_000, CHILD),
        span("model", "m2", 11_000, 29_000, CHILD, parent="below"),
        span("tool", "push", 30_000, 10 * MINUTE + 30_000, call="c1"),
        span("wait", "bash git push", 30_000, 10 * MINUTE + 30_000, call="c1", reply="once"),
        span("model", "m3", 10 * MINUTE + 30_000, 10 * MINUTE + 40_000),
        span("turn", "second", 190 * MINUTE, 191 * MINUTE, state="error"),
    ]


def test_working_waiting_and_idle_time_add_up() -> None:
    lanes = Lanes(told(), 191 * MINUTE)
    sums = lanes.sums()
    assert sums["working_ms"] == 40_000 + MINUTE
    assert sums["waiting_ms"] == 10 * MINUTE
    assert sums["working_ms"] + sums["waiting_ms"] + sums["idle_ms"] == sums["ms"]
    assert [sums[each] for each in ("turns", "models", "tools", "errors", "tokens", "cost")] == [3, 3, 3, 1, 30, 1.5]


def test_a_call_goes_on_while_another_one_waits() -> None:
    spans = [*told(), span("tool", "long", 30_000, 5 * MINUTE + 30_000, call="c2")]
    assert Lanes(spans, 200 * MINUTE, 0, 10 * MINUTE).sums()["working_ms"] == 30_000 + 5 * MINUTE


def test_the_sums_of_a_stretch_are_of_that_stretch() -> None:
    sums = Lanes(told(), 200 * MINUTE, 30_000, 60_000).sums()
    assert (sums["working_ms"], sums["waiting_ms"], sums["idle_ms"]) == (0, 30_000, 0)
    assert (sums["models"], sums["tools"], sums["cost"]) == (0, 1, 0), "what only touches its edges does not count"


def test_turns_keep_their_numbers_in_a_stretch() -> None:
    lanes = Lanes(told(), 200 * MINUTE, 100 * MINUTE, 200 * MINUTE)
    assert [turn.name for turn in lanes.turns()] == ["second"]
    assert "turn 2 ·" in svg(lanes, 900, lambda each: each.event)[0]


def test_the_critical_path_is_the_chain_that_the_end_waited_for() -> None:
    lanes = Lanes(told(), 200 * MINUTE)
    assert lanes.critical() == {"turn", "m1", "task", "below", "m2", "push", "bash git push", "m3", "second"}
    assert Lanes(told(), 200 * MINUTE, 0, 11 * MINUTE).sums()["chain"] == [
        ["a person", 10 * MINUTE],
        ["between turns", 20_000],
        ["m2", 18_000],
        ["m1", 10_000],
        ["m3", 10_000],
        ["task", 2000],
    ]


def test_what_a_child_session_asked_a_person_counts_for_its_parent() -> None:
    asked = span("wait", "ask", 12_000, 20_000, CHILD, parent="below", call="c2")
    more = [asked, span("tool", "bash", 12_000, 21_000, CHILD, parent="below", call="c2")]
    spans = [each for each in told() if each.name != "m2"]
    assert dict(Lanes([*spans, *more], 30_000).sums()["chain"]) == {
        "m1": 10_000,
        "task": 11_000,
        "a person": 8000,
        "bash": 1000,
    }


def test_a_model_that_still_speaks_when_its_tool_begins_is_on_the_path() -> None:
    spans = [span("turn", "turn", 0, 100), span("model", "m", 0, 60), span("tool", "t", 50, 100)]
    assert Lanes([span("session", "", 0, 100), *spans], 100).critical() == {"turn", "m", "t"}


def test_waits_and_idle_time_are_folded_and_keep_their_order() -> None:
    scale = Scale(Lanes(told(), 191 * MINUTE), 1000, 50)
    assert [(each.what, each.width) for each in scale.pieces if each.what != "work"] == [("wait", 50), ("idle", 50)]
    places = [scale.at(time) for time in range(0, 191 * MINUTE, 10_000)]
    assert places == sorted(places) and places[0] == 0 and scale.at(191 * MINUTE) == 1000


def test_lanes_are_nested_and_sessions_that_descend_from_each_other_end() -> None:
    assert [(lane.session.session, lane.depth) for lane in Lanes(told(), 0).lanes] == [(ROOT, 0), (CHILD, 1)]
    circle = [span("session", "a", 0, 1, "a", parent="b"), span("session", "b", 0, 1, "b", parent="a")]
    assert sorted(lane.session.session for lane in Lanes(circle, 1).lanes) == ["a", "b"]


def test_background_work_is_below_the_session_that_started_it_and_ends_where_the_moment_does() -> None:
    work = [span("session", "Work", 50_000, 90_000, "ses_w"), span("turn", "w", 50_000, 90_000, "ses_w")]
    later = span("turn", "later", 80_000, 90_000, "ses_w")
    lanes = Lanes(with_background(ROOT, told(), [("ses_w", [*work, later])], 60_000), 60_000)
    assert [(lane.session.session, lane.depth) for lane in lanes.lanes][-1] == ("ses_w", 1)
    assert [each.end for each in lanes.lanes[-1].spans] == [None]


def test_background_work_that_belongs_to_the_session_or_to_other_work_is_told_once() -> None:
    child = [each for each in told() if each.session == CHILD]
    below = [span("session", "Below", 50_000, 90_000, "ses_x"), span("turn", "b", 50_000, 90_000, "ses_x")]
    work = [span("session", "Work", 40_000, 90_000, "ses_w"), span("turn", "w", 40_000, 90_000, "ses_w"), *below]
    found = with_background(ROOT, told(), [(CHILD, child), ("ses_w", work), ("ses_x", below), ("ses_w", work)], MINUTE)
    assert [each.id for each in found] == [each.id for each in [*told(), *work]]
    sessions = {each.session: each for each in found if each.kind == "session"}
    assert [name for name, each in sessions.items() if each.facts.get("background")] == [CHILD, "ses_w", "ses_x"]
    assert sessions[CHILD].parent == "task" and sessions["ses_w"].parent == f"session:{ROOT}"


def widest(picture: str) -> float:
    """Where the bar that is farthest to the right ends; no bar begins before 0."""
    bars = [each.attrib for each in ElementTree.fromstring(picture).iter() if each.tag.endswith("rect")]
    assert all(float(each.get("x", 0)) >= 0 for each in bars)
    return max(float(each.get("x", 0)) + float(each["width"]) for each in bars)


def page_of(spans: list[Span], end: int, width: int = 800) -> ElementTree.Element:
    lanes = Lanes(spans, end)
    text, _ = svg(lanes, width, lambda each: f"#{each.event}")
    return ElementTree.fromstring(text)


def test_each_bar_says_what_it_is_and_leads_to_its_event() -> None:
    page = page_of(told(), 191 * MINUTE)
    links = {each.get("href"): each for each in page.iter() if each.tag.endswith("}a")}
    push = links["#event of bash git push"]
    told_ = "".join(push.itertext())
    assert "waited for a person" in told_ and "10m" in told_ and "once" in told_
    assert "turn 2" in "".join(links["#event of second"].itertext())
    classes = " ".join(each.get("class", "") for each in page.iter())
    assert classes.split().count("aside") == 2, (
        "only the quick tool was waited for by nothing; the other is the legend's"
    )


def test_hostile_names_are_texts() -> None:
    evil = "<script>alert(1)</script>\x00\x1b[31m\"'&"
    spans = [span("session", evil, 0, 9000), span("turn", "turn", 0, 9000), span("tool", evil, 0, 9000, title=evil)]
    spans[2].event = '"><script>'
    page = page_of(spans, 9000)
    assert not [each for each in page.iter() if each.tag.endswith("script")]
    assert "<script>alert(1)</script>" in "".join(page.itertext())


def test_the_scale_has_round_times_in_order_that_do_not_collide() -> None:
    for width in (280, 900, 4000):
        for took in (900, 40_000, 11 * MINUTE, 40 * 60 * MINUTE, 400 * 86_400_000):
            spans = [span("session", "s", 7, took), span("turn", "turn", 7, took), span("tool", "t", 7, took)]
            drawn_, _ = svg(Lanes(spans, took), width, lambda each: "")
            places = [float(x) for x in re.findall(r'class="tick" x1="([\d.]+)"', drawn_)]
            assert all(after - before >= 90 for before, after in pairwise([0, *places]))
            assert not places or places[-1] <= width - 90
            assert bool(places) or width == 280 or took in (900, 400 * 86_400_000)
    drawn_, _ = svg(Lanes(told(), 90_000, 0, 30_000), 900, str)
    seconds = [text[-2:] for text in re.findall(r'y="12">(\d\d:\d\d:\d\d)<', drawn_)]
    assert sorted(seconds) == ["00", "05", "10", "15", "20"]


def test_many_short_bars_become_one() -> None:
    spans = [span("session", "s", 0, 10**6), span("turn", "turn", 0, 10**6)]
    spans += [span("tool", f"t{number}", number * 100, number * 100 + 50) for number in range(9000)]
    page = page_of(spans, 10**6)
    assert sum(1 for each in page.iter()) < 3000
    assert any(re.match(r"\d+ short tool steps", text) for text in page.itertext())


def test_whatever_was_recorded_the_times_add_up_and_the_drawing_stays_in_its_width() -> None:
    random = Random(4)
    kinds: list[SpanKind] = ["turn", "model", "tool", "wait"]
    for _ in range(200):
        spans = []
        for session in (ROOT, CHILD, "ses_c")[: random.randint(1, 3)]:
            spans.append(
                span("session", session, 0, None, session, parent=random.choice(["", "s1", f"session:{ROOT}"]))
            )
            for number in range(random.randint(0, 12)):
                start = random.choice([0, 10**15, random.randint(0, 10**6)])
                end = random.choice([None, start, start - 5, start + random.randint(0, 10**6)])
                about = {"parent": random.choice(["turn", "s2"]), "call": random.choice(["", "c1"])}
                spans.append(
                    span(random.choice(kinds), random.choice(["turn", f"s{number}"]), start, end, session, **about)
                )
        width = random.choice([0, 280, 1000])
        found = drawn(spans, 2 * 10**6, width, random.choice([None, 500]), random.choice([None, 10, 10**7]))
        if found["svg"]:
            sums = found["sums"]
            assert sums["working_ms"] + sums["waiting_ms"] + sums["idle_ms"] == sums["ms"]
            assert sum(ms for _, ms in sums["chain"]) == sums["ms"] and all(ms > 0 for _, ms in sums["chain"])
            assert dict(sums["chain"]).get("a person", 0) >= sums["waiting_ms"]
            assert widest(found["svg"]) <= max(width, 280) + 0.1


def test_the_innermost_session_says_what_the_time_went_for() -> None:
    more = [
        span("tool", "deeper", 12_000, 28_000, CHILD, parent="below"),
        span("session", "Its child", 12_000, 28_000, "ses_c", parent="deeper"),
        span("turn", "deep turn", 12_000, 28_000, "ses_c"),
        span("tool", "grep", 14_000, 20_000, "ses_c", parent="deep turn"),
    ]
    chain = dict(Lanes([each for each in told() if each.name != "m2"] + more, 30_000).sums()["chain"])
    assert (chain["grep"], chain["deeper"], chain["task"]) == (6000, 10_000, 4000)


def test_the_parts_that_are_told_add_up_and_have_what_a_person_took() -> None:
    sums = {"ms": 37_000, "chain": [[f"t{n}", 5000 - n] for n in range(7)] + [["a person", 1021], ["x", 1000]]}
    assert chain_of(sums).endswith("t5 5.0s, a person 1.0s, the rest 6.0s")


def test_numbers_that_are_not_known_are_dashes() -> None:
    facts = dict(facts_of(Lanes([span("session", "s", 0, 5)], 5).sums()))
    assert facts["tokens"] == facts["cost"] == "–" and "failed" not in facts
    assert chain_of(Lanes([], 0).sums()) == ""
