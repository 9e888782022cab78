"""Where a mirror resumes: a table of the states of its notes, its stream and the log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.nats.mirror.resuming import (
    MIRROR_VERSION,
    LogSurvey,
    MirroredRecord,
    MirrorState,
    Resume,
    StreamSurvey,
    may_have_removed,
    resume_plan,
)
from streams.store import NOTHING, Snapshot
from tests.bridge.nats.records import chained, event

RECORDS = chained([event(n, "human.input", {"session": "ses_a", "text": str(n)}) for n in range(10)])


def at(position: int, *, rebuild: int = 0) -> MirroredRecord:
    record = RECORDS[position]
    return MirroredRecord(position, record.event.id, record.hash, rebuild)


def stream(begin: int, end: int, **more: object) -> StreamSurvey:
    """A stream with the records from ``begin`` to ``end``."""
    found = StreamSurvey("then", at(begin), at(end), end - begin + 1, False)
    return replace(found, **more)  # type: ignore[arg-type]


EMPTY = StreamSurvey("then", None, None, 0, False)


def log(last: int, *, first: int = 0, head: int = 9, pruned: int = 0) -> LogSurvey:
    kept = RECORDS[last] if 0 <= last <= head else None
    return LogSurvey(first, head, kept, pruned)


def known(position: int, rebuild: int = 0) -> MirrorState:
    return MirrorState(position, rebuild, created="then")


CASES = {
    "nothing anywhere": (known(NOTHING), EMPTY, LogSurvey(NOTHING, NOTHING, None, 0), Resume(NOTHING, 0)),
    "a new stream": (known(NOTHING), EMPTY, log(-1), Resume(NOTHING, 0)),
    "where it was": (known(6), stream(0, 6), log(6), Resume(6, 0)),
    "a crash before the cursor": (known(3), stream(0, 6), log(6), Resume(6, 0)),
    "a lost cursor": (known(NOTHING), stream(0, 6), log(6), Resume(6, 0)),
    "a number that only the stream knows": (
        known(NOTHING),
        stream(0, 6, last=at(6, rebuild=3)),
        log(6),
        Resume(6, 3),
    ),
    "all removed by limits": (known(6), replace(EMPTY, may_have_removed=True), log(-1), Resume(6, 0)),
    "its beginning removed by limits": (known(6), stream(4, 6, may_have_removed=True), log(6), Resume(6, 0)),
    "a log that begins later": (known(6), stream(0, 6), log(6, first=5, pruned=5), Resume(6, 0)),
    "a mirror that began after a prune": (known(6), stream(0, 6, count=5), log(6, pruned=2), Resume(6, 0)),
    "the last one pruned from the log": (known(6), stream(0, 6), LogSurvey(8, 9, None, 8), Resume(6, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_all_is_well(name: str) -> None:
    notes, found, kept, wanted = CASES[name]
    assert resume_plan(notes, found, kept) == wanted


FAULTS = {
    "wiped": (known(6, 2), EMPTY, log(-1), 3),
    "wiped, limits or not": (known(6), replace(EMPTY, created="now", may_have_removed=True), log(-1), 1),
    "diverged": (known(6), stream(0, 6, last=replace(at(6), hash="0")), log(6), 1),
    "diverged, another event": (known(6), stream(0, 6, last=replace(at(6), event_id="x")), log(6), 1),
    "diverged, ahead of the log": (known(NOTHING), stream(0, 9), log(-1, head=4), 1),
    "foreign": (known(6), stream(0, 6, last=replace(at(6), position=NOTHING)), log(6), 1),
    "foreign, at the beginning": (known(6), stream(0, 6, first=replace(at(0), position=NOTHING)), log(6), 1),
    "beginning_lost": (known(6), stream(2, 6), log(6), 1),
    "doubled": (known(6), stream(0, 6, count=8), log(6), 1),
    "missing": (known(6), stream(0, 6, count=6), log(6), 1),
    "missing, more than was pruned": (known(6), stream(0, 6, count=4), log(6, pruned=2), 1),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_published_anew_under_a_new_number(name: str) -> None:
    notes, found, kept, rebuild = FAULTS[name]
    plan = resume_plan(notes, found, kept)
    assert (plan.after, plan.rebuild, plan.purge, plan.note) == (NOTHING, rebuild, True, name.split(",")[0])
    assert plan.why


def test_a_stream_that_lost_its_end_goes_on_there_with_new_ids() -> None:
    plan = resume_plan(known(8, 1), stream(0, 6), log(6))
    assert (plan.after, plan.rebuild, plan.purge, plan.note) == (6, 2, False, "end_lost")


def test_what_was_asked_for_or_erased_is_published_under_a_new_number() -> None:
    plan = resume_plan(known(8, 1), stream(0, 6), log(6), is_asked=True, is_erased=True)
    assert (plan.after, plan.rebuild, plan.purge, plan.note) == (NOTHING, 2, True, "asked")
    for there, after in ((stream(0, 6), 6), (EMPTY, NOTHING)):
        plan = resume_plan(known(after, 1), there, log(after), is_erased=True)
        assert (plan.after, plan.rebuild, plan.purge, plan.note) == (after, 2, False, "forgotten")


def test_limits_explain_what_they_can() -> None:
    for config, state, may in (
        ({}, {"bytes": 10, "messages": 10}, False),
        ({"max_age": 1}, {}, True),
        ({"max_bytes": -1, "max_msgs": -1, "max_age": 0}, {"bytes": 10, "messages": 10}, False),
        ({"max_bytes": 100}, {"bytes": 49}, False),
        ({"max_bytes": 100}, {"bytes": 50}, True),
        ({"max_msgs": 4}, {"messages": 4}, True),
    ):
        assert may_have_removed(config, state) is may, config


def test_the_state_survives_its_snapshot() -> None:
    state = MirrorState(rebuild=2, created="then", forgotten={"ses_a": 3})
    for record in RECORDS:
        state.pass_over(record)
    state.notes["pointer"] += 1
    snapshot = state.snapshot()
    assert (snapshot.version, snapshot.position) == (MIRROR_VERSION, 9)
    loaded = MirrorState.of(snapshot)
    assert loaded.snapshot() == snapshot and loaded.contexts.state() == state.contexts.state()
    for garbage in (b"", b"{}", b"[]", snapshot.state[:-1], snapshot.state.replace(b'"rebuild":2', b'"rebuild":{}')):
        with pytest.raises(ValueError, match="valid"):
            MirrorState.of(Snapshot(MIRROR_VERSION, 1, garbage))
