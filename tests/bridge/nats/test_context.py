"""A record's project, depth and turn, folded from the log."""

from __future__ import annotations

import pytest

from bridge.nats.l0.context import ContextProjection, RecordContext
from bridge.nats.subjects import NO_PROJECT
from streams.event import StreamEvent
from streams.store import Record
from tests.bridge.nats.records import chained, event, recorded
from tests.bridge.opencode.playing import names

CREATED = "lifecycle.session.created"


def folded(*events: StreamEvent) -> ContextProjection:
    contexts = ContextProjection()
    for record in chained(events):
        contexts.apply(record)
    return contexts


def created(number: int, session: str, lineage: str = "root", **more: object) -> StreamEvent:
    return event(number, CREATED, {"session": session, "lineage": lineage, **more})


def step(number: int, session: str, stream: str = "ses_a") -> StreamEvent:
    return event(number, "execution.step", {"session": session}, stream_id=stream)


def test_a_family_has_its_project_and_its_depths() -> None:
    contexts = folded(
        created(1, "ses_a", project="p"),
        created(2, "ses_b", "child", parent="ses_a", project="p"),
        created(3, "ses_c", "child", parent="ses_b"),
    )
    assert contexts.of(step(4, "ses_a")) == RecordContext("p", "ses_a", 0, 0)
    assert contexts.of(step(5, "ses_b")) == RecordContext("p", "ses_b", 1, 0)
    assert contexts.of(step(6, "ses_c")) == RecordContext("p", "ses_c", 2, 0), (
        "a child without a project has its stream's"
    )


def test_what_is_unknown_is_not_guessed() -> None:
    contexts = folded(
        created(1, "ses_x", "unknown"),
        created(2, "ses_y", "child", parent="ses_x", project="p"),
        created(3, "ses_z", "child", parent="ses_never"),
    )
    assert contexts.of(step(4, "ses_x", "ses_x")) == RecordContext(NO_PROJECT, "ses_x", None, 0)
    assert contexts.of(step(5, "ses_y", "ses_x")).depth is None, "nor is what is below it"
    assert contexts.of(step(6, "ses_z", "ses_x")).depth is None
    assert contexts.of(step(7, "ses_other", "other")) == RecordContext(NO_PROJECT, "ses_other", None, 0)
    assert contexts.of(event(8, "system.started", {}, stream_id="system")) == RecordContext()


def test_a_link_makes_it_known() -> None:
    contexts = folded(
        created(1, "ses_a", project="p"),
        created(2, "ses_x", "unknown"),
        event(3, "lineage.linked", {"session": "ses_x", "parent": "ses_a"}, stream_id="ses_x"),
        event(4, "lineage.linked", {"session": "ses_never", "parent": "ses_a"}, stream_id="ses_x"),
    )
    assert contexts.of(step(5, "ses_x", "ses_x")).depth == 1


@pytest.mark.parametrize("payload", [{}, {"session": None}, {"session": 5}, {"session": ""}, {"$sha256": "0" * 64}])
def test_odd_payloads_are_borne(payload: dict[str, object]) -> None:
    contexts = folded(created(1, "ses_a", project="p"), *(event(n, CREATED, payload) for n in (2, 3)))
    assert contexts.of(event(4, "execution.step", payload)) == RecordContext("p")
    odd = folded(event(1, CREATED, {"session": "ses_a", "project": 5, "parent": ["x"], "lineage": {}}))
    assert odd.of(step(2, "ses_a")) == RecordContext(NO_PROJECT, "ses_a", None, 0)


@pytest.mark.parametrize("name", [name for name in names() if name.startswith(("task", "fork", "kill9", "chat"))])
def test_a_snapshot_goes_on_as_the_whole_fold_does(name: str) -> None:
    records: list[Record] = recorded(name)
    whole = ContextProjection()
    for record in records:
        whole.apply(record)
    for cut in {0, 1, len(records) // 2, len(records) - 1}:
        first = ContextProjection()
        for record in records[:cut]:
            first.apply(record)
        resumed = ContextProjection.load(first.dump())
        assert resumed.dump() == first.dump()
        for record in records[cut:]:
            resumed.apply(record)
        assert resumed.dump() == whole.dump()
    depths = {whole.of(record.event).depth for record in records if "session" in record.event.payload}
    assert None not in depths and (1 in depths) == ("task" in name)
