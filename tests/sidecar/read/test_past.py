"""A session stepped to and fro is the same as one that was read up to that record and no further."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from bridge.opencode.capture.translate import Translator
from sidecar.read.catalog import Catalog
from sidecar.read.changes.changes import Changes
from sidecar.read.past import journal, packed
from sidecar.read.past import records as past_module
from sidecar.read.past.records import Past
from sidecar.read.past.spans import Spans
from sidecar.read.select import Family
from sidecar.read.transcript.conversation import Conversation
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.store import Record
from tests.bridge.opencode.playing2 import names as names2
from tests.bridge.opencode.playing2 import play2
from tests.sidecar.cli.helpers import events_of
from tests.sidecar.read.conversations import NAMES, happened


@pytest.fixture(autouse=True)
def near_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks so near that even a short recording has many."""
    monkeypatch.setattr(past_module, "MARK", 6)
    monkeypatch.setattr(past_module, "NEAR", 2)
    monkeypatch.setattr(past_module, "WHOLE", 4)
    monkeypatch.setattr(journal, "SMALL", 1)
    monkeypatch.setattr(packed, "PACK", 5)


def past_of(events: list[StreamEvent]) -> Past:
    past = Past("ses_root", "ses_root", Family("ses_root"))
    for position, event in enumerate(events):
        past.add(Record(event, position, position, ""))
    return past


def fresh(events: list[StreamEvent], at: int) -> tuple[object, ...]:
    conversation, spans, changes, catalog = Conversation(), Spans(), Changes(with_diffs=True), Catalog()
    for position, event in enumerate(events[:at]):
        for fold in (conversation, spans, changes, catalog):
            fold.apply(Record(event, position, position, ""))
    late = changes.turns(after=at // 2 - 1)
    return conversation.roots, spans.found, spans.asks, spans.waited, changes.turns(), late, catalog.dump()


def stepped(past: Past, at: int) -> tuple[object, ...]:
    told = [turn.as_json() for turn in past.changes(past.changed(at))]
    assert told == [turn.as_json() for turn in past.changes(at)]
    changes, late = past.with_diffs(past.changes(at)), past.with_diffs(past.changes(at, at // 2))
    assert past.counts(at) == Counter(mark for number, mark in past.marks if number < at)
    spans = past.spans(at)
    waits = [span for span in spans.found if span.kind == "wait"]
    assert [span for span in waits if span.end is None] == list(spans.asks.values())
    assert sum(span.end - span.start for span in waits if span.end is not None) == sum(spans.waited.values())
    return past.conversation(at).roots, spans.found, spans.asks, spans.waited, changes, late, past.catalog(at).dump()


def walk(events: list[StreamEvent], steps: int, seed: str) -> None:
    """Step by one or two, mostly back, and jump now and then."""
    chance, past, at = random.Random(seed), past_of(events), len(events)
    for _ in range(steps):
        assert stepped(past, at) == fresh(events, at), at
        far = chance.random() < 0.15
        at = chance.randint(0, len(events)) if far else at + chance.choice((-2, -1, -1, -1, 1, 2))
        at = max(0, min(at, len(events)))


def test_records_are_the_same_when_they_are_read_again() -> None:
    events = events_of("task_nested", Translator(seeded_identity(2)))
    records = past_of(events).records
    assert [record.event for record in records] == events and len(records) == len(events) > 3 * packed.PACK
    assert [record.event for record in records.between(4, 11)] == events[4:11]
    assert records[-1].event == events[-1] and list(records.between(3, 3)) == []
    assert [records.index(position) for position in (0, 7, len(events))] == [0, 7, None]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_to_and_fro_is_a_fresh_fold_of_opencode_1(name: str) -> None:
    walk(events_of(name, Translator(seeded_identity(2))), 40, name)


@pytest.mark.parametrize("name", names2())
def test_a_step_to_and_fro_is_a_fresh_fold_of_opencode_2(name: str) -> None:
    walk(list(play2(name).log.events.values()), 40, name)


def test_a_step_to_and_fro_in_many_sessions() -> None:
    translator = Translator(seeded_identity(2))
    walk([event for name in NAMES[::4] for event in events_of(name, translator)], 60, "all")


def test_a_second_step_back_repeats_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = 0

    def counted(catalog: Catalog, record: Record, real: Any = Catalog.apply) -> None:
        nonlocal applied
        applied += 1
        real(catalog, record)

    past = past_of(events_of("task_nested", Translator(seeded_identity(2))))
    at = 4 * past_module.WHOLE - 1
    for moment in (None, at):
        past.catalog(moment)
    monkeypatch.setattr(Catalog, "apply", counted)
    past.catalog(at - 1)
    assert applied < past_module.NEAR < past_module.WHOLE


def test_a_late_undo_is_undone_by_a_step_back() -> None:
    events = [
        event
        for turn in ("m1", "m2", "m3")
        for event in (
            happened("human.input", actor="user", message=turn, parts=[{"type": "text", "text": f"Do {turn}"}]),
            happened("turn.started", message=turn, assistant_message=f"a{turn}"),
            happened("execution.step", kind="tool", tool="bash", turn=turn, call=f"c{turn}", status="completed"),
            happened("turn.ended", message=turn, outcome="completed"),
        )
    ]
    events.append(happened("opencode.message.removed", properties={"messageID": "m1"}))
    events.append(happened("execution.step", kind="tool", tool="bash", turn="m1", call="late", status="error"))
    past = past_of(events)
    for at in (len(events), len(events) - 1, len(events) - 2, 3, len(events)):
        assert stepped(past, at) == fresh(events, at)
